"""The output canary: which replica answers otherwise, what that points to, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from paceline_crds.conditions import ConditionStatus, Reason
from paceline_crds.names import LABEL_POOL_HASH
from paceline_crds.service import InferenceService
from paceline_kube import INFERENCEREVISIONS, JsonObject, Key
from paceline_kube.testing import FakeApiServer
from paceline_operator import children
from paceline_operator.canary.asking import Asker
from paceline_operator.canary.judge import ONCE, Answer, Failed, Fault, Outcome, Reading, confirmed, judge
from paceline_operator.canary.keeper import CanaryKeeper
from paceline_operator.canary.recorded import CanaryRecords
from paceline_operator.canary.shown import CanaryCollector
from paceline_operator.canary.told import outputs_agree
from paceline_operator.drift.compare import World
from paceline_operator.gather import RevisionReader, gather
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, render
from paceline_operator.written import Written

KEY: Key = ("demo", "chat")
RIGHT = Answer("p1", "a1", "t1")
GOOD = Reading(RIGHT, "a1")
COLD = Reading(RIGHT)
TOKENS = Reading(Answer("p2", "a9", "t9"), "a9")
MODEL = Reading(Answer("p1", "a2", "t2"), "a2")
TEXT = Reading(Answer("p1", "a1", "t2"), "a1")
CACHE = Reading(RIGHT, "a3")


@pytest.mark.parametrize(
    ("odd", "fault"), [(TOKENS, Fault.TOKENIZER), (TEXT, Fault.TOKENIZER), (MODEL, Fault.MODEL), (CACHE, Fault.CACHE)]
)
def test_one_replica_that_answers_otherwise_is_named_with_what_it_points_to(odd: Reading, fault: Fault) -> None:
    found = judge({"a": GOOD, "b": odd, "c": GOOD}, None)
    assert found.faults == {"b": fault}
    assert found.agree == {"a", "c"}
    assert found.everywhere is None


@pytest.mark.parametrize(("odd", "fault"), [(TOKENS, Fault.TOKENIZER), (MODEL, Fault.MODEL), (CACHE, Fault.CACHE)])
def test_a_change_on_all_replicas_shows_against_what_was_recorded(odd: Reading, fault: Fault) -> None:
    assert judge({"a": odd, "b": odd}, RIGHT).everywhere is fault
    assert judge({"a": odd}, RIGHT).everywhere is fault


def test_a_cache_that_is_wrong_everywhere_shows_without_a_record() -> None:
    assert judge({"a": CACHE, "b": CACHE}, None).faults == {"a": Fault.CACHE, "b": Fault.CACHE}


def test_halves_that_contradict_each_other_are_both_named_and_neither_is_called_right() -> None:
    found = judge({"a": GOOD, "b": MODEL}, None)
    assert found.split == {"a", "b"}
    assert (found.reference, found.faults) == (None, {})
    assert judge({"a": GOOD, "b": MODEL}, RIGHT).faults == {"b": Fault.MODEL}, "a record decides it"


def test_a_replica_that_was_not_asked_is_not_known_and_holds_no_other_up() -> None:
    found = judge({"a": GOOD, "b": "it is too busy"}, None)
    assert found.unknown == {"b": "it is too busy"}
    assert found.agree == {"a"}
    assert judge({"a": "it is too busy"}, RIGHT).agree == frozenset()
    assert judge({}, None) == Outcome()


def test_an_answer_without_the_cache_says_nothing_of_the_cache() -> None:
    assert judge({"a": COLD, "b": GOOD}, None).uncached == {"a"}


def test_a_fault_is_told_when_a_second_question_finds_it_too() -> None:
    once, doubts = confirmed(judge({"a": GOOD, "b": MODEL}, RIGHT), {}, {"a", "b"})
    assert once.faults == {}
    assert once.unknown == {"b": ONCE}
    still, doubts = confirmed(judge({"a": GOOD, "b": MODEL}, RIGHT), doubts, {"a"})
    assert still.faults == {}, "b was not asked again"
    twice, _ = confirmed(judge({"a": GOOD, "b": MODEL}, RIGHT), doubts, {"b"})
    assert twice.faults == {"b": Fault.MODEL}
    other, _ = confirmed(judge({"a": GOOD, "b": CACHE}, RIGHT), doubts, {"b"})
    assert other.faults == {}, "another fault is another doubt"
    _, gone = confirmed(judge({"a": GOOD, "b": GOOD}, RIGHT), doubts, {"b"})
    assert gone == {}


def told(readings: Mapping[str, Reading | str], recorded: Answer | None = RIGHT) -> Any:
    return outputs_agree({"default": judge(readings, recorded)})


def test_before_the_first_look_nothing_is_told_and_without_replicas_nothing_is_known() -> None:
    assert outputs_agree(None) is None
    nothing = outputs_agree({})
    assert nothing is not None
    assert (nothing.status, nothing.reason) == (ConditionStatus.UNKNOWN, Reason.NOT_KNOWN)


@pytest.mark.parametrize(
    ("readings", "status", "reason", "words"),
    [
        ({"a": GOOD, "b": GOOD}, "True", "SameAnswer", "2 replicas give the recorded answer, computed and from the"),
        ({"a": COLD}, "True", "SameAnswer", "1 replica gives the recorded answer; what the cache makes of it is not"),
        ({"a": GOOD, "b": COLD}, "True", "SameAnswer", "of 1 it is not known what the cache makes of it"),
        ({"a": GOOD, "b": "it is too busy"}, "Unknown", "NotKnown", "1 replicas give the same answer, 1 are not known"),
        ({"a": GOOD, "b": MODEL}, "False", "ReplicaDiffers", "b: computed anew, the answer is another one"),
        ({"a": MODEL, "b": MODEL}, "False", "AnswerChanged", "all 2 replicas that answered: computed anew"),
        ({"a": TOKENS}, "False", "AnswerChanged", "look at the tokeniser's files"),
        ({"a": GOOD, "b": CACHE}, "False", "CacheContaminated", "only what comes from the prefix cache"),
        ({"a": CACHE, "b": CACHE}, "False", "CacheContaminated", "all 2 replicas that answered"),
        ({"a": CACHE, "b": MODEL, "c": GOOD}, "False", "ReplicaDiffers", "1 more differ otherwise"),
    ],
)
def test_the_condition_says_which_replica_and_what_to_look_at(
    readings: dict[str, Reading | str], status: str, reason: str, words: str
) -> None:
    verdict = told(readings)
    assert (verdict.status.value, verdict.reason.value) == (status, reason)
    assert words in verdict.message


def test_halves_that_contradict_each_other_are_told_as_that() -> None:
    verdict = told({"a": GOOD, "b": MODEL}, None)
    assert verdict.reason is Reason.REPLICA_DIFFERS
    assert "a, b contradict each other" in verdict.message


def test_the_metric_counts_every_result_of_services_that_were_asked() -> None:
    outcomes = {KEY: {"default": judge({"a": GOOD, "b": MODEL, "c": "busy"}, RIGHT)}, ("demo", "idle"): {}}
    [family] = CanaryCollector(lambda: outcomes).collect()
    counts = {(s.labels["service"], s.labels["result"]): s.value for s in family.samples}
    assert [counts["chat", result] for result in ("agrees", "model", "unknown", "cache", "tokenizer")] == [
        1,
        1,
        1,
        0,
        0,
    ]
    assert counts["idle", "agrees"] == 0


class Fleet:
    """Replicas that say what a test wants, the clock, and what was recorded."""

    def __init__(self) -> None:
        self.now = 0.0
        self.says: dict[str, Reading | str] = {"a": GOOD, "b": GOOD}
        self.restarts: dict[str, int] = {}
        self.asked: list[str] = []
        self.kept: dict[str, Answer] = {}
        self.changes = 0
        self.gate: asyncio.Event | None = None
        self.services: list[JsonObject] = [{"metadata": {"namespace": "demo", "name": "chat"}}]
        self.keeper = CanaryKeeper(
            world=self.world,
            services=lambda: self.services,
            records=self,
            ask=self.ask,
            changed=self.changed,
            clock=lambda: self.now,
        )

    def of(self, key: Key) -> Mapping[str, Answer]:
        return self.kept

    async def keep(self, key: Key, answers: Mapping[str, Answer]) -> None:
        self.kept |= answers

    def changed(self, key: Key) -> None:
        self.changes += 1

    async def ask(self, pod: JsonObject) -> Reading | str:
        self.asked.append(pod["metadata"]["name"])
        if self.gate is not None:
            await self.gate.wait()
        return self.says[pod["metadata"]["name"]]

    def world(self, key: Key) -> World:
        pods = tuple(
            {
                "metadata": {"name": name, "uid": f"uid-{name}", "labels": {LABEL_POOL_HASH: "h1"}},
                "spec": {},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{"restartCount": self.restarts.get(name, 0)}],
                },
            }
            for name in self.says
        )
        return World("chat", {"h1": POOL}, frozenset({"h1"}), pods=pods)

    async def look(self, later: float = 0.0) -> Outcome:
        self.now += later
        await self.keeper.look(KEY)
        found = self.keeper.of(KEY)
        assert found is not None
        return found["default"]


SPEC = {"metadata": {"name": "chat", "namespace": "demo"}, "spec": {"model": {"source": "package://m"}}}
DESIRED = render(InferenceService.from_object(SPEC), Carried(), "r:1")
POOL = DESIRED.pools[0]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


async def test_a_replica_is_asked_once_an_interval_however_often_one_looks(fleet: Fleet) -> None:
    await fleet.look()
    await fleet.look(later=60)
    assert fleet.asked == ["a", "b"]
    await fleet.look(later=600)
    assert fleet.asked == ["a", "b"] * 2


async def test_a_new_replica_and_one_whose_container_began_anew_are_asked_at_the_next_look(fleet: Fleet) -> None:
    await fleet.look()
    fleet.says["c"] = GOOD
    fleet.restarts["b"] = 1
    await fleet.look(later=1)
    assert fleet.asked == ["a", "b", "b", "c"]


async def test_what_was_agreed_upon_twice_is_recorded_and_judges_from_then_on(fleet: Fleet) -> None:
    await fleet.look()
    assert fleet.kept == {}, "once may be chance"
    await fleet.look(later=600)
    assert fleet.kept == {"h1": RIGHT}
    fleet.says = {"a": MODEL, "b": MODEL}
    assert (await fleet.look(later=600)).faults == {}
    found = await fleet.look(later=20)
    assert found.everywhere is Fault.MODEL
    assert fleet.kept == {"h1": RIGHT}, "what is recorded stays"


async def test_a_doubt_is_cleared_up_soon_and_then_the_interval_counts_again(fleet: Fleet) -> None:
    await fleet.look()
    await fleet.look(later=600)
    fleet.says["b"] = CACHE
    await fleet.look(later=600)
    fleet.asked.clear()
    assert (await fleet.look(later=20)).faults == {"b": Fault.CACHE}
    assert fleet.asked == ["b"]
    await fleet.look(later=20)
    assert fleet.asked == ["b"], "it is known by now"


async def test_a_busy_replica_keeps_its_last_answer_for_a_while(fleet: Fleet) -> None:
    await fleet.look()
    fleet.says["b"] = "it is too busy"
    assert (await fleet.look(later=600)).agree == {"a", "b"}
    assert (await fleet.look(later=600)).agree == {"a", "b"}
    assert (await fleet.look(later=600)).unknown == {"b": "it is too busy"}


async def test_a_replica_that_fails_to_answer_twice_is_told_and_counted_apart_from_a_busy_one(fleet: Fleet) -> None:
    await fleet.look()
    fleet.says |= {"a": "it is too busy", "b": Failed("it answered 500")}
    assert (await fleet.look(later=600)).agree == {"a", "b"}, "once may be chance"
    found = await fleet.look(later=600)
    assert found.unknown == {"b": "it answered 500"}
    assert counted(found) == {"agrees": 1, "failed": 1}
    assert counted(await fleet.look(later=600)) == {"unknown": 1, "failed": 1}
    fleet.says["b"] = GOOD
    assert (await fleet.look(later=600)).agree == {"b"}


def counted(found: Outcome) -> dict[str, float]:
    (family,) = CanaryCollector(lambda: {KEY: {"default": found}}).collect()
    return {sample.labels["result"]: sample.value for sample in family.samples if sample.value}


async def test_only_what_changes_what_is_known_wakes_the_service(fleet: Fleet) -> None:
    await fleet.look()
    assert fleet.changes == 1
    await fleet.look(later=600)
    assert fleet.changes == 1
    del fleet.says["b"]
    await fleet.look(later=600)
    assert fleet.changes == 2


async def turns() -> None:
    """Let everything go on that waits for nothing."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_slow_replica_of_one_service_holds_no_other_up(fleet: Fleet) -> None:
    fleet.services.append({"metadata": {"namespace": "demo", "name": "other"}})
    fleet.gate = asyncio.Event()
    fleet.keeper.begin_due()
    fleet.now = 1000.0
    fleet.keeper.begin_due()
    await turns()
    assert sorted(fleet.asked) == ["a", "a", "b", "b"]
    fleet.keeper.begin_due()
    await turns()
    assert len(fleet.asked) == 4, "what is under way is not begun again"
    fleet.gate.set()
    await turns()
    assert fleet.keeper.all().keys() == {("demo", "chat"), ("demo", "other")}
    fleet.services.pop()
    fleet.keeper.begin_due()
    assert fleet.keeper.all().keys() == {("demo", "chat")}


