"""From the bytes of an answer's head to what the router needs of it, and to the lines that the client gets."""

from __future__ import annotations

from typing import Final

import msgspec

from paceline_crds.headers import LOAD, REQUEST_ID
from paceline_router.wire.heads import NOT_RETURNED, SSE_LINES, SSE_REPLACED
from paceline_router.wire.retry_after import readable
from paceline_router.wire.syntax import (
    HEADER_LINE,
    MAX_DIGITS,
    STATUS_LINE,
    LineCache,
    Malformed,
    bare_line_feed,
    content_length,
)

MAX_HEADERS: Final = 256

TIMING: Final = "server-timing"
"""How long the engine took. Not passed on: who asks the router gets the router's account, which has it."""

_READ: Final[dict[bytes, str]] = {
    name.encode(): name
    for name in (
        "content-length",
        "transfer-encoding",
        "connection",
        "content-type",
        "content-encoding",
        "retry-after",
        LOAD,
        TIMING,
        REQUEST_ID,
        *(name.decode() for name in SSE_REPLACED),
    )
}
_RETURNED: Final = frozenset(
    ["content-type", "content-encoding", "retry-after", *(name.decode() for name in SSE_REPLACED)]
)
"""Those of `_READ` that the client gets as well."""

_ONCE: Final = {LOAD.encode(): LOAD, TIMING.encode(): TIMING, REQUEST_ID.encode(): REQUEST_ID}
"""Differ from answer to answer, so remembering them is of no use. None of them goes to the client."""

_lines: Final = LineCache()
"""An empty key goes with the line as the client gets it, another one with the header's value."""
_statuses: Final[dict[bytes, tuple[int, bool]]] = {}


MAX_HEADS: Final = 1024
MAX_SEEN: Final = 8192
MAX_KEPT_HEAD: Final = 1024
_heads: Final[dict[bytes, ResponseHead]] = {}
"""Answers with a Content-Length by their heads, without its digits and without the lines of `_ONCE`."""
_seen: Final[set[int]] = set()
"""Hashes of such heads that have come once: one is kept when it comes again."""

_LOAD_IS, _TIMING_IS, _ID_IS = (b"\r\n%b: " % name for name in _ONCE)
_LOAD_BEGINS: Final = len(_LOAD_IS)
_LENGTH_IS: Final = b"ength: "
_LENGTH_LINE: Final = b"\r\ncontent-length: "


class HeadError(Malformed):
    """The bytes are not the head of an answer that can be passed on."""


class ResponseHead(msgspec.Struct, eq=False, gc=False):
    """Status and headers of an answer.

    Attributes:
        lines: the header lines that go to the client, each ended with CRLF: nothing about the connection, nothing that
            the router writes itself; with those that let a stream through where `sse`.
        length: of the body; None where its end is told otherwise.
        chunked: the body is in chunks.
        sse: a stream of server-sent events.
        encoded: the body is compressed.
        closing: the connection ends after this answer.
        retry_after: value of the header, or one that can be read where it cannot.
        load: value of the replica's load report.
        timing: value of the replica's `server-timing`.
    """

    status: int
    lines: bytes
    length: int | None
    load: bytes | None
    timing: bytes | None = None
    chunked: bool = False
    sse: bool = False
    encoded: bool = False
    closing: bool = False
    retry_after: bytes | None = None

    @property
    def headers(self) -> list[tuple[bytes, bytes, bytes]]:
        """Of each line that goes to the client: name in lower case, name, value."""
        split = (line.split(b": ", 1) for line in self.lines.split(b"\r\n") if line)
        return [(name.lower(), name, value) for name, value in split]


def read_head(head: bytes) -> ResponseHead:
    """The answer that begins with `head`, its lines without the empty one at the end.

    Raises:
        HeadError: in words, about the replica.
    """
    # Without the lines and digits that differ from answer to answer most heads are one that was read before.
    key = head
    load = timing = None
    at = key.find(_LOAD_IS)
    if at >= 0:
        end = key.find(b"\r\n", at + 2)
        if end < 0:
            end = len(key)
        load = key[at + _LOAD_BEGINS : end]
        key = key[:at] + key[end:]
    at = key.find(_TIMING_IS)
    if at >= 0:
        timing, key = _cut(key, at)
    at = key.find(_ID_IS)
    if at >= 0:
        _, key = _cut(key, at)
    at = key.find(_LENGTH_IS)
    value: bytes | None = None
    if at >= 0:
        at += len(_LENGTH_IS)
        end = key.find(b"\r\n", at)
        if end < 0:
            end = len(key)
        value = key[at:end]
        key = key[:at] + key[end:]
    known = _heads.get(key)
    if known is not None and (value is None or (value.isdigit() and len(value) <= MAX_DIGITS)):
        made: ResponseHead = known.__copy__()  # type: ignore[attr-defined] # every Struct has it; the stub does not
        if value is not None:
            made.length = int(value)
        made.load = load
        made.timing = timing
        return made
    made = _read_lines(head)
    if len(key) <= MAX_KEPT_HEAD and _is_usual(made, key, at):
        _keep(key, made)
    return made


