"""What knobs that follow load are worth: the real decision and the engine's own scheduler, on a replica whose steps are
computed, beside knobs that stay where they are.
"""
