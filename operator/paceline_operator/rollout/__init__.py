"""How a new revision takes over by steps: a pure state machine (`transition`), what a pass makes of it (`staging`), and
the keeper that asks routers and the recorder for the evidence of each step.
"""
