"""Benchmarks that put Paceline and its peers side by side in one run."""
