"""What a replica says of its answers and its knobs, and telling it others. All but the asking, at the end, is pure."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from paceline_autoscaler.histograms import Buckets
from paceline_crds import metrics
from paceline_crds.names import LABEL_POOL_HASH
from paceline_crds.tuning import TUNING_PATH
from paceline_kube import JsonObject
from paceline_operator.drift.asking import ask, heard
from paceline_operator.drift.replicas import port_of

METRICS_PATH = "/metrics"
ASK_TIMEOUT = 3.0
MAX_BODY = 1024 * 1024
AT_A_TIME = 64

GAUGES = (metrics.RUNTIME_REQUESTS_WAITING.name, metrics.RUNTIME_REQUESTS_RUNNING.name)
COUNTERS = (
    metrics.RUNTIME_REQUESTS_RECEIVED.name,
    metrics.RUNTIME_PREFILL_TOKENS_COMPUTED.name,
    metrics.RUNTIME_GENERATION_TOKENS.name,
    metrics.RUNTIME_PREEMPTIONS.name,
)
TPOT = f"{metrics.RUNTIME_TIME_PER_TOKEN.name}_bucket"
TTFT = f"{metrics.RUNTIME_TIME_TO_FIRST_TOKEN.name}_bucket"
SET, IN_EFFECT = metrics.RUNTIME_KNOB_SET.name, metrics.RUNTIME_KNOB_IN_EFFECT.name
STARTS = tuple(f"{name}{after}" for name in (*GAUGES, *COUNTERS, TPOT, TTFT, SET, IN_EFFECT) for after in ("{", " "))


@dataclass(frozen=True, slots=True)
class Page:
    """What is wanted of a replica's metrics.

    Attributes:
        values: sums over a metric's series, by its name.
        tpot: requests that ended, by their time per token.
        started, knobs: what each knob was started with, and is.
        ttft: requests that got their first token, by the time until then.
    """

    values: Mapping[str, float]
    tpot: Buckets
    started: Mapping[str, int]
    knobs: Mapping[str, int]
    ttft: Buckets = field(default_factory=dict)


def page_of(text: str) -> Page:
    """Read a page.

    Raises:
        ValueError: in words, what of it is missing or no number.
    """
    lines = "\n".join(line for line in text.splitlines() if line.startswith(STARTS))
    values: dict[str, float] = {}
    times: dict[str, dict[float, float]] = {TPOT: {}, TTFT: {}}
    knobs: dict[str, dict[str, int]] = {SET: {}, IN_EFFECT: {}}
    for family in text_string_to_metric_families(lines + "\n"):
        for one in family.samples:
            if not (math.isfinite(one.value) and one.value >= 0.0):
                raise ValueError(f"{one.name} is {one.value}")
            if one.name in times:
                bound, buckets = float(one.labels["le"]), times[one.name]
                buckets[bound] = buckets.get(bound, 0.0) + one.value
            elif one.name in knobs:
                knobs[one.name][one.labels["knob"]] = int(one.value)
            else:
                values[one.name] = values.get(one.name, 0.0) + one.value
    if not knobs[SET] or knobs[SET].keys() != knobs[IN_EFFECT].keys():
        raise ValueError("its release has no knobs that change while it runs")
    missing = [name for name in (*GAUGES, *COUNTERS) if name not in values]
    if missing or not times[TPOT]:
        raise ValueError(f"it has not told {', '.join(missing) or TPOT} yet")
    return Page(values, times[TPOT], knobs[SET], knobs[IN_EFFECT], times[TTFT])


def fitting(wanted: Mapping[str, int], started: Mapping[str, int]) -> dict[str, int]:
    """What a replica is told: no more than it was started with, and what it was started with need not be told."""
    cut = {knob: min(value, started[knob]) for knob, value in wanted.items() if knob in started}
    return {knob: value for knob, value in cut.items() if value != started[knob]}


def differs(page: Page, wanted: Mapping[str, int]) -> bool:
    """Whether a replica has to be told."""
    return {**page.started, **fitting(wanted, page.started)} != dict(page.knobs)


class Replicas:
    """Asks pods and tells them, so many at a time over all services."""

    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(AT_A_TIME)

    async def page(self, pod: JsonObject) -> Page | str:
        """What a replica says, or in words why it says nothing."""

        async def page(address: str) -> Page | str:
            answer = await ask(address, port_of(pod), METRICS_PATH, {"accept": "text/plain"}, MAX_BODY)
            return page_of(answer.body.decode()) if answer.status == 200 else f"it answered {answer.status}"

        return await heard(pod, page, self._gate, ASK_TIMEOUT)

    async def tell(self, pod: JsonObject, knobs: Mapping[str, int]) -> str:
        """Have a replica run with these, and all others as at its start; in words why it does not."""
        told = {"knobs": dict(knobs), "poolHash": (pod["metadata"].get("labels") or {}).get(LABEL_POOL_HASH)}
        body = json.dumps(told).encode()

        async def tell(address: str) -> str:
            headers = {"content-type": "application/json"}
            answer = await ask(address, port_of(pod), TUNING_PATH, headers, MAX_BODY, method="PUT", body=body)
            return "" if answer.status == 200 else f"it answered {answer.status}: {_message(answer.body)}"

        return await heard(pod, tell, self._gate, ASK_TIMEOUT)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "nothing that explains it"
