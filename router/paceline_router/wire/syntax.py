"""The grammar of HTTP/1.1 heads (RFC 9110, 5; RFC 9112, 2 to 5), read strictly: what another reader might take
differently is an error.
"""

from __future__ import annotations

import re
from typing import Final

REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
HEADER_LINE: Final = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+((?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)[ \t]*"
)
"""Name and value. A line that begins with white space (obs-fold), space before the colon, and control bytes fail.

The white space before the value is never given back: tried at every length, it would cost the square of its length.
"""

SHOWN: Final = 40
"""Bytes of what is malformed that are kept for the log."""

MAX_DIGITS: Final = 15
"""Of a Content-Length."""


class Malformed(ValueError):
    """Bytes that break the grammar. Its words are for whoever asks; the bytes themselves may be somebody else's, so
    they are kept apart, for the log.
    """

    def __init__(self, words: str, found: bytes = b"") -> None:
        super().__init__(words)
        self.found = found[:SHOWN]


def content_length(value: bytes) -> int | None:
    """The number of a Content-Length; None for anything but digits."""
    if value.isdigit() and len(value) <= MAX_DIGITS:
        return int(value)
    return None


def bare_line_feed(head: bytes) -> bool:
    """Whether a line ends with LF alone: lenient readers take it for an end, strict ones do not."""
    return head.count(b"\n") != head.count(b"\r\n")


class LineCache(dict[bytes, "tuple[str, bytes]"]):
    """What lines seen before mean: connections repeat the same few, and looking one up costs a tenth of reading it.

    Bounded in entries and in the size of each; full, it begins anew.
    """

    MAX_LINES: Final = 4096
    MAX_LINE: Final = 256

    def keep(self, line: bytes, meaning: tuple[str, bytes]) -> None:
        """Remember a line."""
        if len(line) <= self.MAX_LINE:
            if len(self) >= self.MAX_LINES:
                self.clear()
            self[line] = meaning
