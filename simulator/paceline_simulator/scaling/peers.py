"""The peers' rules, re-implemented from their sources; each with the settings that its users tune.

* HPA: `k8s.io/kubernetes/pkg/controller/podautoscaler` (autoscaling/v2), a Pods metric: requests in flight per pod.
* KEDA: the queue recipe of the vLLM production stack (`sum(vllm:num_requests_waiting)`), which KEDA hands to an HPA
  as an external metric with a target average.
* KPA: `knative.dev/serving/pkg/autoscaler/scaling/autoscaler.go`, on concurrency.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from .view import View

TOLERANCE = 0.1
SYNC = 15.0


@dataclass
class Static:
    """A fixed fleet."""

    replicas: int
    period: float = 60.0

    def decide(self, view: View) -> int:
        """The same as ever."""
        return self.replicas


@dataclass
class _Behaviour:
    """HPA's `behavior`, by default: up at once by 100 % or 4 pods in 15 s, down to the highest of the window."""

    window: float
    _recommended: deque[tuple[float, int]] = field(default_factory=deque)
    _changed: deque[tuple[float, int]] = field(default_factory=deque)

    def apply(self, now: float, current: int, wanted: int, least: int) -> int:
        """The number after stabilisation and policies (`stabilizeRecommendationWithBehaviors` and what follows it)."""
        if not self._recommended:
            self._recommended.append((now, current))  # as the controller does for a workload it has not seen
        while self._recommended and self._recommended[0][0] <= now - self.window:
            self._recommended.popleft()
        self._recommended.append((now, wanted))
        stabilised = max(number for _, number in self._recommended)
        result = wanted if wanted >= current else min(current, stabilised)
        if result > current:
            while self._changed and self._changed[0][0] <= now - SYNC:
                self._changed.popleft()
            before = current - sum(change for _, change in self._changed)
            result = min(result, max(2 * before, before + 4))
            result = max(result, current)
        result = max(result, least)
        if result > current:
            self._changed.append((now, result - current))
        return result


@dataclass
class Hpa:
    """autoscaling/v2 on requests in flight per pod.

    Attributes:
        target: average per pod.
        window: `scaleDown.stabilizationWindowSeconds`.
    """

    target: float
    window: float = 300.0
    least: int = 1
    period: float = SYNC
    _behaviour: _Behaviour = field(init=False)

    def __post_init__(self) -> None:
        self._behaviour = _Behaviour(self.window)

    def decide(self, view: View) -> int:
        """`calcPlainMetricReplicas`: pods without the metric count as at the target down, and as idle up."""
        current = view.desired
        if not view.metrics:
            return current  # FailedGetPodsMetric: no change
        values = [(pod.running or 0) + (pod.waiting or 0) for pod in view.pods if pod.ready]
        missing = len(view.pods) - len(values)
        if not values:
            return current
        ratio = sum(values) / (self.target * len(values))
        if not missing:
            wanted = current if abs(ratio - 1.0) <= TOLERANCE else math.ceil(ratio * len(values))
        else:
            total = sum(values) + (missing * self.target if ratio < 1.0 else 0.0)
            count = len(values) + missing
            again = total / (self.target * count)
            wanted = math.ceil(again * count)
            turned = (ratio < 1.0) != (again < 1.0)
            wrong_way = wanted > current if ratio < 1.0 else wanted < current
            if abs(again - 1.0) <= TOLERANCE or turned or wrong_way:
                wanted = current
        return self._behaviour.apply(view.now, current, wanted, self.least)


@dataclass
class Keda:
    """A queue's length through an external metric.

    Attributes:
        threshold: waiting requests per replica.
        window: of the HPA that KEDA makes.
    """

    threshold: float
    window: float = 300.0
    least: int = 1
    period: float = SYNC
    _behaviour: _Behaviour = field(init=False)

    def __post_init__(self) -> None:
        self._behaviour = _Behaviour(self.window)

    def decide(self, view: View) -> int:
        """`GetExternalPerPodMetricReplicas`. Lost targets give an empty result, which counts as 0 by default."""
        queue = view.waiting + view.held if view.metrics else 0
        current = view.desired
        ratio = queue / (self.threshold * current) if current else math.inf
        wanted = current if abs(ratio - 1.0) <= TOLERANCE else math.ceil(queue / self.threshold)
        return self._behaviour.apply(view.now, current, wanted, self.least)


@dataclass
class Kpa:
    """Knative's autoscaler on concurrency; it asks pods itself, so that a metrics outage does not touch it.

    Attributes:
        target: concurrency per pod.
        window: the stable window, seconds; the panic window is a tenth of it.
    """

    target: float
    window: float = 60.0
    least: int = 1
    period: float = 2.0
    up_rate: float = 1000.0
    down_rate: float = 2.0
    panic_share: float = 0.1
    panic_threshold: float = 2.0
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _panic_since: float | None = None
    _panic_pods: int = 0

    def decide(self, view: View) -> int:
        """`autoscaler.Scale`."""
        now = view.now
        if not self._seen and view.ready > 1:
            self._panic_since, self._panic_pods = now, view.ready  # it begins in panic, so as not to begin by shrinking
        self._seen.append((now, view.in_flight))
        while self._seen[0][0] <= now - self.window:
            self._seen.popleft()
        stable = sum(value for _, value in self._seen) / len(self._seen)
        recent = [value for at, value in self._seen if at > now - max(6.0, self.panic_share * self.window)]
        panic = sum(recent) / len(recent)
        ready = max(1, view.ready)
        most, fewest = math.ceil(self.up_rate * ready), math.floor(ready / self.down_rate)
        by_stable = math.ceil(stable / self.target)
        by_panic = math.ceil(panic / self.target)
        wanted = min(max(by_stable, fewest), most)
        wanted_panic = min(max(by_panic, fewest), most)
        over = by_panic / ready >= self.panic_threshold
        if self._panic_since is None and over:
            self._panic_since, self._panic_pods = now, 0
        elif over:
            self._panic_since = now
        elif self._panic_since is not None and now - self._panic_since > self.window:
            self._panic_since = None
        if self._panic_since is not None:
            # Whichever asked for more, nothing goes down before the panic is over.
            self._panic_pods = wanted = max(self._panic_pods, wanted, wanted_panic)
        return max(wanted, self.least)
