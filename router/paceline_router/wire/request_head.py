"""From the bytes of a request's head to a `Request`: strictly, in words, and without a second reading of lines that
were seen before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from paceline_crds.headers import TENANT
from paceline_router.wire.answers import Refusal
from paceline_router.wire.heads import READ, combined, drop_bad_trace, fault_of, says_nothing
from paceline_router.wire.requests import Request
from paceline_router.wire.syntax import HEADER_LINE, MAX_DIGITS, REQUEST_LINE, LineCache, bare_line_feed, content_length

MAX_HEADERS: Final = 100
MAX_TARGET: Final = 8 * 1024

CHUNKED: Final = -1
"""`Request.length` of a body in chunks."""

_TARGET: Final = re.compile(rb"/.*|https?://.*|\*", re.IGNORECASE)
_METHOD_BEGINS: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}(?: |\Z)|\r?\Z")
_FRAMING: Final[dict[bytes, str]] = {
    name.encode(): name
    for name in (
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "upgrade",
        "expect",
        "content-type",
        "content-encoding",
    )
}
_LISTS: Final = frozenset(["connection", "upgrade", "content-encoding"])
"""May be given in several lines, which make one list."""

_ALSO: Final[set[str]] = set()
"""Read for one service or another: what two lines of them mean is for those to judge."""

_IGNORED: Final = ("", b"")
_PLAIN: Final = frozenset(["host", "content-length", "authorization"])
"""Nothing needs to be looked at when a request has no other header that is read."""

_USUAL: Final = frozenset(["authorization", TENANT])
"""Nothing but whose it is follows from these."""

_ONCE: Final = frozenset([b"traceparent", b"tracestate", b"x-request-id", b"x-paceline-deadline-ms"])
"""Differ from request to request, so remembering them is of no use."""

# Values of `authorization` are in there as well, as they are in the buffers they came in.
_lines: Final = LineCache()
_heads: Final[dict[bytes, Request]] = {}
"""Requests by their whole head without the digits of Content-Length, which is all that differs between most requests
of a client. Only those without a fault.
"""
_seen: Final[set[int]] = set()
"""Hashes of heads that have come once: one is kept when it comes again, so that heads with a header that differs from
request to request do not push out the others.
"""
MAX_HEADS: Final = 1024
MAX_SEEN: Final = 8192
MAX_KEPT_HEAD: Final = 1024

_LENGTH_IS: Final = b"ength: "
_LENGTH_LINE: Final = b"\r\ncontent-l"
_starts: Final[dict[bytes, tuple[bytes, bytes, bool]]] = {}


def read_also(names: Iterable[str]) -> None:
    """Have the headers of these names (lower case) in `Request.headers` from now on."""
    new = {name.encode(): name for name in names if name.encode() not in READ}
    if new:
        READ.update(new)
        _ALSO.update(new.values())
        forget()


def forget() -> None:
    """Read every line anew."""
    _lines.clear()
    _starts.clear()
    _heads.clear()
    _seen.clear()


def read_head(head: bytes) -> Request:
    """The request that begins with `head`, its lines without the empty one at the end. The body is still missing.

    Raises:
        Refusal: the connection cannot be used further, as nobody knows where this request ends.
    """
    value_at = head.find(_LENGTH_IS) + len(_LENGTH_IS)
    value_end = head.find(b"\r\n", value_at)
    key = head[:value_at] + head[value_end:] if value_end > 0 else head[:value_at]
    known = _heads.get(key)
    if known is not None:
        value = head[value_at:value_end] if value_end > 0 else head[value_at:]
        if value.isdigit() and len(value) <= MAX_DIGITS:
            request: Request = known.__copy__()  # type: ignore[attr-defined] # every Struct has it; the stub does not
            request.length = int(value)
            return request
    request = _read_lines(head)
    if (
        request.fault is None
        and request.keep_alive
        and len(key) <= MAX_KEPT_HEAD
        and head[:value_at].lower().endswith(_LENGTH_LINE + _LENGTH_IS)
    ):
        _keep(key, request)
    return request


def _keep(key: bytes, request: Request) -> None:
    """Remember what a head means when it comes for the second time."""
    seen = hash(key)
    if seen not in _seen:
        if len(_seen) >= MAX_SEEN:
            _seen.clear()
        _seen.add(seen)
        return
    if len(_heads) >= MAX_HEADS:
        _heads.clear()
    _heads[key] = request.__copy__()  # type: ignore[attr-defined]


def _read_lines(head: bytes) -> Request:
    lines = head.split(b"\r\n")
    start = lines[0]
    method, target, http10 = _starts.get(start) or _read_start(start)
    headers: dict[str, bytes] = {}
    plain = True
    if len(lines) > MAX_HEADERS + 1:
        raise Refusal(431, f"The request has more than {MAX_HEADERS} headers.", close=True)
    known = _lines.get
    del lines[0]
    for line in lines:
        key, value = known(line) or _read_line(line)
        if key:
            if key in headers:
                value = _together(key, headers[key], value)
            headers[key] = value
            if key not in _PLAIN:
                plain = False
    if headers.pop("host", None) is None and not http10:
        raise Refusal(400, "The header Host is missing.", param="host", close=True)
    length = headers.pop("content-length", None)
    request = Request(method, target, headers, b"", not http10, http10)
    if length is not None:
        request.length = int(length)
    if not plain:
        _look_closer(request, length is not None)
        request.plain = headers.keys() <= _USUAL
    return request


def check_beginning(data: bytes) -> None:
    """Refuse the beginning of a head that can never become a valid one, so that nobody waits for its end.

    Raises:
        Refusal: see `read_head`.
    """
    if data.startswith(b"\x16\x03"):
        raise Refusal(400, "This port speaks plain HTTP, not TLS.", close=True)
    if bare_line_feed(data):
        raise Refusal(400, "Lines of a request end with CR LF, not with LF alone.", close=True)
    line, complete, _ = data.partition(b"\r\n")
    if complete:
        _read_start(line)
    elif _METHOD_BEGINS.match(data) is None:
        raise _bad_start()


def _bad_start() -> Refusal:
    return Refusal(400, "The request line is not valid HTTP/1.1: write METHOD /path HTTP/1.1.", close=True)


def _read_start(line: bytes) -> tuple[bytes, bytes, bool]:
    match = REQUEST_LINE.fullmatch(line)
    if match is None:
        if line.endswith(b" HTTP/2.0"):
            raise Refusal(400, "HTTP/2 is not spoken here; use HTTP/1.1.", close=True)
        raise _bad_start()
    method, target, minor = match.groups()
    if len(target) > MAX_TARGET:
        raise Refusal(414, f"The request's target is longer than {MAX_TARGET} bytes.", close=True)
    if _TARGET.fullmatch(target) is None:
        raise Refusal(400, "The request's target must be a path that begins with a slash.", close=True)
    start = (method, target, minor == b"0")
    if len(line) <= LineCache.MAX_LINE:
        if len(_starts) >= LineCache.MAX_LINES:
            _starts.clear()
        _starts[line] = start
    return start


def _read_line(line: bytes) -> tuple[str, bytes]:
    """Key and value of a header that is read; an empty key for all others."""
    match = HEADER_LINE.fullmatch(line)
    if match is None:
        raise Refusal(
            400,
            "A header line is not valid: write Name: value, without control bytes, white space before the colon or "
            "continued lines.",
            close=True,
        )
    name = match[1].lower()
    key = _FRAMING.get(name) or READ.get(name)
    value = match[2]
    meaning = _IGNORED if key is None or says_nothing(key, value) else (key, value)
    if key == "content-length" and content_length(value) is None:
        raise Refusal(400, "The header Content-Length is not a number.", param="content-length", close=True)
    if name not in _ONCE:
        _lines.keep(line, meaning)
    return meaning


def _together(key: str, earlier: bytes, value: bytes) -> bytes:
    if key in _LISTS or key in _ALSO:
        return b"%b, %b" % (earlier, value)
    together = combined(key, earlier, value)
    if together is None:
        raise Refusal(400, f"The header {key} is given twice.", param=key, close=True)
    return together


def _look_closer(request: Request, announced: bool) -> None:
    """Framing first, since an error there leaves no way to go on; then what one request alone suffers from."""
    headers = request.headers
    coding = headers.pop("transfer-encoding", None)
    if coding is not None:
        if announced:
            raise Refusal(400, "Content-Length and Transfer-Encoding exclude each other; send one.", close=True)
        if request.http10 or coding.lower() != b"chunked":
            raise Refusal(
                400,
                "The only transfer encoding is chunked, and only in HTTP/1.1.",
                param="transfer-encoding",
                close=True,
            )
        request.length = CHUNKED
    connection = headers.pop("connection", None)
    upgrade = headers.pop("upgrade", None)
    if connection is not None:
        options = [option.strip(b" \t").lower() for option in connection.split(b",")]
        if b"close" in options:
            request.keep_alive = False
        if upgrade is not None and b"upgrade" in options:
            raise Refusal(
                400, "The connection cannot be upgraded: send the request without the header Upgrade.", close=True
            )
    expect = headers.pop("expect", None)
    if expect is not None and not request.http10:
        if expect.lower() != b"100-continue":
            raise Refusal(417, "The only expectation that can be met is 100-continue.", param="expect", close=True)
        request.expects = True
    drop_bad_trace(headers)
    request.fault = fault_of(headers)
    headers.pop("content-encoding", None)
    headers.pop("content-type", None)