async def test_answers_are_kept_in_the_status_of_every_revision_with_the_pool_and_once() -> None:
    async with FakeApiServer() as server:
        client = server.client()
        made = children.revision(Observed("demo", "chat", "u", 1), DESIRED)
        stored = await client.create(INFERENCEREVISIONS, made, "demo")
        service: JsonObject = {"metadata": {"namespace": "demo", "name": "chat", "uid": "u"}}

        def observe(_: Key) -> Observed:
            return gather(service, read=RevisionReader(), revisions=[stored], deployments=(), config_maps=(), pods=())

        records = CanaryRecords(client, Written(lambda: 0.0), observe)
        assert records.of(KEY) == {}
        await records.keep(KEY, {POOL.hash: RIGHT, "other": RIGHT})
        stored = await client.get(INFERENCEREVISIONS, DESIRED.revision, "demo")
        assert records.of(KEY) == {POOL.hash: RIGHT}
        before = len(server.requests)
        await records.keep(KEY, {POOL.hash: replace(RIGHT, tokens="a2")})
        assert len(server.requests) == before


class Stub:
    """A replica's front door."""

    def __init__(self) -> None:
        self.status = 200
        self.body: Any = {"v": 1, "prompt": "p1", "cold": "a1", "warm": "a1", "text": "t1", "cachedTokens": 64}
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        return web.json_response(self.body, status=self.status)

    async def said(self) -> Reading | str:
        ports = [{"name": "metrics", "containerPort": self.port}]
        return await Asker()(
            {
                "metadata": {"name": "a", "uid": "u"},
                "spec": {"containers": [{"name": "runtime", "ports": ports}]},
                "status": {"podIP": "127.0.0.1"},
            }
        )


