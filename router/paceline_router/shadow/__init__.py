"""Copies of requests for a candidate whose answers no client gets: beside the path of requests, never in its way."""
