"""How a new revision takes over by steps, as a pure state machine: `transition(state, asked, seen, now)`.

Nothing calls it yet: `spec.rollout.strategy` has no `Canary`, and `plan` moves all traffic at once.
"""
