"""Bytes in and out: connections with clients and replicas, HTTP/1.1 within bounds, and answers in OpenAI's form."""
