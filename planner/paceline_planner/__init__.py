"""Pure arithmetic on models and accelerators: what fits, how many at a time, and where the ceilings are.

Everything here is a function of a model's own config and of figures with a source; nothing is measured or guessed.
"""
