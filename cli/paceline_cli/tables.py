"""Text for terminals: columns, times and counts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime

NOT_KNOWN = "not known"

LEAST_WIDTH = 8
"""No column is made narrower."""


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows under each other, the first one the heads; no spaces at line ends."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def fitted(rows: Sequence[Sequence[str]], width: int, shrinking: Sequence[int]) -> list[list[str]]:
    """Rows whose `columns` take at most `width`, as far as the shrinking columns can give: their longest cells lose
    their middles, since names differ at both ends.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    while sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(shrinking, key=lambda column: widths[column])
        if widths[widest] <= LEAST_WIDTH:
            break
        widths[widest] -= 1
    return [[middled(cell, widths[at]) if at in shrinking else cell for at, cell in enumerate(row)] for row in rows]


def middled(text: str, limit: int) -> str:
    """At most `limit` characters, the middle left out."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 2
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def folded(text: str, width: int, by: int = 4) -> str:
    """A sentence folded at spaces into `width`, moved to the right. What has none, a URL, stays whole."""
    space = " " * by
    lines = textwrap.wrap(
        text, width, initial_indent=space, subsequent_indent=space, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def indented(rows: Sequence[Sequence[str]], by: int = 2) -> str:
    """`columns`, moved to the right."""
    return "\n".join(" " * by + line for line in columns(rows).splitlines())


def seconds_of(stamp: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None where it is none."""
    if not stamp:
        return None
    try:
        parsed = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def stamp_of(seconds: float) -> str:
    """RFC 3339 in UTC with whole seconds, as the API server writes times."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(since: float | None, now: float) -> str:
    """How long ago, in one or two units; a clock that is behind says 0s."""
    if since is None:
        return NOT_KNOWN
    return duration(max(now - since, 0.0))


def duration(seconds: float) -> str:
    """`42s`, `12m`, `3h20m`, `4d`."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 2 * 3600:
        return f"{whole // 60}m"
    if whole < 48 * 3600:
        minutes = whole % 3600 // 60
        return f"{whole // 3600}h{minutes}m" if minutes else f"{whole // 3600}h"
    return f"{whole // 86400}d"


def shortened(text: str, limit: int) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
