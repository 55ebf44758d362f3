"""Looks at every rollout that is under way, every few seconds: asks the routers what both revisions did, and remembers
the verdict. A pass asks for it, and takes the edge that is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from paceline_autoscaler.samples import Absent, Sample
from paceline_crds.revision import RevisionPool
from paceline_crds.rollout import RolloutStrategy
from paceline_kube import JsonObject, Key, key_of
from paceline_operator.actions import child_name
from paceline_operator.canary.judge import Outcome
from paceline_operator.rounds import come_round
from paceline_operator.scaling.direct import Replicas
from paceline_operator.scaling.keeper import Seen
from paceline_shadow_traffic.comparisons_page import PATH
from paceline_shadow_traffic.verdict import Remark

from .asked import Foreseen, Judgement
from .comparing import Compared, compare
from .foreseeing import HISTORY_SECONDS, WHOLE, foresee, in_short, past_of, too_short
from .gathering import ANCHOR_SECONDS, Heard, hear, over_pools
from .judging import judgement, judgement_of_answers, not_begun
from .kept import KEEP_SECONDS, Evidences, Kept, pack, unpack
from .outputs import canaried
from .queries import ASK_SECONDS, Answers, QueryGate, queried, with_answer
from .replicas import Counted, count, wanted
from .rules import Rules
from .staging import Stand, stand_of
from .state import SHADOW_STEP, Phase, State
from .transition import SKEW_SECONDS as SKEW

log = logging.getLogger(__name__)

SAMPLES_PATH = "/v1/paceline/samples"
INTERVAL_SECONDS = 10.0
RETELL_SECONDS = 60.0
"""After which the numbers of a verdict that stays the same are written down anew."""

WINDOW_LOOKS = 3
"""Looks for which pairs of answers make one window."""

JUDGED = frozenset({Phase.PREPARING, Phase.JUDGING, Phase.HELD})
"""Phases in which both revisions have requests, as every router has acknowledged."""

COMING = frozenset({Phase.PREPARING, Phase.MOVING})
"""In which a step is about to begin."""

Page = Mapping[str, Any]
Counters = Mapping[str, Mapping[str, str] | str]


@dataclass(frozen=True, slots=True)
class _Due:
    """A rollout that is under way.

    Attributes:
        judged: both revisions have requests, or the candidate copies of them.
        pods: of the pools that change, by name: ready ones of base and candidate.
        queries: users' own gates, about these two revisions.
        common: names of pools that both revisions have.
        same_pools: they have no others.
    """

    uid: str
    state: State
    rules: Rules
    judged: bool
    pods: Mapping[str, tuple[Sequence[JsonObject], Sequence[JsonObject]]]
    queries: tuple[QueryGate, ...] = ()
    common: frozenset[str] = frozenset()
    same_pools: bool = True

    def pages(self, answers: Mapping[str, Page | None], service: str) -> dict[str, Page | None]:
        """Routers' pages, in which what is compared has one place."""
        return {one: page if self.same_pools else over_pools(page, service) for one, page in answers.items()}


@dataclass(frozen=True, slots=True)
class _Foreseen:
    """What one step can find out: by gate, and in a sentence."""

    about: tuple[str, str, int]
    gates: tuple[Foreseen, ...]
    words: str

    def beside(self, said: Judgement) -> Judgement:
        """A verdict on that step, with this in it."""
        return replace(said, foreseen=self.gates, prospect=self.words)


@dataclass(slots=True)
class _Watched:
    """One step of one service. Of a shadow step the pairs of answers are looked at, of others the routers' samples and
    the replicas' counters.
    """

    about: tuple[str, str, int]
    heard: Heard
    compared: Compared
    counted: Counted
    kept: float
    queries: tuple[QueryGate, ...] = ()
    answers: dict[QueryGate, Answers] = field(default_factory=dict)
    judgement: Judgement | None = None
    told: float = 0.0


