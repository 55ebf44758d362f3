"""The data plane: finds the service of a request, picks a replica and streams the answer through.

It watches the cluster itself, so a stopped operator never stops traffic.
"""