def _is_usual(head: ResponseHead, key: bytes, at: int) -> bool:
    """Whether a head can be told from its `key`, in which the digits at `at` are missing; below zero: nothing is."""
    if _LOAD_IS in key or _TIMING_IS in key or _ID_IS in key:
        return False  # given twice
    if at < 0:
        return head.length is None
    return head.status not in (204, 304) and key[:at].lower().endswith(_LENGTH_LINE)


def _cut(head: bytes, at: int) -> tuple[bytes, bytes]:
    """The value of the line that begins at `at`, and the head without that line."""
    begin = head.index(b": ", at) + 2
    end = head.find(b"\r\n", begin)
    return (head[begin:], head[:at]) if end < 0 else (head[begin:end], head[:at] + head[end:])


def _keep(key: bytes, head: ResponseHead) -> None:
    """Remember what a head means when it comes for the second time."""
    seen = hash(key)
    if seen not in _seen:
        if len(_seen) >= MAX_SEEN:
            _seen.clear()
        _seen.add(seen)
        return
    if len(_heads) >= MAX_HEADS:
        _heads.clear()
    _heads[key] = head.__copy__()  # type: ignore[attr-defined]


def _read_lines(head: bytes) -> ResponseHead:
    lines = head.split(b"\r\n")
    start = lines[0]
    status, http10 = _statuses.get(start) or _read_start(start)
    if len(lines) > MAX_HEADERS:
        raise HeadError("it has too many headers")
    del lines[0]
    returned: list[bytes] = []
    read: dict[str, bytes] | None = None
    length: int | None = None
    load: bytes | None = None
    timing: bytes | None = None
    known = _lines.get
    for line in lines:
        key, value = known(line) or _read_line(line)
        if not key:
            returned.append(value)
        elif key == LOAD:
            load = value
        elif key == TIMING:
            timing = value
        elif key == REQUEST_ID:
            pass  # the client gets the router's
        elif key == "content-length" and length is None:
            length = int(value)
        elif read is None:
            read = {key: value}
        elif key in read:
            if key == "transfer-encoding":
                raise HeadError(f"{key} is given twice")
            read[key] += b", " + value
        else:
            read[key] = value
    made = ResponseHead(status, b"".join(returned), length, load, timing)
    if read is not None:
        _take(made, read)
    if http10:
        made.closing = True
    if status == 204 or status == 304:
        made.length = 0
        made.chunked = False
    return made


def _read_start(line: bytes) -> tuple[int, bool]:
    match = STATUS_LINE.fullmatch(line)
    if match is None:
        raise HeadError("its status line is not valid", line)
    start = (int(match[2]), match[1] == b"0")
    if len(_statuses) < LineCache.MAX_LINES and len(line) <= LineCache.MAX_LINE:
        _statuses[line] = start
    return start


def _read_line(line: bytes) -> tuple[str, bytes]:
    start, _, end = line.partition(b": ")
    once = _ONCE.get(start)
    if once is not None:
        return once, end
    match = HEADER_LINE.fullmatch(line)
    if match is None:
        raise HeadError("a header line is not valid", line)
    name, value = match[1].lower(), match[2]
    key = _READ.get(name, "")
    if name == b"content-length" and content_length(value) is None:
        raise HeadError("its content-length is not a number", value)
    if key == "content-type" and not value.lower().startswith(b"text/event-stream"):
        key = ""
    if not key:
        value = b"" if name in NOT_RETURNED else b"%b: %b\r\n" % (match[1], value)
    meaning = (key, value)
    if name not in _ONCE:
        _lines.keep(line, meaning)
    return meaning


def _take(head: ResponseHead, read: dict[str, bytes]) -> None:
    """What the headers mean that most answers do not have."""
    coding = read.get("transfer-encoding")
    if "content-length" in read:
        raise HeadError("content-length is given twice")
    if coding is not None:
        if head.length is not None:
            raise HeadError("it has both content-length and transfer-encoding")
        if coding.lower() != b"chunked":
            raise HeadError("its transfer encoding was not asked for", coding)
        head.chunked = True
    connection = read.get("connection")
    if connection is not None:
        options = [option.strip(b" \t").lower() for option in connection.split(b",")]
        head.closing = b"close" in options
        # What is named there is about the connection (RFC 9110, 7.6.1).
        head.lines = b"".join(b"%b: %b\r\n" % line[1:] for line in head.headers if line[0] not in options)
    after = read.get("retry-after")
    if after is not None:
        head.retry_after = read["retry-after"] = readable(after)
    encoding = read.get("content-encoding")
    head.encoded = encoding is not None and encoding.lower() not in (b"", b"identity")
    head.sse = "content-type" in read
    for name in _RETURNED:
        if name in read and not (head.sse and name.encode() in SSE_REPLACED):
            head.lines += b"%b: %b\r\n" % (name.encode(), read[name])
    if head.sse:
        head.lines += SSE_LINES


def check_beginning(data: bytes) -> None:
    """Refuse the beginning of a head that can never become a valid one, so that nobody waits for its end.

    Raises:
        HeadError: see `read_head`.
    """
    if not b"HTTP/1.".startswith(data[:7]):
        raise HeadError("its status line is not valid", data)
    if bare_line_feed(data):
        raise HeadError("its lines end with LF alone")