class RolloutKeeper:
    """Judges, and says what was judged."""

    def __init__(
        self,
        *,
        services: Callable[[], Iterable[JsonObject]],
        seen: Callable[[Key], Seen | None],
        answers: Callable[[str], Awaitable[Mapping[str, Page | None]]],
        recorders: Callable[[], Awaitable[Sequence[str]]],
        recorded: Callable[[str], Awaitable[Page | None]],
        changed: Callable[[Key], None],
        clock: Callable[[], float],
        interval: float = INTERVAL_SECONDS,
        outputs: Callable[[Key], Mapping[str, Outcome] | None] = lambda _: None,
        prometheus: Callable[[str], Awaitable[Sample]] | None = None,
        warn: Callable[[Key, str], None] = lambda key, words: None,
        evidences: Evidences | None = None,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            services: all of them.
            seen: one as the caches have it; None where it is gone or cannot be rendered.
            answers: what each ready router answers at a path of its admin port, by its name; None: nothing.
            recorders: base URLs of the recorders that are ready.
            recorded: what a recorder answers at a URL; None: nothing.
            changed: told of each service of which something else is known than before.
            clock: seconds since the epoch.
            interval: seconds between two looks.
            outputs: what is known of the answers of a service's replicas to the fixed question.
            prometheus: gives the one number of an expression; None: there is none to ask.
            warn: told in words of a step that will hardly be known in its time.
            evidences: where evidence is kept across restarts; None: nowhere.
            active: whether this process is the one that looks.
        """
        self._services = services
        self._seen = seen
        self._answers = answers
        self._recorders = recorders
        self._recorded = recorded
        self._changed = changed
        self._clock = clock
        self._interval = interval
        self._outputs = outputs
        self._prometheus = prometheus
        self._warn = warn
        self._evidences = evidences
        self._active = active
        self._replicas = Replicas(clock, wanted)
        self._watched: dict[Key, _Watched] = {}
        self._keeps: set[Key] = set()
        self._coming: dict[Key, Judgement] = {}
        self._foreseen: dict[Key, _Foreseen] = {}
        self._recorder = ""

    def recorder(self) -> str:
        """Base URL of the recorder, as of the last look; empty where none is needed, or known."""
        return self._recorder

    def of(self, key: Key) -> Judgement | None:
        """The newest verdict; None where nothing was judged."""
        watched = self._watched.get(key)
        return self._coming.get(key) if watched is None else watched.judgement

    def forget(self) -> None:
        """Begin anew: another leader may have moved traffic meanwhile."""
        self._watched.clear()
        self._coming.clear()
        self._foreseen.clear()

    async def run(self) -> None:
        """For ever."""
        await asyncio.gather(
            come_round(
                self.look,
                active=self._active,
                interval=self._interval,
                failure="the rollouts under way could not be judged",
            ),
            # Apart from the looks: a Prometheus that hangs must not hold up what routers tell.
            come_round(
                self.query,
                active=self._active,
                interval=min(ASK_SECONDS, self._interval),
                failure="Prometheus could not be asked about the rollouts under way",
            ),
        )

    async def query(self) -> None:
        """Ask Prometheus once for every gate in PromQL of what was looked at last."""
        for watched in list(self._watched.values()):
            for gate in watched.queries:
                if self._prometheus is None:
                    sample: Sample = Absent("there is no Prometheus: set operator.prometheusURL in the chart")
                else:
                    sample = await self._prometheus(gate.query)
                before = watched.answers.get(gate, ())
                watched.answers[gate] = with_answer(gate, before, self._clock(), sample)

    async def look(self) -> None:
        """Ask and judge, once for every rollout in which both revisions have requests; of steps to come foresee."""
        due: dict[Key, _Due] = {}
        for service in self._services():
            if _is_staged(service) and (found := self._under_way(key_of(service))) is not None:
                due[key_of(service)] = found
        for key in self._watched.keys() - {key for key, one in due.items() if one.judged}:
            del self._watched[key]
        for of in (self._coming, self._foreseen):
            for key in of.keys() - due.keys():
                of.pop(key)
        for key in self._keeps - due.keys():
            self._keeps.discard(key)
            if self._evidences is not None:
                await self._evidences.drop(key)
        shadowed = [key for key, one in due.items() if one.state.shadows]
        before, self._recorder = self._recorder, min(await self._recorders(), default="") if shadowed else ""
        for key in shadowed if before != self._recorder else ():
            self._changed(key)
        await asyncio.gather(*(self._apart(key, one) for key, one in due.items()))

    def _under_way(self, key: Key) -> _Due | None:
        seen = self._seen(key)
        stand = stand_of(seen.observed, seen.desired) if seen is not None else None
        if seen is None or stand is None or seen.desired.rules is None:
            return None
        state = stand.state
        judged = state.shadows or (state.phase in JUDGED and 0 < state.weight < 100)
        if not state.candidate or not (judged or state.phase in COMING):
            return None
        rules, names = seen.desired.rules, _names(key, seen.observed.name, stand)
        queries = tuple(gate.about(names) for gate in rules.queries)
        old, new = ({pool.name for pool in pools} for pools in (stand.base.pools, stand.candidate))
        pods, common = _pods_of(seen, stand), frozenset(old & new)
        return _Due(seen.observed.uid, state, rules, judged, pods, queries, common, old == new)

    async def _apart(self, key: Key, due: _Due) -> None:
        """One service: a fault there must not stop the others, nor go unnoticed."""
        try:
            await self._foresee(key, due)
            if due.judged:
                await self._judge(key, due)
        except Exception:
            log.exception("%s/%s: its rollout could not be judged", *key)

    async def _foresee(self, key: Key, due: _Due) -> None:
        """Once for a step, before its traffic moves, from what routers saw in the last hour."""
        state, rules, about = due.state, due.rules, (due.uid, due.state.candidate, due.state.step)
        step = rules.policy.shadow if state.step == SHADOW_STEP else state.steps[state.step]
        if step is None or (state.step != SHADOW_STEP and step.weight >= 100):
            self._coming.pop(key, None)
            self._foreseen.pop(key, None)
            return
        known = self._foreseen.get(key)
        if known is None or known.about != about:
            name, since = "/".join(key), self._clock() - HISTORY_SECONDS
            answers = await self._answers(f"{SAMPLES_PATH}?since={since:.3f}&service={quote(name, safe='')}")
            pages = due.pages(answers, name)
            past = past_of(list(pages.values()), name, state.base, state.candidate)
            if past is None:
                return  # asked again at the next look
            # Some tenths of a second of arithmetic, and nothing waits for it.
            found = await asyncio.to_thread(foresee, rules, state, past, list(due.pods))
            known = self._foreseen[key] = _Foreseen(about, found, in_short(found, step.most))
            self._changed(key)
            if words := too_short(found, step.most):
                self._warn(key, words)
        if not due.judged:
            self._coming[key] = known.beside(not_begun(state, self._clock()))

    async def _judge(self, key: Key, due: _Due) -> None:
        name, now, state = "/".join(key), self._clock(), due.state
        about = (due.uid, state.candidate, state.generation)
        watched = self._watched.get(key)
        if watched is None or watched.about != about or max(watched.heard.since, watched.compared.since) > now + SKEW:
            # Another step, or the clock went back: what is to come would be from before its evidence.
            watched = self._watched[key] = await self._begin(key, about, state)
        watched.queries = () if state.shadows else due.queries
        if state.shadows:
            said = await self._of_answers(watched, name, state, due.rules)
        else:
            said = await self._of_samples(watched, key, due)
        if (foreseen := self._foreseen.get(key)) is not None:
            said = foreseen.beside(said)
        before, watched.judgement = watched.judgement, said
        known = None if before is None else (before.verdict, before.step)
        if (
            known != (watched.judgement.verdict, watched.judgement.step)
            or not 0.0 <= now - watched.told < RETELL_SECONDS
        ):
            watched.told = now
            self._changed(key)
        if self._evidences is not None and not state.shadows and not 0.0 <= now - watched.kept < KEEP_SECONDS:
            watched.kept = now
            self._keeps.add(key)
            kept = Kept(about, self._clock(), watched.heard, watched.counted)
            await self._evidences.write(key, due.uid, await asyncio.to_thread(pack, kept))

    async def _begin(self, key: Key, about: tuple[str, str, int], state: State) -> _Watched:
        """Go on with what was kept of this step, or begin."""
        compared, kept = Compared(state.since, WINDOW_LOOKS * self._interval), None
        if self._evidences is not None and not state.shadows and (raw := await self._evidences.read(key)):
            kept = unpack(raw, about, self._clock())
        if kept is not None:
            self._keeps.add(key)
            return _Watched(about, kept.heard, compared, kept.counted, kept.at)
        now = self._clock()
        # A step that another leader began may seem to begin in a moment: what counts is not from before it.
        begin = state.since if -SKEW <= now - state.since < ANCHOR_SECONDS else now
        return _Watched(about, Heard(begin, begin), compared, Counted(begin), now)

    async def _of_samples(self, watched: _Watched, key: Key, due: _Due) -> Judgement:
        """What both revisions did with their requests, by every router, and by their replicas where a gate asks."""
        state, rules, name = due.state, due.rules, "/".join(key)
        path = f"{SAMPLES_PATH}?since={watched.heard.anchor:.3f}&service={quote(name, safe='')}"
        answers, said = await asyncio.gather(self._answers(path), self._counters(due))
        now = self._clock()
        watched.heard = hear(watched.heard, due.pages(answers, name), name, state.base, state.candidate, now)
        watched.counted = count(watched.counted, said, now)
        remarks = self._remarks(key, watched, due)
        pools = tuple(pool for pool in due.pods if pool in due.common)
        return judgement(rules, state, watched.heard, now, watched.counted, pools, remarks)

    def _remarks(self, key: Key, watched: _Watched, due: _Due) -> tuple[tuple[str, Remark], ...]:
        """What others than routers and replicas' counters have to say, by place."""
        outcomes, found = self._outputs(key), list[tuple[str, Remark]]()
        for pool, sides in due.pods.items():
            base, candidate = ({str(pod["metadata"]["name"]) for pod in side} for side in sides)
            if (said := canaried(outcomes, base, candidate, due.rules.canary)) is not None:
                found.append((pool, said))
        since, now = watched.heard.since, self._clock()
        found += [(WHOLE, queried(gate, watched.answers.get(gate, ()), since, now)) for gate in due.queries]
        return tuple(found)

    async def _counters(self, due: _Due) -> dict[str, tuple[Counters, Counters]]:
        """What the replicas of each pool that changes have counted; nothing where no gate is about that."""
        if not due.rules.replica_gates:
            return {}
        pods = {pool: sides for pool, sides in due.pods.items() if pool in due.common}
        asked = await self._replicas.ask(pod for sides in pods.values() for side in sides for pod in side)
        said = {uid: values for uid, (_, values) in asked.items()}

        def of(pods: Sequence[JsonObject]) -> Counters:
            return {uid: said[uid] for pod in pods if (uid := str(pod["metadata"]["uid"])) in said}

        return {pool: (of(base), of(candidate)) for pool, (base, candidate) in pods.items()}

    async def _of_answers(self, watched: _Watched, name: str, state: State, rules: Rules) -> Judgement:
        """What both revisions answered to the same requests, by the recorder. It keeps what it knows across restarts
        of ours.
        """
        now = self._clock()
        if not self._recorder:
            missing = "no recorder is ready: set recorder.enabled in the chart"
            watched.compared = replace(watched.compared, trouble=missing)
            return judgement_of_answers(rules, state, watched.compared, now)
        due = watched.compared.due(now)
        pages = await asyncio.gather(*(self._recorded(self._page_url(name, *times)) for _, *times in due))
        numbered = {number: page for (number, *_), page in zip(due, pages, strict=True)}
        watched.compared = compare(watched.compared, numbered, name, state.base, state.candidate)
        return judgement_of_answers(rules, state, watched.compared, self._clock())

    def _page_url(self, name: str, since: float, until: float) -> str:
        return f"{self._recorder}{PATH}?since={since:.3f}&until={until:.3f}&service={quote(name, safe='')}"


def _names(key: Key, name: str, stand: Stand) -> dict[str, str]:
    """What queries call the two revisions and their pods."""
    changed = {pool.name for pool in stand.changed}
    old = [pool for pool in stand.base.pools if pool.name in changed]

    def pods(pools: Iterable[RevisionPool]) -> str:
        return "|".join(f"{child_name(name, pool)}-.*" for pool in pools)

    return {
        "candidatePods": pods(stand.changed),
        "basePods": pods(old),
        "candidate": stand.state.candidate,
        "base": stand.state.base,
        "namespace": key[0],
        "service": key[1],
    }


def _pods_of(seen: Seen, stand: Stand) -> dict[str, tuple[list[JsonObject], list[JsonObject]]]:
    """Ready replicas of base and candidate, of each pool that changes."""

    def ready(pool_hash: str) -> list[JsonObject]:
        names = {pod.name for pod in seen.observed.pods_of(pool_hash) if pod.ready and not pod.terminating}
        return [pod for pod in seen.pods if pod["metadata"]["name"] in names]

    old = {pool.name: pool.hash for pool in stand.base.pools}
    return {pool.name: (ready(old.get(pool.name, "")), ready(pool.hash)) for pool in stand.changed}


def _is_staged(service: JsonObject) -> bool:
    rollout = (service.get("spec") or {}).get("rollout")
    return isinstance(rollout, dict) and rollout.get("strategy") == RolloutStrategy.CANARY
