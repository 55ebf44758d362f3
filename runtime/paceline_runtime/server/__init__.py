"""The front-end process: OpenAI's HTTP API, chat template, tokeniser and detokeniser, health and metrics.

It starts the engine core as a process of its own and talks to it over a Unix socket. It imports no torch.
"""
