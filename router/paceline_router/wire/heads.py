"""Which headers are read, passed on, or dropped, in each direction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from paceline_crds import headers as names
from paceline_router.wire.answers import Refusal

TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
TRACE_STATE_CHARACTERS: Final = 512
TRACE_STATE_MEMBERS: Final = 32
_LONG_MEMBER: Final = 128

# Towards the replica only what is named here goes: never cookies, keys, Host or anything about the client's
# connection, and never the headers by which router and replica talk to each other. Whose request it is says
# `Tenant.line`.
PASSED_ON: Final[tuple[tuple[str, bytes], ...]] = tuple(
    (name, name.encode())
    for name in (
        names.SESSION,
        names.PRIORITY,
        names.PROMPT_VERSION,
        names.DEADLINE_MS,
        TRACE_PARENT,
        TRACE_STATE,
    )
)

_FORMS: Final[dict[str, tuple[re.Pattern[bytes], str]]] = {
    names.TENANT: (re.compile(rb"[\x21-\x7e]{1,128}"), "1 to 128 visible ASCII characters"),
    names.SESSION: (re.compile(rb"[\x21-\x7e]{1,128}"), "1 to 128 visible ASCII characters"),
    names.PRIORITY: (
        re.compile(rb"[+-]?[0-9]{1,4}|high|normal|low"),
        "a whole number (lower is sooner), or high, normal or low",
    ),
    names.PROMPT_VERSION: (re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}"), "letters, digits and . _ : -, at most 64"),
    names.DEADLINE_MS: (re.compile(rb"[1-9][0-9]{0,8}"), "the milliseconds left, for example 30000"),
    names.REVISION: (
        re.compile(rb"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"),
        "the name of a revision, for example chat-7f3c9",
    ),
    names.EXPLAIN: (re.compile(rb"[01]"), "0 or 1"),
}

_JSON: Final = re.compile(rb"[ \t]*(application/json|[^;]*\+json)[ \t]*(;.*)?", re.IGNORECASE)

READ: Final[dict[bytes, str]] = {name.encode(): name for name in (*_FORMS, TRACE_PARENT, TRACE_STATE, "authorization")}
"""Request headers that the data path may look at, by their names in lower case. `request_head.read_also` adds to it."""

# Version 00 ends after the flags, later ones may have more, and there is no ff. Identifiers of zeros only are invalid.
_TRACE_IDS: Final = rb"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACE_PARENT: Final = re.compile(rb"00%b|(?!00|ff)[0-9a-f]{2}%b(?:-[\x21-\x7e]{1,256})?" % (_TRACE_IDS, _TRACE_IDS))
_TRACE_MEMBER: Final = re.compile(
    rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)

# About one connection (RFC 9110, 7.6.1), or written anew by the router.
NOT_RETURNED: Final[frozenset[bytes]] = frozenset(
    [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"server",
        b"set-cookie",
        *(
            name.encode()
            for name in (
                names.REQUEST_ID,
                names.INTERNAL_REQUEST_ID,
                names.LOAD,
                names.POOL,
                names.REVISION,
                names.REASON,
                names.SHADOW,
                names.SHAPE,
            )
        ),
    ]
)

SSE_REPLACED: Final[frozenset[bytes]] = frozenset([b"cache-control", b"x-accel-buffering"])
SSE_LINES: Final = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
"""Tells proxies on the way to hold nothing back; the replica's own words about it give way."""


def fault_of(values: Mapping[str, bytes]) -> Refusal | None:
    """What is wrong with headers that concern one request alone: a malformed Paceline header, or a body that is not
    plain JSON. The connection can be used further.
    """
    for name, value in values.items():
        form = _FORMS.get(name)
        if form is not None:
            if form[0].fullmatch(value) is None:
                return Refusal(400, f"The header {name} is malformed: write {form[1]}.", param=name)
        elif name == "content-encoding":
            if any(coding.strip(b" \t").lower() not in (b"identity", b"") for coding in value.split(b",")):
                return Refusal(415, "Send the body without a content-encoding.", param=name)
        elif name == "content-type" and _JSON.fullmatch(value) is None:
            # As the replica has it: no content type at all is taken for JSON.
            return Refusal(415, "Send JSON, with the header content-type: application/json.", param=name)
    return None


def says_nothing(name: str, value: bytes) -> bool:
    """Whether a header only says what would be so without it, as most lines of this kind do."""
    if name == "content-type":
        return _JSON.fullmatch(value) is not None
    if name == "connection":
        return value.lower() == b"keep-alive"
    return name == "content-encoding" and value.lower() == b"identity"


def combined(name: str, earlier: bytes, value: bytes) -> bytes | None:
    """The value of a header that is given in two lines; None where that is a mistake of the client's."""
    if name == TRACE_STATE:
        return b"%b,%b" % (earlier, value)
    if name == TRACE_PARENT:
        return b""  # neither can be believed, and `drop_bad_trace` takes it out
    return None


def drop_bad_trace(values: dict[str, bytes]) -> None:
    """Take tracing headers that cannot be used out of `values`, so that the replica begins a new trace.

    A broken trace must never break the request (W3C Trace Context, 3.2 and 3.3). State without a parent means nothing.
    """
    parent = values.get(TRACE_PARENT)
    state = values.pop(TRACE_STATE, None)
    if parent is None:
        return
    if _TRACE_PARENT.fullmatch(parent) is None:
        del values[TRACE_PARENT]
    elif state is not None:
        kept = _trace_state(state)
        if kept:
            values[TRACE_STATE] = kept


def _trace_state(value: bytes) -> bytes:
    """The list in its plain form; empty when it is invalid.

    A long list loses whole members: those over 128 characters first, then from the end, where the oldest are.
    """
    members = [member for part in value.split(b",") if (member := part.strip(b" \t"))]
    if len(members) > TRACE_STATE_MEMBERS or any(_TRACE_MEMBER.fullmatch(member) is None for member in members):
        return b""
    while members and sum(map(len, members)) + len(members) - 1 > TRACE_STATE_CHARACTERS:
        long = [at for at, member in enumerate(members) if len(member) > _LONG_MEMBER]
        del members[long[-1] if long else -1]
    return b",".join(members)


def passed_on(values: Mapping[str, bytes]) -> bytes:
    """The header lines of a request that go to the replica."""
    return b"".join([b"%b: %b\r\n" % (wire, values[name]) for name, wire in PASSED_ON if name in values])
