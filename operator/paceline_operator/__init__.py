"""The operator: Kopf in front, a keyed queue, informers, and gather -> plan -> apply -> status.

`plan` is pure; everything that touches the cluster is a thin shell around it.
"""
