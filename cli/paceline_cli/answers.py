"""What replicas say to the fixed question now, asked from outside the cluster; and what the operator found of late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline_crds.conditions import ConditionStatus, ConditionType
from paceline_crds.names import LABEL_POOL_HASH
from paceline_kube import AioKubeClient, JsonObject, KubeError
from paceline_kube.pods import is_ready
from paceline_operator.canary.asking import CANARY_PATH, TIMEOUT_SECONDS, Asker, reading_of
from paceline_operator.canary.judge import Answer, Fault, Outcome, Reading, judge
from paceline_operator.canary.told import outputs_agree
from paceline_operator.drift.compare import Item, World
from paceline_operator.drift.replicas import port_of
from paceline_operator.measured import canaries_of

from .asking import on_this_machine, why
from .services import status_of

AT_A_TIME = 8
AGAIN_SECONDS = 6.0
"""A replica repeats an answer for five seconds."""

FIELDS = {Fault.TOKENIZER: "answer (tokeniser)", Fault.MODEL: "answer (computed)", Fault.CACHE: "answer (from cache)"}


@dataclass(frozen=True, slots=True)
class Answers:
    """What is known of the answers of a service.

    Attributes:
        status: of the condition `OutputsAgree`, or of a look of our own.
        items: replicas that answer otherwise, as hashes; only of a look of our own.
    """

    status: str
    reason: str
    message: str
    items: tuple[Item, ...] = ()

    @property
    def wrong(self) -> bool:
        """Whether a replica answers otherwise."""
        return self.status == ConditionStatus.FALSE.value


def found_by_operator(service: JsonObject) -> Answers | None:
    """What its status says; None where it says nothing."""
    conditions = status_of(service).get("conditions") or ()
    it = next((one for one in conditions if one.get("type") == ConditionType.OUTPUTS_AGREE.value), None)
    return None if it is None else Answers(it["status"], it["reason"], it.get("message") or "")


async def ask_now(client: AioKubeClient, world: World, revisions: Iterable[JsonObject]) -> Answers | None:
    """Ask every ready replica; one that answers otherwise a second time. None where none is ready."""
    pods = [pod for pod in world.pods if is_ready(pod) and _hash(pod) in world.pools]
    recorded = {h: Answer(a.prompt, a.answer, a.text) for one in revisions for h, a in canaries_of(one).items()}
    said = await _ask(client, pods)
    if odd := {name for one in _judged(pods, said, recorded).values() for name in (*one.faults, *one.split)}:
        await asyncio.sleep(AGAIN_SECONDS)
        said |= await _ask(client, [pod for pod in pods if pod["metadata"]["name"] in odd])
    outcomes = _judged(pods, said, recorded)
    verdict = outputs_agree({f"{world.pools[h].name} ({h})": one for h, one in outcomes.items()})
    if verdict is None or not pods:
        return None
    items = tuple(item for one in outcomes.values() for item in _items(one, said))
    return Answers(verdict.status.value, verdict.reason.value, verdict.message, items)


def _judged(
    pods: Sequence[JsonObject], said: Mapping[str, Reading | str], recorded: Mapping[str, Answer]
) -> dict[str, Outcome]:
    readings: dict[str, dict[str, Reading | str]] = {}
    for pod in pods:
        name = str(pod["metadata"]["name"])
        readings.setdefault(_hash(pod), {})[name] = said[name]
    return {pool_hash: judge(of, recorded.get(pool_hash)) for pool_hash, of in sorted(readings.items())}


def _items(outcome: Outcome, said: Mapping[str, Reading | str]) -> Iterable[Item]:
    for name in sorted(outcome.split):
        yield Item(name, "answer (computed)", "one answer of all", _shown(said[name], Fault.MODEL))
    for name, fault in outcome.faults.items():
        assert outcome.reference is not None, "a fault is one against something"
        right = _shown(Reading(outcome.reference, outcome.reference.tokens), fault)
        yield Item(name, FIELDS[fault], right, _shown(said[name], fault))


def _shown(reading: Reading | str, fault: Fault) -> str:
    if isinstance(reading, str):
        return reading
    computed = reading.computed
    if fault is Fault.TOKENIZER:
        return f"{computed.prompt} {computed.text}"
    return computed.tokens if fault is Fault.MODEL else reading.warm


async def _ask(client: AioKubeClient, pods: Sequence[JsonObject]) -> dict[str, Reading | str]:
    gate, direct = asyncio.Semaphore(AT_A_TIME), Asker()

    async def one(pod: JsonObject) -> Reading | str:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:{port_of(pod)}/proxy{CANARY_PATH}"
        async with gate:
            try:
                return reading_of(await client.request("GET", path, timeout=TIMEOUT_SECONDS))
            except KubeError as exc:
                if on_this_machine(client.server, (pod.get("status") or {}).get("podIP")):
                    return await direct(pod)
                return why(exc)
            except ValueError as exc:
                return str(exc)

    answers = await asyncio.gather(*(one(pod) for pod in pods))
    return {str(pod["metadata"]["name"]): answer for pod, answer in zip(pods, answers, strict=True)}


def _hash(pod: JsonObject) -> str:
    return str((pod["metadata"].get("labels") or {}).get(LABEL_POOL_HASH) or "")
