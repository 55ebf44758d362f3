"""Kubernetes on this machine: the real control plane, and a node whose pods are local processes.

Used by the demo, by the tests, and by anyone who wants to try Paceline without a cluster.
"""
