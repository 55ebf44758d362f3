"""The inference engine: paged KV, continuous batching, and the OpenAI-compatible server in front of it.

It knows nothing of Kubernetes; scheduler and block manager import no torch.
"""
