"""The node: runs the pods bound to it as processes of this machine, each pod on its own loopback address.

What it does and does not do is written in `local/NODE.md`.
"""
