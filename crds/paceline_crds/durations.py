"""Durations as Go writes them: `800ms`, `1m30s`, `2h`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, WithJsonSchema

from .fields import VALIDATIONS, rule

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "ns": 1e-9}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|ns|h|m|s)")

PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|us|ns|h|m|s))+$"

_RULE = rule(
    r"self.matches('^([0-9]+(\\.[0-9]+)?(ms|us|ns|h|m|s))+$')",
    "write a duration with its unit: 800ms, 30s, 1m30s or 2h",
)

Duration = Annotated[
    str,
    Field(min_length=2, max_length=32, pattern=PATTERN),
    WithJsonSchema({"type": "string", "minLength": 2, "maxLength": 32, VALIDATIONS: [_RULE]}),
]
"""A length of time, kept as the user wrote it."""


def parse_duration(text: str) -> float:
    """Seconds of a duration, e.g. `1m30s` is 90.0.

    Raises:
        ValueError: the text is not a duration; the message says what to write instead.
    """
    if re.fullmatch(PATTERN, text) is None:
        raise ValueError(f"{text!r} is not a duration: write for example 800ms, 30s, 1m30s or 2h")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
