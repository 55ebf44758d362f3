"""Is a new version as good as the old one: what both answered, compared, and a verdict with its numbers.

The verdict and what it stands on are values in, values out; the recorder (`recorder/`) takes pairs from routers.
"""
