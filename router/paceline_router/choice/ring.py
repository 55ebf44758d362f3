"""Consistent hashing: which replica a conversation belongs to, alike in every router that knows the same replicas."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Sequence
from typing import Final, Generic, TypeVar

from .load import ReplicaLoad
from .picker import usable

BUCKETS: Final = 4096
"""Kinds of conversations: each kind has a home of its own, by rendezvous hashing. Shares then differ by about 4 % with
eight replicas and 12 % with 64."""

OPENING: Final = 32768
"""Bytes of a conversation's opening that are looked at."""

_SHIFT: Final = 32 - BUCKETS.bit_length() + 1
_END: Final = 512
_KNUTH: Final = 2654435769
_WORD: Final = 0xFFFFFFFFFFFFFFFF
_ODD, _OTHER = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03

L = TypeVar("L", bound=ReplicaLoad)


class Ring(Generic[L]):
    """Homes in a group of replicas. A replica more or less moves only the conversations that it gains or loses."""

    __slots__ = ("_group", "_homes", "_seeds")

    def __init__(self, group: Sequence[L]) -> None:
        self._group = group
        self._seeds = [
            int.from_bytes(hashlib.blake2b(load.key.encode("utf-8", "replace"), digest_size=8).digest(), "little")
            for load in group
        ]
        # Found as they are asked for: all at once would hold up everything for a while after each change of the table.
        self._homes: list[L | None] = [None] * BUCKETS

    def home(self, key: int) -> L:
        """The replica where conversations of this key (32 bits) belong."""
        bucket = key >> _SHIFT
        found = self._homes[bucket]
        if found is None:
            found = self._homes[bucket] = max(zip(self._scores(bucket), self._group, strict=True), key=_first)[1]
        return found

    def _scores(self, bucket: int) -> list[int]:
        scores = []
        for seed in self._seeds:
            mixed = (seed ^ (bucket + 1) * _ODD) & _WORD
            mixed = (mixed ^ mixed >> 31) * _OTHER & _WORD
            scores.append((mixed ^ mixed >> 29) * _ODD & _WORD)
        return scores

    def bounded(self, key: int, most: float, tried: Collection[ReplicaLoad], now: float, limit: int) -> L | None:
        """The first replica in the key's order with fewer than `most` requests: consistent hashing with bounded loads
        (Mirrokni, Thorup, Zadimoghaddam 2018).
        """
        order = sorted(zip(self._scores(key >> _SHIFT), self._group, strict=True), key=_first, reverse=True)
        for _, load in order:
            if load.in_flight + load.others < most and usable(load, now, limit, tried):
                return load
        return None


def _first(pair: tuple[int, L]) -> int:
    return pair[0]


def conversation_key(text: bytes, session: bytes | None) -> int:
    """32 bits that all requests of a conversation share.

    With a session they are the session's. Without one they are those of the conversation's opening: everything before
    the first answer of the model (at most `OPENING` bytes), of which the length and the end are taken. The first
    request of a conversation is such an opening up to the closing bracket.
    """
    if session:
        return zlib.crc32(session) * _KNUTH & 0xFFFFFFFF
    opening = min(len(text), OPENING)
    answer = text.find(b'"assistant"', 0, opening)
    # The `}` that ends the message before; in a first request that of the last message.
    end = opening
    if answer > 0 or opening < OPENING:
        end = text.rfind(b"}", 0, answer if answer > 0 else opening) + 1 or opening
    return zlib.crc32(text[max(0, end - _END) : end], end) * _KNUTH & 0xFFFFFFFF
