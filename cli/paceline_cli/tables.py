"""Text for terminals: columns, times and counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

NOT_KNOWN = "not known"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows under each other, the first one the heads; no spaces at line ends."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
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
