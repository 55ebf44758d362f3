"""How many replicas carry a load within the objectives: work, a processor that is shared, and a queue in front of it.

Load is counted in work, not in requests: the seconds of one replica's time that a second of traffic asks for.
`work = prefill tokens/s / prefill rate + decode tokens/s / decode rate`, with the rates that this model has on this
accelerator. Of n replicas each is then busy for the share `rho = work / n`, and three things have to hold:

* TPOT. A decode step takes `floor` seconds with nothing else to do; everything else that a replica does in a second
  stretches it, so that the mean is `floor / (1 - rho)` (the conservation law of processor sharing), but never over
  `full_step`: prompts come in chunks, and a step has room for so many tokens only.
* TTFT. Prompts wait in line for what decodes leave: M/G/n, with the probability of waiting by Erlang C and an
  exponential tail whose mean is that of Allen and Cunneen, `S (1 + cv2) / 2 / (n - offered)`.
* Room. By Little's law `decode tokens/s x TPOT` requests run at a time; there is room for `max_running` in a replica.

Bursts are not in the formulas, which are stationary; they are in the load that the forecast hands over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

EPSILON = 1e-6
"""A load that is a rounding error over what n replicas carry needs no further one."""

HIGHEST_SHARE = 0.95
LOWEST_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Rates:
    """What one replica does, as measured for this model on this accelerator.

    Attributes:
        prefill: prompt tokens per second while it computes nothing else.
        decode: answer tokens per second that a full batch makes, without the step's floor.
        floor: seconds of a decode step that do not depend on the batch.
        max_running: requests at a time that it has sequences and KV cache for.
        full_step: seconds of a step that is full of prompt tokens.
        prompt_cv2: squared coefficient of variation of a prompt's time.
    """

    prefill: float
    decode: float
    floor: float
    max_running: float = math.inf
    full_step: float = math.inf
    prompt_cv2: float = 1.0

    def __post_init__(self) -> None:
        if not (self.prefill > 0 and self.decode > 0 and self.floor >= 0 and self.max_running > 0):
            raise ValueError("rates are above zero: measure them, or leave the pool to a fixed number of replicas")


@dataclass(frozen=True, slots=True)
class Objectives:
    """What is promised; None where nothing is.

    Attributes:
        ttft, tpot: seconds.
        quantile: of the requests that have to keep to `ttft`.
        promised: share of requests that users are promised to keep what they are promised; what `attainment` is held
            against.
    """

    ttft: float | None = None
    tpot: float | None = None
    quantile: float = 0.99
    promised: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Traffic: requests, prompt tokens to compute (without those from a cache) and answer tokens, each per second."""

    requests: float
    prefill: float
    decode: float

    def times(self, factor: float) -> Load:
        """The same mix, more or less of it."""
        return replace(
            self, requests=self.requests * factor, prefill=self.prefill * factor, decode=self.decode * factor
        )

    def work(self, rates: Rates) -> float:
        """Replicas that it keeps busy."""
        return self.prefill / rates.prefill + self.decode / rates.decode


def busy_limit(rates: Rates, objectives: Objectives) -> float:
    """The share of a replica's time that may be busy so that TPOT holds: `1 - floor / tpot`, within 0.05 to 0.95."""
    if objectives.tpot is None or rates.full_step <= objectives.tpot:
        return HIGHEST_SHARE
    return min(HIGHEST_SHARE, max(LOWEST_SHARE, 1.0 - rates.floor / objectives.tpot))


def erlang_c(servers: int, offered: float) -> float:
    """The probability that an arrival has to wait in M/M/n; 1 where more is offered than served."""
    if offered >= servers:
        return 1.0
    blocking = 1.0
    for number in range(1, servers + 1):
        blocking = offered * blocking / (number + offered * blocking)
    return blocking / (1.0 - offered / servers * (1.0 - blocking))


def late_share(replicas: int, load: Load, rates: Rates, limit: float) -> float:
    """The share of requests that wait longer than `limit` seconds before their prompt's turn is over, on average."""
    if load.requests <= 0 or load.prefill <= 0:
        return 0.0
    left = 1.0 - load.decode / rates.decode / replicas
    if left <= 0:
        return 1.0
    service = load.prefill / load.requests / rates.prefill / left
    offered = load.requests * service
    if offered >= replicas:
        return 1.0
    wait = limit - service
    if wait <= 0:
        return 0.0  # no number of replicas makes the prompt itself shorter
    mean = service * (1.0 + rates.prompt_cv2) / 2.0 / (replicas - offered)
    return erlang_c(replicas, offered) * math.exp(-wait / mean)


def carries(replicas: int, load: Load, rates: Rates, objectives: Objectives) -> bool:
    """Whether so many replicas keep the objectives under a load."""
    work = load.work(rates)
    if work <= EPSILON:
        return True
    if replicas < 1:
        return False
    share = work / replicas
    if share > busy_limit(rates, objectives) + EPSILON:
        return False
    step = min(rates.floor / (1.0 - share), rates.full_step)
    if load.decode * step > replicas * rates.max_running * (1.0 + EPSILON):
        return False
    return objectives.ttft is None or late_share(replicas, load, rates, objectives.ttft) <= 1.0 - objectives.quantile


def needed(load: Load, rates: Rates, objectives: Objectives, most: int) -> int:
    """The fewest replicas that carry a load; `most` where even that many do not."""
    fewest = math.ceil(load.work(rates) / busy_limit(rates, objectives) - EPSILON)
    for replicas in range(min(max(0, fewest), most), most):
        if carries(replicas, load, rates, objectives):
            return replicas
    return most
