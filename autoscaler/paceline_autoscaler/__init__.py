"""How many replicas a pool needs: what is known of its load, and a pure decision that names the numbers it stands on.

What is not known is never zero: a missing, stale or undefined sample freezes what it would have decided.
"""
