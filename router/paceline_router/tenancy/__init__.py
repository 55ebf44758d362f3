"""Whose request this is and whether it may go now: identity, token buckets, slots and the weighted fair queue."""
