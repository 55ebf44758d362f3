"""The routes file of our router under test: with nothing beyond addresses, and with everything on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .works import MODEL, SERVICE

PLAIN, ALL = "plain", "all"
LONG_POOL = "long"

EVERYTHING: dict[str, Any] = {
    "pools": [
        {"name": "default", "maxModelLen": 131_072, "maxNumSeqs": 256},
        {
            "name": LONG_POOL,
            "shapes": ["LongInputShortOutput", "VeryLong"],
            "slo": {"ttft": {"p90": "2s", "p99": "5s"}},
            "maxModelLen": 131_072,
            "maxNumSeqs": 256,
        },
    ],
    "routing": {
        "maxRequestDuration": "10m",
        "retryBudgetPercent": 10,
        "holdRequestsFor": "10s",
        "spillAbovePerReplica": 512,
        "slowRequestThreshold": "5s",
        "versionStickiness": "Session",
        "shapes": {"longInputTokens": 2048, "longOutputTokens": 512, "veryLongTokens": 16_384, "manyTurns": 12},
        "overLong": {"action": "Refuse", "aboveTokens": 131_072},
    },
    "tenancy": {
        "identity": {"from": "TrustedHeader", "header": "x-paceline-tenant"},
        "default": {
            "requestsPerMinute": 10_000_000,
            "tokensPerMinute": 10_000_000_000,
            "maxConcurrent": 100_000,
        },
        "tenants": [{"name": f"team-{number}", "weight": 1 + number} for number in range(4)],
        "maxQueuedPerTenant": 100_000,
        "maxWait": "30s",
    },
    "slo": {"ttft": {"p90": "800ms", "p99": "2s"}, "tpot": {"p90": "60ms", "p99": "120ms"}},
    "scaling": {"scaleToZero": {"holdRequestsFor": "60s"}},
}
"""What a service entry has beside its name and replicas when every feature is on. The limits are there to be checked on
every request, and high enough that none of them binds."""


def service(ports: Sequence[int], features: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One service entry with its replicas. With everything on, the last replica is a pool for long requests."""
    replicas: list[dict[str, Any]] = [{"url": f"http://127.0.0.1:{port}"} for port in ports]
    if features == ALL and len(replicas) > 1:
        replicas[-1]["pool"] = LONG_POOL
    entry: dict[str, Any] = {"name": SERVICE, "servedName": MODEL, "replicas": replicas}
    return entry | (EVERYTHING if features == ALL else {}) | dict(more or {})


def write_routes(path: Path, *entries: Mapping[str, Any]) -> None:
    """Replace the file in one step, as an operator of it should."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps({"services": entries}))
    new.replace(path)
