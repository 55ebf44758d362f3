"""Is a new version as good as the old one: what both answered, compared, and a verdict with its numbers.

Values in, values out. Nothing records or copies requests yet, and neither the router nor the operator calls this.
"""