@pytest.fixture
async def stub(unused_tcp_port: int) -> AsyncIterator[Stub]:
    stub = Stub()
    application = web.Application()
    application.router.add_get("/v1/paceline/canary", stub.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    stub.port = unused_tcp_port
    yield stub
    await runner.cleanup()


async def test_what_a_replica_says_is_read(stub: Stub) -> None:
    assert await stub.said() == GOOD
    stub.body["cachedTokens"] = 0
    assert await stub.said() == COLD, "nothing came from the cache"


@pytest.mark.parametrize(
    ("status", "body", "words", "failed"),
    [
        (404, {}, "knows no canary", False),
        (503, {}, "too busy", False),
        (500, {}, "it answered 500", True),
        (200, [], "of another form", True),
        (200, {"prompt": 1, "cold": "a", "warm": "a", "text": "t", "cachedTokens": 1}, "no hashes", True),
    ],
)
async def test_what_is_no_answer_is_not_known_with_the_reason(
    stub: Stub, status: int, body: Any, words: str, failed: bool
) -> None:
    stub.status, stub.body = status, body
    said = await stub.said()
    assert isinstance(said, str)
    assert words in said
    assert isinstance(said, Failed) is failed


async def test_a_replica_that_nobody_reaches_failed_to_answer(stub: Stub, unused_tcp_port_factory: Any) -> None:
    stub.port = unused_tcp_port_factory()
    assert isinstance(await stub.said(), Failed)
