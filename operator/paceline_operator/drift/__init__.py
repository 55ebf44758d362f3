"""Whether what runs is what was recorded: desired (the revision) against stamped (objects, pods) against effective
(what a replica itself reports), for every replica and field.
"""
