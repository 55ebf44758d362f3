"""Kubernetes quantities and Go durations: the official grammars, stricter than what Python libraries accept."""

from __future__ import annotations

import re
from decimal import Decimal

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][0-9]{1,2})?$"
"""Non-negative quantity: one decimal number with at most one suffix or exponent (not `1e3Mi`, `6GiB`, `1K`)."""

SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
"""A size in bytes: a quantity without the fractions of a byte."""

DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"

_FACTORS = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** n for n, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Decimal(1024) ** n for n, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_quantity(text: str) -> Decimal:
    """The value of a Kubernetes quantity.

    Raises:
        ValueError: when `text` is not of the grammar, with an example of what to write.
    """
    if not re.fullmatch(QUANTITY_PATTERN[1:-1], text, re.ASCII):
        raise ValueError(f"{text!r} is not a Kubernetes quantity; write for example 6Gi, 500m or 2")
    number, suffix = re.match(r"([0-9.]+)(.*)", text).groups()  # type: ignore[union-attr]
    if suffix[:1] in ("e", "E") and suffix[1:].isdigit():
        return Decimal(number) * Decimal(10) ** int(suffix[1:])
    return Decimal(number) * _FACTORS[suffix]


def parse_size(text: str) -> int:
    """Bytes of a size such as `20Gi`; parts of a byte are rounded down.

    Raises:
        ValueError: as `parse_quantity`.
    """
    return int(parse_quantity(text))


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as `1m30s`.

    Raises:
        ValueError: when `text` is not of that form.
    """
    if not re.fullmatch(DURATION_PATTERN[1:-1], text, re.ASCII):
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 1m30s or 500ms")
    return sum(float(n) * _SECONDS[unit] for n, unit in re.findall(r"([0-9.]+)(ms|s|m|h)", text))
