"""How often the verdict on a canary is wrong: rollouts whose truth is known, judged by the real verdict at every look.

Requests' times are drawn, not made by an engine: it is the judging that is simulated here, not the serving.
"""
