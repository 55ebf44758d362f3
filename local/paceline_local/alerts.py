"""Which alerts fire, as the Prometheus of a local cluster has them. There is no Alertmanager that would tell."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

from paceline_local.errors import UnreachableError

TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True)
class FiringAlert:
    """An alert that fires.

    Attributes:
        severity: `critical` or `warning`.
        since: when its condition began, RFC 3339.
        summary: one sentence with whom it concerns and the numbers.
        runbook: where it says what to do.
    """

    name: str
    severity: str
    since: str
    summary: str
    runbook: str


def firing(prometheus_url: str) -> tuple[FiringAlert, ...]:
    """The alerts that fire now, critical ones first.

    Raises:
        UnreachableError: Prometheus does not answer, or not with its alerts.
    """
    url = f"{prometheus_url}/api/v1/alerts"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            return read(json.load(answer))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreachableError(f"{url} does not tell: {error}") from error


def read(page: dict[str, Any]) -> tuple[FiringAlert, ...]:
    """The alerts of the body of `GET /api/v1/alerts`.

    Raises:
        KeyError: it is of another form.
    """
    found = [
        FiringAlert(
            name=one["labels"]["alertname"],
            severity=one["labels"].get("severity", ""),
            since=one["activeAt"],
            summary=one["annotations"].get("summary", ""),
            runbook=one["annotations"].get("runbook_url", ""),
        )
        for one in page["data"]["alerts"]
        if one["state"] == "firing"
    ]
    return tuple(sorted(found, key=lambda alert: (alert.severity != "critical", alert.name, alert.summary)))
