"""The operators that are compared, each as the process that a cluster would run."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_crds.names import LABEL_SERVICE
from paceline_kube import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INFERENCEREVISIONS,
    INFERENCESERVICES,
    PODDISRUPTIONBUDGETS,
    PODS,
    Resource,
)

from .home import FLEET

ASK_SECONDS = 5.0
OURS, KOPF_ONLY = "paceline", "kopf-only"

OURS_WATCHES: tuple[tuple[Resource, str | None], ...] = (
    (INFERENCESERVICES, None),
    (INFERENCEREVISIONS, LABEL_SERVICE),
    (DEPLOYMENTS, LABEL_SERVICE),
    (CONFIGMAPS, LABEL_SERVICE),
    (PODS, LABEL_SERVICE),
    (PODDISRUPTIONBUDGETS, LABEL_SERVICE),
)
KOPF_ONLY_WATCHES: tuple[tuple[Resource, str | None], ...] = ((INFERENCESERVICES, None), (DEPLOYMENTS, LABEL_SERVICE))


@dataclass(frozen=True)
class Progress:
    """What an operator says of itself.

    Attributes:
        looked: services that it has looked at since it started; at least.
        busy: services that wait for it, or that it works on.
    """

    looked: int
    busy: int


class System:
    """One operator process: its command, what it watches, and how it is asked how far it is."""

    def __init__(self, name: str, health_port: int, metrics_port: int) -> None:
        self.name = name
        self._health = f"http://127.0.0.1:{health_port}/healthz"
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"
        python = (sys.executable, "-m")
        if name == OURS:
            ports = ("--health-port", str(health_port), "--metrics-port", str(metrics_port))
            self.command: Sequence[str] = (*python, "paceline_operator", "--namespace", FLEET, *ports)
            self.watches = OURS_WATCHES
        else:
            self.command = (*python, "paceline_bench.fleet.kopf_only", FLEET, str(health_port))
            self.watches = KOPF_ONLY_WATCHES

    def progress(self) -> Progress | None:
        """How far it is; None while it does not say, or may not act yet."""
        try:
            if self.name == KOPF_ONLY:
                return Progress(int(json.loads(_get(self._health))["handled"]), 0)
            # Not the probe: Kopf repeats what it said up to ten seconds ago.
            lines = _get(self._metrics).decode().splitlines()
        except (OSError, ValueError, KeyError):
            return None
        values = {words.rpartition(" ")[0]: float(words.rpartition(" ")[2]) for words in lines if words[:1] != "#"}
        synced = [value for name, value in values.items() if name.startswith("paceline_operator_informer_synced")]
        if not values["paceline_operator_leader"] or not all(synced):
            return None
        busy = values["paceline_operator_queue_depth"] + values["paceline_operator_workers_busy"]
        return Progress(int(values['paceline_operator_reconcile_total{result="success"}']), int(busy))


def _get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=ASK_SECONDS) as answer:
        body: bytes = answer.read()
        return body
