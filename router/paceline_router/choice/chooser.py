"""The replica that a request costs least at.

`cost = work there + prompt tokens not there yet`, in prompt tokens (see `load.py`). So a prefix is worth exactly what
it saves: its holder is taken as long as what waits there is no more than what would be computed again elsewhere. Three
rules keep that from making a hot spot:

* A holder with more work than `LOCALITY_BOUND` times the mean plus `LOCALITY_SLACK` is passed over, whatever it holds.
* A beginning that many requests share (a system prompt) is put on one more replica for every `SPREAD_VISITS` requests
  that part behind it, until all have it and it decides nothing any more.
* What a replica was given long ago is no longer believed to be there (see `prefix.py`).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import ClassVar, Generic, TypeVar

from .decision import (
    BOUND,
    CODES,
    HOME,
    LAST_RESORT,
    LEAST,
    NONE,
    ONLY,
    PREFIX,
    SESSION,
    SPREAD,
    UNDECIDED,
    Decision,
)
from .load import OUTPUT_WEIGHT, ReplicaLoad, imbalance
from .picker import pick, usable
from .prefix import SMALL, PrefixIndex
from .ring import Ring, conversation_key
from .seats import UNSEATED, Seats
from .terms import (
    GROUPS,
    HOME_FROM,
    HOME_SHARE,
    INDEX_BLOCKS,
    LOCALITY_BOUND,
    LOCALITY_SLACK,
    SCAN,
    SCORE_HOLDERS,
    SESSION_TRUST,
    SESSIONS,
    SPREAD_VISITS,
)

L = TypeVar("L", bound=ReplicaLoad)

_work = attrgetter("work")


class _Group(Generic[L]):
    """What is kept for one sequence of replicas, as long as it is the same object."""

    __slots__ = ("group", "members", "ring")

    def __init__(self, group: Sequence[L], members: int) -> None:
        self.group = group
        self.members = members
        self.ring: Ring[L] | None = None


class Chooser(Generic[L]):
    """One per service. Not for several threads.

    Attributes:
        last: why the last choice was made; see `decision.words`.
        cached: prompt tokens that are expected to lie at the last chosen replica, for `ReplicaLoad.begin`.
        counts: choices by `decision.CODES`.
        prompt_tokens, cached_tokens: sums over all choices; their quotient is the expected hit rate.
    """

    name: ClassVar[str] = "cost"

    def __init__(self, index: PrefixIndex | None = None, blocks: int = INDEX_BLOCKS) -> None:
        self.last: Decision = UNDECIDED
        self.cached = 0
        self.counts = [0] * len(CODES)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._seats: Seats[L] = Seats(blocks, index)
        self._groups: dict[int, _Group[L]] = {}
        self._turned_of: Sequence[L] = ()
        self._turned: tuple[L, ...] = ()
        """A group twice over, so that one slice begins anywhere."""
        # By session and salt: the last replica's slot and seat, and the prompt's tokens.
        self._sessions: OrderedDict[int, tuple[int, int, int]] = OrderedDict()

    # The choice

    def choose(
        self,
        group: Sequence[L],
        text: bytes,
        session: bytes | None,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad] = (),
        salt: int = 0,
    ) -> L | None:
        """The replica for a request, or None when all are full, draining or tried.

        What it holds from then on is noted: call it once for each attempt, and `usable` to ask without asking for.

        Args:
            group: the replicas of its version and pool; the same object as long as they are the same.
            text: what the prompt is made from, in the order in which it is computed.
            session: what the client calls its conversation.
            turn: a number that grows with each call; equal replicas take turns by it.
            limit: requests in flight at which a replica is full.
            tried: replicas that have failed this request.
            salt: where the hashes of the text's blocks begin: one number for all who may share a cache.
        """
        count = len(group)
        if self._turned_of is not group:
            self._turned_of, self._turned = group, (*group, *group)
        if count <= SCAN:
            if count == 0:
                return self._chosen(None, NONE, 0, 0, 0.0)
            start = turn % count
            scanned = self._turned[start : start + count]
        else:
            strides = count // SCAN
            at, stride = divmod(int(random.random() * count * strides), strides)
            stride += 1
            scanned = self._turned[at : at + SCAN * stride : stride]
        saved = 0
        code = NONE
        best: L | None = None
        if session is None and not tried and len(text) < SMALL:
            # Only the work decides, and what is not plain costs more than its work: so the one with the least of all
            # costs least if it is plain. Whether it was the only one that could take it, another plain one shows.
            best = min(scanned, key=_work)
            if now >= best.plain_from and now <= best.fresh_until and best.in_flight < limit:
                if count == 1:
                    code = ONLY
                else:
                    for load in scanned:
                        if load is best or now < load.plain_from or now > load.fresh_until or load.in_flight >= limit:
                            continue
                        code = LEAST
                        break
        if code != NONE:
            assert best is not None
            least = best.work
        else:
            best, least, code, bound = self._least(
                group, scanned, prompt_tokens, output_tokens, now, turn, limit, tried
            )
            if best is None or code == LAST_RESORT:
                return self._chosen(best, code, count, 0, least)
            if session is not None or len(text) >= SMALL:
                best, code, saved = self._near(
                    group, best, least, bound, code, text, session, prompt_tokens, now, limit, tried, salt
                )
        # As `_chosen`, without the call.
        best.chosen += 1
        self.counts[code] += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += saved
        self.cached = saved
        self.last = (code, count, saved, best.work, least)
        return best

    def _least(
        self,
        group: Sequence[L],
        scanned: Sequence[L],
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad],
    ) -> tuple[L | None, float, int, float]:
        """The one with the least work, that work, why it, and the most that a holder of the prompt may have."""
        best: L | None = None
        least = total = 0.0
        seen = 0
        for load in scanned:
            if now < load.plain_from or now > load.fresh_until or load.in_flight >= limit or (tried and load in tried):
                continue
            work = load.work
            total += work
            seen += 1
            if best is None or work < least:
                best = load
                least = work
        bound = LOCALITY_BOUND * total / seen + LOCALITY_SLACK if seen else LOCALITY_SLACK
        if seen == len(scanned):
            return best, least, LEAST if seen > 1 else ONLY, bound
        best, least, code = self._unplain(
            group, scanned, seen, best, least, prompt_tokens, output_tokens, now, turn, limit, tried
        )
        return best, least, code, bound

    def _chosen(self, load: L | None, code: int, count: int, saved: int, least: float) -> L | None:
        self.cached = saved
        self.counts[code] += 1
        self.last = (code, count, saved, 0.0 if load is None else load.work, least)
        if load is not None:
            load.chosen += 1
        return load

    def _unplain(
        self,
        group: Sequence[L],
        scanned: Sequence[L],
        seen: int,
        best: L | None,
        least: float,
        prompt_tokens: int,
        output_tokens: int,
        now: float,
        turn: int,
        limit: int,
        tried: Collection[ReplicaLoad],
    ) -> tuple[L | None, float, int]:
        """Some of those looked at are full, silent, avoided or warming up; if all of them are, look at all there are.

        A warming one costs as if it had the load of a full share: its work and this request's, divided by its share.
        """
        own = prompt_tokens + output_tokens * OUTPUT_WEIGHT
        lowest = least + own if best is not None else 0.0
        able = seen
        for load in scanned if best is not None or len(scanned) == len(group) else group:
            # Where any was plain, all plain ones have been compared.
            if (seen and now >= load.plain_from) or not usable(load, now, limit, tried):
                continue
            able += 1
            cost = (load.work + own) / load.share(now)
            if best is None or cost < lowest:
                best, least, lowest = load, load.work, cost
        if best is None:
            best = pick(group, now, turn, limit, tried)
            return best, 0.0 if best is None else best.work, NONE if best is None else LAST_RESORT
        return best, least, LEAST if able > 1 or len(scanned) < len(group) else ONLY

    def _near(
        self,
        group: Sequence[L],
        best: L,
        least: float,
        bound: float,
        code: int,
        text: bytes,
        session: bytes | None,
        prompt_tokens: int,
        now: float,
        limit: int,
        tried: Collection[ReplicaLoad],
        salt: int,
    ) -> tuple[L, int, int]:
        """Whether a replica that holds a part of the prompt, or the conversation's home, costs less than the one with
        the least work. Returns the replica, why, and the tokens that lie there.
        """
        known = self._groups.get(id(group))
        if known is None or known.group is not group:
            known = self._group(group)
        members = known.members
        index = self._seats.index
        slots = self._seats.loads
        length = len(text)
        saved = fresh = held = 0
        cost = least
        indexed = length >= SMALL
        levels: list[tuple[int, int]] = []
        per_byte = 0.0
        if indexed and index.match(text, salt):
            per_byte = prompt_tokens / length
            levels = index.levels
            fresh = index.fresh
            held = levels[-1][1] & members
        if held:
            bit = 1 << best.slot if best.slot >= 0 else 0
            deepest = levels[0][1] & members
            if held & bit:
                for size, mask in levels:
                    if mask & bit:
                        saved = int(size * per_byte)
                        break
            if deepest == members:
                code = PREFIX
            elif index.visits >= SPREAD_VISITS * deepest.bit_count() > 0:
                code = SPREAD
            else:
                cost = least - saved
                if saved:
                    code = PREFIX
                done = bit
                passed = False
                for size, mask in levels:
                    mask &= members & ~done
                    done |= mask
                    worth = int(size * per_byte)
                    if not mask or least - worth >= cost or mask.bit_count() > SCORE_HOLDERS:
                        continue  # even with the least work they would not cost less; or too many to look at
                    while mask:
                        low = mask & -mask
                        mask ^= low
                        load = slots[low.bit_length() - 1]
                        if load is None or load.slot < 0 or load.work - worth >= cost:
                            continue
                        if now < load.plain_from or now > load.fresh_until or load.in_flight >= limit or load in tried:
                            continue
                        if load.work > bound:
                            passed = True
                            continue
                        best, code, saved, cost = load, PREFIX, worth, load.work - worth
                if passed and code == LEAST:
                    code = BOUND
        session_key = 0
        if session is not None:
            session_key = hash(session) ^ salt
            at = self._sessions.get(session_key)
            if at is not None and code != PREFIX:
                best, code, saved, cost = self._back(
                    at, best, code, saved, cost, bound, prompt_tokens, indexed, held, members, now, limit, tried
                )
        if (
            saved * 2 < prompt_tokens
            and code != SESSION
            and len(group) > 1
            and (session is not None or prompt_tokens >= HOME_FROM)
        ):
            ring = known.ring
            if ring is None:
                ring = known.ring = Ring(group)
            home = ring.home(conversation_key(text, session))
            if home is best:
                if code == LEAST:
                    code = HOME
            elif home.work <= bound and home.work - HOME_SHARE * prompt_tokens <= cost:
                there = 0
                if held and home.slot >= 0 and held >> home.slot & 1:
                    there = next(size for size, mask in levels if mask >> home.slot & 1)
                # What is to be spread does not go where it is.
                if (code != SPREAD or there < levels[0][0]) and usable(home, now, limit, tried):
                    best, code, saved = home, HOME, int(there * per_byte)
        slot = best.slot
        if slot >= 0:
            if indexed and not fresh >> slot & 1:
                if best.kv_news and prompt_tokens:
                    best.kv_news = False
                    self.capacity(best, best.kv_tokens, length / prompt_tokens)
                index.insert(slot)
            if session is not None:
                sessions = self._sessions
                sessions[session_key] = (slot, self._seats.serials[slot], prompt_tokens)
                sessions.move_to_end(session_key)
                if len(sessions) > SESSIONS:
                    sessions.popitem(last=False)
        elif slot == UNSEATED:
            self._groups.clear()  # it began anew: next time it has a seat
        return best, code, saved

    def _back(
        self,
        at: tuple[int, int, int],
        best: L,
        code: int,
        saved: int,
        cost: float,
        bound: float,
        prompt_tokens: int,
        indexed: bool,
        held: int,
        members: int,
        now: float,
        limit: int,
        tried: Collection[ReplicaLoad],
    ) -> tuple[L, int, int, float]:
        """Whether a session goes back to its last replica.

        The index knows better where the blocks are, but it sees whole blocks only and its memory is bounded. So what
        the session left there counts in full where the index agrees or has no say, and as `SESSION_TRUST` of it
        otherwise.
        """
        slot, seat, tokens = at
        load = self._seats.loads[slot]
        if load is None or self._seats.serials[slot] != seat or not members >> slot & 1:
            return best, code, saved, cost
        worth = min(tokens, prompt_tokens)
        if indexed and not held >> slot & 1:
            worth = int(worth * SESSION_TRUST)
        if load is best:
            return best, SESSION, max(saved, worth), cost
        if load.work - worth >= cost or not usable(load, now, limit, tried):
            return best, code, saved, cost
        if load.work > bound:
            return best, BOUND, saved, cost
        return load, SESSION, worth, load.work - worth

    # Who there is

    def _group(self, group: Sequence[L]) -> _Group[L]:
        members = 0
        for load in group:
            if load.slot == UNSEATED:
                self._seats.take(load)
            if load.slot >= 0:
                members |= 1 << load.slot
        if len(self._groups) >= GROUPS:
            self._groups.clear()
        known = self._groups[id(group)] = _Group(group, members)
        return known

    def forget(self, load: L) -> None:
        """The replica is gone."""
        self._seats.leave(load)
        self._groups.clear()

    def capacity(self, load: L, kv_tokens: int, bytes_per_token: float = 4.0) -> None:
        """How many tokens the replica's KV cache holds: what it was given before that is no longer believed."""
        if load.slot == UNSEATED:
            self._seats.take(load)
            self._groups.clear()
        if load.slot >= 0:
            self._seats.room(load.slot, int(kv_tokens * bytes_per_token))

    # For metrics

    def imbalance(self, group: Sequence[L]) -> float | None:
        """The most work at one replica over the mean; None where there is nothing to compare."""
        return imbalance(lambda load: load.work, list(group))

    def __len__(self) -> int:
        """Blocks in the prefix index."""
        return len(self._seats.index)
