"""Knobs that follow load while replicas run: what a spec allows, what replicas say, what they are told, and what the
status tells of it. What is decided is the autoscaler's to say.
"""
