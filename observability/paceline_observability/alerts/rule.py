"""What an alert is, and how it becomes a rule of Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from paceline_crds.durations import parse_duration

Severity = Literal["critical", "warning"]
"""`critical`: users feel it now, somebody is woken. `warning`: it can wait for the morning."""

RUNBOOKS: Final = "docs/runbooks"
"""Where the pages are in a checkout; the chart's `monitoring.runbookURL` takes its place."""

RUNBOOKS_OBJECT: Final = "paceline-runbooks"
"""The ConfigMap of the chart that has them."""

NAMESPACE: Final = "paceline-system"
"""Where that is; the chart puts its own in the place of this one."""

_UNITS: Final = ((3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))


@dataclass(frozen=True, slots=True)
class Windows:
    """Lengths of time as rules have them.

    Attributes:
        shorten: what all of them are divided by: 1 as shipped, for scrapes every 15 to 30 s; more for trials with more
            frequent scrapes. A window must hold four scrapes.
    """

    shorten: float = 1.0

    def __call__(self, duration: str) -> str:
        """A duration (Go style, `1h30m`), shortened, in the notation of Prometheus.

        Raises:
            ValueError: nothing would be left of it.
        """
        milliseconds = round(parse_duration(duration) * 1000 / self.shorten)
        if milliseconds < 1:
            raise ValueError(f"{duration} divided by {self.shorten:g} leaves nothing; shorten by less")
        size, unit = next((size, unit) for size, unit in _UNITS if milliseconds % size == 0)
        return f"{milliseconds // size}{unit}"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule.

    Attributes:
        name: of the alert, and of its runbook.
        expr: in PromQL; its labels are those of the alert.
        severity: or a template for one, where it depends on the labels.
        summary: one sentence with the numbers; a template.
        waits: how long the expression must hold.
        keeps: how long the alert goes on firing without it, so that a lost scrape ends nothing.
    """

    name: str
    expr: str
    severity: Severity | str
    summary: str
    waits: str | None = None
    keeps: str | None = None

    @property
    def runbook(self) -> str:
        """Address of its page."""
        return f"{RUNBOOKS}/{self.name}.md"

    @property
    def read(self) -> str:
        """The command that shows its page, as the chart brought it into the cluster."""
        return f"kubectl get configmap {RUNBOOKS_OBJECT} -n {NAMESPACE} -o jsonpath='{{.data.{self.name}\\.md}}'"

    def rule(self) -> dict[str, Any]:
        """The rule as a file of Prometheus has it."""
        times = {"for": self.waits, "keep_firing_for": self.keeps}
        return {
            "alert": self.name,
            "expr": self.expr,
            **{key: value for key, value in times.items() if value is not None},
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "runbook_url": self.runbook, "runbook": self.read},
        }
