"""How every component logs: a JSON object a line in a cluster, sentences at a terminal. Only the standard library.

The identity of what speaks, or of what is spoken about, comes first: the revision. Prompts, answers and keys never are
in a log: records carry named values of `FIELDS` only, and where requests are handled an exception is told by its type
and by where it was raised, since its message may quote what a client sent.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO, TypeAlias

ENV_LOG_FORMAT: Final = "PACELINE_LOG_FORMAT"
"""`json` or `text`. Without it: JSON in a pod, text elsewhere."""

JSON, TEXT = "json", "text"

FIELDS: Final = ("revision", "service", "pool", "decision", "request_id")
"""What a record may carry as `extra`, in this order; anything else of it is not shown."""

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _Formatter(logging.Formatter):
    def __init__(self, form: str | None = None, *, quote: bool = True) -> None:
        """`quote`: whether messages of exceptions are shown."""
        super().__init__(form)
        self._quote = quote

    def formatException(self, ei: ExcInfo) -> str:
        """The traceback; without messages where those may quote a client."""
        if self._quote:
            return super().formatException(ei)
        kind, error, _ = ei
        if kind is None or error is None:
            return ""
        lines = ["Traceback (most recent call last; messages are left out):"]
        chained: BaseException | None = error
        while chained is not None:
            frames = traceback.extract_tb(chained.__traceback__)
            lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
            lines.append(type(chained).__name__)
            chained = chained.__cause__ or (None if chained.__suppress_context__ else chained.__context__)
        return "\n".join(lines)


class JsonLines(_Formatter):
    """A JSON object a line: identity, time (RFC 3339, milliseconds), level, logger, message, exception."""

    def __init__(self, identity: Mapping[str, str], *, quote: bool = True) -> None:
        """`identity` is what this process is, said first in each line; a record's own fields win over it."""
        super().__init__(quote=quote)
        self._identity = {name: value for name, value in identity.items() if value}

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        own = {name: str(record.__dict__[name]) for name in FIELDS if record.__dict__.get(name)}
        named = {**self._identity, **own}
        found: dict[str, Any] = {name: named.pop(name) for name in FIELDS if name in named} | named
        found["time"] = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
        found["level"] = record.levelname.lower()
        found["logger"] = record.name
        found["message"] = record.getMessage()
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def set_up(
    level: int,
    *,
    component: str,
    identity: Mapping[str, str] | None = None,
    quote: bool = True,
    environ: Mapping[str, str] = os.environ,
    stream: TextIO | None = None,
) -> None:
    """Send all logs of this process to standard error.

    Args:
        component: `operator`, `router`, `server`, `core`, `recorder`.
        identity: what this process is, such as the revision that it runs.
        quote: whether messages of exceptions are shown: not where requests are handled.

    Raises:
        ValueError: `PACELINE_LOG_FORMAT` is another word.
    """
    form = environ.get(ENV_LOG_FORMAT) or (JSON if environ.get("KUBERNETES_SERVICE_HOST") else TEXT)
    if form not in (JSON, TEXT):
        raise ValueError(f"{ENV_LOG_FORMAT}={form!r}: write {JSON} or {TEXT}")
    handler = logging.StreamHandler(stream or sys.stderr)
    if form == JSON:
        handler.setFormatter(JsonLines({**(identity or {}), "component": component}, quote=quote))
    else:
        handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", quote=quote))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def decision(*, service: str, reason: str, revision: str | None = None, pool: str | None = None) -> dict[str, str]:
    """The `extra` of a record that tells a decision: about what, and which."""
    named = {"revision": revision, "service": service, "pool": pool, "decision": reason}
    return {name: value for name, value in named.items() if value}
