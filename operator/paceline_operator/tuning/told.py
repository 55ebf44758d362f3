"""What the status and the metrics tell of knobs that follow load. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline_autoscaler.knobs import CALM, HELD, MOVED, Decision, Range
from paceline_crds import metrics as catalogue
from paceline_crds.conditions import ConditionStatus, Reason
from paceline_crds.tuning import Knob, TuningStatus
from paceline_kube import Key
from paceline_operator.verdict import Verdict

AIMLESS = Reason.NO_OBJECTIVE.value


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of one pool.

    Attributes:
        unused: ranges that replicas cannot be in, in words.
        refusing: replicas that do not run with what was decided, in words.
    """

    status: TuningStatus
    unused: str = ""
    refusing: str = ""

    @property
    def active(self) -> bool:
        """Whether knobs are decided from known figures."""
        return self.status.reason not in (*HELD, AIMLESS)

    @property
    def words(self) -> str:
        """All of it in a sentence."""
        parts = (self.refusing, self.status.message, self.unused)
        return f"pool {self.status.pool}: {'; '.join(part for part in parts if part)}"


def tuning_status(
    pool: str, decision: Decision, ranges: Mapping[Knob, Range], now: float, before: TuningStatus | None
) -> TuningStatus:
    """The entry of a pool. While no knob moves and nothing new is known it stays as it was, with the numbers of the
    last move: live figures are for metrics.

    Args:
        now: seconds since the epoch.
    """
    knobs = {knob.value: value for knob, value in decision.knobs.items()}
    started = {knob.value: one.started for knob, one in ranges.items()}
    if before is not None and (before.knobs, before.started) == (knobs, started):
        quiet = decision.reason in CALM | {"Measuring"} and before.reason in CALM | MOVED
        if quiet or before.reason == decision.reason:
            return before
    return TuningStatus(
        pool=pool,
        knobs=knobs,
        started=started,
        reason=decision.reason,
        message=decision.message,
        since=datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        inputs={name: f"{value:.4g}" for name, value in decision.inputs.items() if value is not None},
    )


def tuning_active(pools: Mapping[str, Told]) -> Verdict | None:
    """The condition; None where no knob follows load."""
    if not pools:
        return None
    ordered = [pools[name] for name in sorted(pools)]
    for reason, some in (
        (Reason.REPLICA_REFUSES, [one for one in ordered if one.refusing]),
        (Reason.NO_OBJECTIVE, [one for one in ordered if one.status.reason == AIMLESS]),
        (Reason.METRICS_UNAVAILABLE, [one for one in ordered if not one.active]),
    ):
        if some:
            return Verdict(ConditionStatus.FALSE, reason, "; ".join(one.words for one in some))
    return Verdict(ConditionStatus.TRUE, Reason.FOLLOWS_LOAD, "; ".join(one.words for one in ordered))


class TuningCollector(Collector):
    """What was decided, by pool; nothing for pools whose knobs follow no load, and before the first decision."""

    def __init__(self, decided: Callable[[], Mapping[Key, Mapping[str, Told]]]) -> None:
        self._decided = decided

    def collect(self) -> Iterable[Metric]:
        knobs, active = (
            GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for metric in (catalogue.OPERATOR_TUNING_KNOB, catalogue.OPERATOR_TUNING_ACTIVE)
        )
        for key, pools in self._decided().items():
            for name, one in list(pools.items()):
                active.add_metric([*key, name], float(one.active))
                for knob, value in one.status.knobs.items():
                    knobs.add_metric([*key, name, knob], value)
        yield from (knobs, active)
