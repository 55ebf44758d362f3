"""The engine core process: the engine's step loop at one end of a socket, the front end at the other.

A process of its own, so that a busy front end never slows a step and a stuck step leaves health and metrics answering.
"""
