"""A fleet in discrete events: the router's real choice of a replica against replicas whose time is computed.

It answers what a policy does to waiting times on a trace, in seconds instead of hours and without a GPU. Numbers are
those of the model that `engine.py` states, good for comparing policies, not for promising a latency.
"""
