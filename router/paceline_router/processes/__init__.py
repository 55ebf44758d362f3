"""Several router processes on one port: who starts them, what each runs, and one admin API for all."""
