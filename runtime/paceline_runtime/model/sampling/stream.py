"""The random stream of an answer: its n-th number is a function of seed and n alone.

So it is the same whatever runs beside it, in whatever chunks the prompt was computed and however often it was
preempted.
"""

from __future__ import annotations

import hashlib


def uniform(seed: int, index: int) -> float:
    """The `index`-th number of a stream, in [0, 1), with 53 random bits. `seed` may be any signed 128-bit number."""
    digest = hashlib.blake2b(
        index.to_bytes(8, "big"), key=seed.to_bytes(16, "big", signed=True), digest_size=8
    ).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53
