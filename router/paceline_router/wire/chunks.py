"""The chunked transfer coding, walked exactly: where whole chunks end, and where whole server-sent events end.

A streamed answer goes to the client as the bytes that came from the replica. Only whole chunks that end a whole
event are passed on, so that an error event can be put after them at any moment without landing inside another.
"""

from __future__ import annotations

import re
from typing import Final

from paceline_router.wire.syntax import HEADER_LINE, Malformed

MAX_SIZE_LINE: Final = 256
MAX_CHUNK: Final = 16 * 1024 * 1024
MAX_TRAILER: Final = 8 * 1024
MAX_SPLIT_EVENT: Final = 256 * 1024
"""Past this many held bytes an event that spans chunks is passed on in parts."""

ENDING: Final = 4
"""Bytes of the longest end of an event, two times CR LF."""

LAST_CHUNK: Final = b"0\r\n\r\n"

MAX_SIZES: Final = 4096
_SIZES: Final[dict[bytes, int]] = {}
"""Size lines seen before: most chunks of a stream have one of a few sizes."""

# Control bytes in an extension, a lone LF above all, are where two readers come to differ.
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")

_LINES_OF_ONE_EVENT: Final = 4
"""Size line, the event's line, the empty line that ends it, the end of the chunk."""

TAIL: Final = 4096
SMALL_PIECE: Final = 64
"""Bytes. What follows the last event with content, `[DONE]` and the end of the body, may come in pieces that are no
larger.
"""


class ChunkError(Malformed):
    """The bytes are not a chunked body, or a chunk is larger than `MAX_CHUNK`."""


def chunk_size(line: bytes) -> int:
    """The size in a chunk's first line, extensions ignored.

    Raises:
        ChunkError: not a hexadecimal number, or too large.
    """
    match = _SIZE_LINE.fullmatch(line)
    if match is None:
        raise ChunkError("the size of a chunk is not a hexadecimal number", line)
    size = int(match[1], 16)
    if size > MAX_CHUNK:
        raise ChunkError(f"a chunk of {size} bytes is larger than {MAX_CHUNK}")
    # Of a chunk shorter than what ends an event its own bytes tell too little for the quick look of `feed`.
    if (size >= ENDING or size == 0) and len(_SIZES) < MAX_SIZES and len(line) <= len(b"ffffffff"):
        _SIZES[line] = size
    return size


