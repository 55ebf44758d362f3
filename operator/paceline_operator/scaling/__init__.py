"""How many replicas each pool has that follows load: what is asked of replicas and routers, the decision, and the way
to it. The decision itself is `paceline_autoscaler.recommend`; here is what turns a cluster into its input and its
output into the count that a pass orders.
"""
