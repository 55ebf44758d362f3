"""What keepers beside the passes have found out about services; a pass asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline_crds.status import ScalingStatus
from paceline_kube import JsonObject, Key

from .drift.compare import Drift
from .observed import Observed
from .render import Desired
from .rollout.asked import Judgement
from .tuning.told import Told
from .verdict import Verdict


@dataclass(frozen=True, slots=True)
class Findings:
    """Questions that a pass asks; without keepers nothing was looked at.

    Attributes:
        drift: what the last look at a service's configuration found.
        split: what the routers advise of its pools.
        outputs: whether its replicas answer alike.
        slo: whether it keeps what it promises.
        crd_lacks: fields that the cluster's CRDs lack; None: not known yet.
        keys: why no router can check a service's keys; None: not known yet.
        counts: what is asked for, with the counts of pools that follow load.
        scaling: what was decided about these pools; None: nothing yet.
        tuning: what was decided about pools whose knobs follow load; None: nothing yet.
        recorder: base URL of the recorder of copied requests; empty: none is known.
        judgement: the newest verdict on a rollout by steps; None: there is none.
    """

    drift: Callable[[Key], Drift | None] = lambda _: None
    split: Callable[[Key], Verdict | None] = lambda _: None
    outputs: Callable[[Key], Verdict | None] = lambda _: None
    slo: Callable[[Key], Verdict | None] = lambda _: None
    crd_lacks: Callable[[], tuple[str, ...] | None] = lambda: ()
    keys: Callable[[Key], str | None] = lambda _: ""
    counts: Callable[[Key, JsonObject, Observed, Desired], Desired] = lambda *given: given[-1]
    scaling: Callable[[Key], Mapping[str, ScalingStatus] | None] = lambda _: None
    tuning: Callable[[Key], Mapping[str, Told] | None] = lambda _: None
    recorder: Callable[[], str] = lambda: ""
    judgement: Callable[[Key], Judgement | None] = lambda _: None