class ChunkWalker:
    """Takes a chunked body in pieces of any size and gives back the same bytes, cut at the end of whole chunks, and
    without the trailer.

    With `events=True` they are cut where a chunk ends a server-sent event (an empty line).
    """

    __slots__ = (
        "_end",
        "_events",
        "_held",
        "_last",
        "_need",
        "_parts",
        "_size",
        "_walked",
        "events",
        "finished",
        "surplus",
        "tail",
    )

    def __init__(self, events: bool = False) -> None:
        self._events = events
        self._end = b"\n\n\r\n" if events else b"\r\n"
        self._held = b""
        self._walked = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._need = 0
        self._last = b""
        self.events = 0
        """Server-sent events that have been given back, each ended by an empty line."""
        self.tail = b""
        """The end of the last piece given back that was not small: the last event before `[DONE]` is in it."""
        self.finished = False
        """The last chunk and the trailer have been seen."""
        self.surplus = b""
        """Bytes after the end of the body: not part of it."""

    @property
    def held(self) -> int:
        """Bytes that are kept here until more have come."""
        return self._size if self._parts else len(self._held)

    def feed(self, data: bytes) -> bytes:
        """The next bytes that may be passed on; may be empty.

        Raises:
            ChunkError: see the class.
        """
        if not self._held and not self._parts:
            # Nearly always a read brings one whole chunk with one whole event.
            line_end = data.find(b"\r\n")
            size = _SIZES.get(data[:line_end])
            if size and line_end + 4 + size == len(data) and data.endswith(self._end):
                self.tail = data if size < TAIL else data[-TAIL:]
                if self._events:
                    # One event of one line makes four line ends; counting single bytes is the cheaper way to see it.
                    self.events += 1 if data.count(b"\n") == _LINES_OF_ONE_EVENT else data.count(b"\n\n")
                return data
        whole = self._walk(data)
        if self._events:
            self.events += count_events(whole)
        if len(whole) > SMALL_PIECE:
            self.tail = whole[-TAIL:]
        return whole

    def _walk(self, data: bytes) -> bytes:
        if self._parts:
            # A large chunk in many pieces is joined once, when it is complete.
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._need:
                return b""
            data = b"".join(self._parts)
            self._parts = []
        elif self._held:
            data = self._held + data
            self._held = b""
        size = len(data)
        position = self._walked
        last = self._last
        self._last = b""
        cut = 0
        need = 0
        while position < size:
            line_end = data.find(b"\r\n", position, position + MAX_SIZE_LINE)
            if line_end < 0:
                if size - position >= MAX_SIZE_LINE:
                    raise ChunkError("a chunk's size line is too long")
                break
            line = data[position:line_end]
            known = _SIZES.get(line)
            length = chunk_size(line) if known is None else known
            if length == 0:
                end = self._trailer_end(data, line_end)
                if end < 0:
                    break
                self.finished = True
                self.surplus = data[end:]
                if end == position + len(LAST_CHUNK):
                    return data if end == size else data[:end]
                # Headers in a trailer have passed no filter: nobody who is told of a body's end needs any.
                return data[:position] + LAST_CHUNK
            end = line_end + 4 + length
            if end > size:
                need = end
                break
            if data[end - 2 : end] != b"\r\n":
                raise ChunkError("a chunk does not end where its size says")
            if not self._events:
                cut = end
            else:
                # What ends a short chunk may have begun in the ones before it, and never in its own size line.
                last = (
                    data[end - 6 : end - 2] if length >= ENDING else (last + data[end - 2 - length : end - 2])[-ENDING:]
                )
                if last.endswith(b"\n\n") or last == b"\r\n\r\n":
                    cut = end
            position = end
        if position - cut > MAX_SPLIT_EVENT:
            cut = position
        self._walked = position - cut
        if cut == size:
            return data
        self._last = last
        rest = data[cut:] if cut else data
        if need:
            self._parts = [rest]
            self._size = size - cut
            self._need = need - cut
        else:
            self._held = rest
        return data[:cut]

    @staticmethod
    def _trailer_end(data: bytes, line_end: int) -> int:
        """Where the body ends, given the end of the last chunk's size line; -1 when more bytes are needed."""
        if data[line_end + 2 : line_end + 4] == b"\r\n":
            return line_end + 4
        end = data.find(b"\r\n\r\n", line_end)
        if end - line_end > MAX_TRAILER or (end < 0 and len(data) - line_end > MAX_TRAILER):
            raise ChunkError("the trailer is too long")
        if end < 0:
            return -1
        for line in data[line_end + 2 : end].split(b"\r\n"):
            if HEADER_LINE.fullmatch(line) is None:
                raise ChunkError("a line of the trailer is not a header", line)
        return end + 4


def count_events(whole: bytes) -> int:
    """Server-sent events that end in whole chunks."""
    # In the chunks' own lines and in JSON no two line feeds follow each other.
    found = whole.count(b"\n\n")
    if found == 0 and b"\r\n\r\n\r\n" in whole:
        found = whole.count(b"\r\n\r\n\r\n")  # events whose lines end with CR LF
    return found


def as_chunk(payload: bytes) -> bytes:
    """One chunk with this payload, which must not be empty (an empty chunk ends a body)."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def dechunk(body: bytes) -> bytes:
    """The payload of whole chunks, as `ChunkWalker.feed` returns them."""
    parts: list[bytes] = []
    position = 0
    while position < len(body):
        line_end = body.index(b"\r\n", position)
        length = chunk_size(body[position:line_end])
        if length == 0:
            break
        parts.append(body[line_end + 2 : line_end + 2 + length])
        position = line_end + 4 + length
    return b"".join(parts)
