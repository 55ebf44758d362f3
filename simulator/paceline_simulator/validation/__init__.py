"""How near the simulation is to a replica that runs: the same requests are sent to the one and computed by the other,
with a step's time learnt from the replica's own counters in a run before.
"""
