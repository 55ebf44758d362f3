"""Headers of a request that mean something to a replica; a malformed one is refused by its name."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from paceline_crds import headers

from .errors import ApiError, bad_request

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_TOKEN: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,126}[\x21-\x7e])?")
_FLAG: Final = re.compile(r"[01]")
_MAX_DEADLINE_MS: Final = 7 * 24 * 3600 * 1000
PRIORITY_CLASSES: Final = {"high": -1, "normal": 0, "low": 1}
_FORMS: Final[dict[str, tuple[re.Pattern[str], str]]] = {
    headers.INTERNAL_REQUEST_ID: (_REQUEST_ID, "1 to 128 letters, digits and . _ : / + = @ -"),
    headers.DEADLINE_MS: (re.compile(r"[0-9]{1,10}"), "the milliseconds that remain, a whole number"),
    headers.TENANT: (_TOKEN, "1 to 128 printable ASCII characters"),
    headers.SESSION: (_TOKEN, "1 to 128 printable ASCII characters"),
    headers.PRIORITY: (re.compile(r"[+-]?[0-9]{1,4}|[A-Za-z][A-Za-z0-9-]{0,62}"), "a whole number or a class's name"),
    headers.PROMPT_VERSION: (_TOKEN, "1 to 128 printable ASCII characters"),
    headers.REVISION: (_TOKEN, "1 to 128 printable ASCII characters"),
    headers.SHAPE: (_TOKEN, "1 to 128 printable ASCII characters"),
    headers.SHADOW: (_FLAG, "0 or 1"),
    headers.EXPLAIN: (_FLAG, "0 or 1"),
}


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the headers say.

    Attributes:
        request_id: the router's, else the client's, else a new one.
        deadline_seconds: what remains of the client's time, if it said so.
        tenant: who pays; empty where nobody said.
        session: of which conversation this is a part.
        prompt_version: of the application's prompt, for metrics.
        priority: lower is sooner; `None` where it was not said.
        timing: whether the answer shall say how long it took inside: who asks is told, and a router always.
        routed: a router sent it.
        fault: why the request must be refused.
    """

    request_id: str
    deadline_seconds: float | None = None
    tenant: str = ""
    session: str = ""
    prompt_version: str = ""
    priority: int | None = None
    timing: bool = False
    routed: bool = False
    fault: ApiError | None = None


def read(raw: Iterable[tuple[bytes, bytes]]) -> RequestContext:
    """The context of a request, from its raw headers (names in lower case). Never raises: see `fault`."""
    found: dict[str, str] = {}
    fault: ApiError | None = None
    client_id: str | None = None
    for raw_name, raw_value in raw:
        name = raw_name.decode("latin-1")
        if name == headers.REQUEST_ID:
            client_id = raw_value.decode("latin-1")
        if name not in _FORMS:
            continue
        value = raw_value.decode("latin-1").strip()
        pattern, form = _FORMS[name]
        if name in found:
            fault = fault or bad_request(f"The header {name} is there twice; send it once.", name, "invalid_header")
        elif not pattern.fullmatch(value):
            fault = fault or bad_request(f"The header {name} must be {form}.", name, "invalid_header")
        else:
            found[name] = value
    request_id = found.get(headers.INTERNAL_REQUEST_ID)
    if request_id is None:
        # A client's own id is a convenience; one that could not be repeated in a header is replaced, not refused.
        valid = client_id is not None and _REQUEST_ID.fullmatch(client_id)
        request_id = client_id if valid and client_id is not None else uuid.uuid4().hex
    try:
        priority, deadline = _priority(found.get(headers.PRIORITY)), _deadline(found.get(headers.DEADLINE_MS))
    except ApiError as error:
        priority = deadline = None
        fault = fault or error
    routed = headers.INTERNAL_REQUEST_ID in found
    return RequestContext(
        request_id,
        deadline_seconds=deadline,
        tenant=found.get(headers.TENANT, ""),
        session=found.get(headers.SESSION, ""),
        prompt_version=found.get(headers.PROMPT_VERSION, ""),
        priority=priority,
        timing=found.get(headers.EXPLAIN) == "1" or routed,
        routed=routed,
        fault=fault,
    )


def _deadline(value: str | None) -> float | None:
    if value is None:
        return None
    if int(value) > _MAX_DEADLINE_MS:
        raise bad_request(
            f"The header {headers.DEADLINE_MS} is more than {_MAX_DEADLINE_MS}; it is the time that remains, not a "
            "point in time.",
            headers.DEADLINE_MS,
            "invalid_header",
        )
    return int(value) / 1000


def _priority(value: str | None) -> int | None:
    if value is None:
        return None
    if value[0].isalpha():
        if value in PRIORITY_CLASSES:
            return PRIORITY_CLASSES[value]
        raise bad_request(
            f"The header {headers.PRIORITY} names no class; the classes are {', '.join(PRIORITY_CLASSES)}, or send a "
            "whole number (lower is sooner).",
            headers.PRIORITY,
            "invalid_header",
        )
    return int(value)
