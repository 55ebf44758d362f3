"""The terms on which a replica is chosen, with their reasons. See `chooser.py`."""

from __future__ import annotations

from typing import Final

LOCALITY_BOUND: Final = 1.25
"""Times the mean work that a replica may have and still be given a request for what it holds. The usual factor of
consistent hashing with bounded loads."""

LOCALITY_SLACK: Final = 8192.0
"""Prompt tokens above that bound, so that it does not bite in a fleet that has next to nothing to do: a third of a
second of work for an 8B model on one card."""

SPREAD_VISITS: Final = 8
"""Requests that part behind one beginning for each replica that holds it, before one more is to hold it."""

HOME_SHARE: Final = 0.5
"""Share of its prompt tokens by which a new conversation prefers its home, for the sake of other routers, which will
see it later and do not know what this one sent where. With four routers simulated the median time to the first token is
30 % longer without it; with one router it makes no difference up to 0.5."""

SESSION_TRUST: Final = 0.25
"""See `Chooser._back`."""

HOME_FROM: Final = 256
"""Prompt tokens from which a conversation has a home: a shorter prefix is computed in no time."""

SCAN: Final = 8
"""Replicas whose work is looked at. Up to so many all are; of more, so many at random: the best of eight is nearly the
best, and routers that know the same do not all run to the same replica (32 replicas and four routers simulated: when
all are looked at, the median time to the first token is a fifth longer)."""

SCORE_HOLDERS: Final = 8
"""Holders of a prefix that are scored one by one; when more hold it, only the one with the least work of those
looked at counts."""

INDEX_BLOCKS: Final = 65536
"""Bound of the prefix index: some 3 MB, enough for the last 4,000 prompts of 4 KB or 1,000 of 100 KB."""

SESSIONS = 65536
"""Sessions whose last replica is remembered."""

GROUPS: Final = 64
