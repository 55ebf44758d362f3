"""What an autoscaler does to a fleet on a trace: the real recommender and its peers' rules on the same replicas.

A policy sees what its original would see, without scrape delay, and says how many replicas there should be.
"""
