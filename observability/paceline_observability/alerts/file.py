"""The rules as a file of Prometheus, and how Alertmanager should treat what they send."""

from __future__ import annotations

from typing import Any, Final

import yaml

from .rule import Windows
from .rules import alerts

GROUP: Final = "paceline"
INTERVAL: Final = "30s"
"""Between evaluations."""

ROUTING: Final[dict[str, Any]] = {
    "route": {
        "receiver": "tickets",
        # One message for what goes wrong with one service, however many alerts tell of it.
        "group_by": ["namespace", "service"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "12h",
        "routes": [{"matchers": ['severity="critical"'], "receiver": "page"}],
    },
    "inhibit_rules": [
        # Who is woken for a service gets no ticket for it too.
        {
            "source_matchers": ['severity="critical"', 'alertname=~"Paceline.+"'],
            "target_matchers": ['severity="warning"', 'alertname=~"Paceline.+"'],
            "equal": ["namespace", "service"],
        },
        # That nothing is answered says why the promise is not kept.
        {
            "source_matchers": ['alertname="PacelineNoAnswers"'],
            "target_matchers": ['alertname="PacelineBudgetBurning"'],
            "equal": ["namespace", "service"],
        },
    ],
}
"""Of Alertmanager's configuration all but the receivers, `page` and `tickets`."""


def rule_file(windows: Windows) -> str:
    """The text of a file for `rule_files`."""
    group: dict[str, Any] = {"name": GROUP, "interval": windows(INTERVAL)}
    return _yaml({"groups": [group | {"rules": [alert.rule() for alert in alerts(windows)]}]})


def routing_file() -> str:
    """The text of `ROUTING`."""
    return _yaml(ROUTING)


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(data: Any) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=1000)
