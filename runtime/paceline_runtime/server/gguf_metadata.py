"""Reads the key-value head of a GGUF file, and nothing behind it.

The `gguf` library builds a numpy view for each part of each array element, which for a vocabulary of 50,000
tokens takes seconds; the tokenizer needs the values only, and they are read in a tenth of that.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Final

MAGIC: Final = b"GGUF"
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_MAX_ARRAY: Final = 1 << 24


class GGUFError(ValueError):
    """The file is no GGUF file, or is cut short."""


class _Cursor:
    """A position in the file's bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise GGUFError(f"the file ends at byte {len(self._data)}, inside its metadata")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def scalar(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            if count > _MAX_ARRAY:
                raise GGUFError(f"an array of {count} elements is more than {_MAX_ARRAY}")
            if item in _SCALARS:
                form = f"<{count}{_SCALARS[item]}"
                return list(struct.unpack(form, self.take(struct.calcsize(form))))
            return [self.value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise GGUFError(f"value type {kind} is not known")
        return self.scalar(_SCALARS[kind])


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of the file's head; arrays are lists, strings are text.

    Raises:
        GGUFError: when the file is no GGUF file of version 2 or 3, or is cut short.
        OSError: when it cannot be opened.
    """
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise GGUFError(f"{path} is no GGUF file: it does not begin with {MAGIC.decode()}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data)
            cursor.take(4)
            version = cursor.scalar("I")
            if version not in (2, 3):
                raise GGUFError(f"{path} is GGUF version {version}; versions 2 and 3 can be read")
            cursor.scalar("Q")  # number of tensors
            pairs: dict[str, Any] = {}
            for _ in range(cursor.scalar("Q")):
                key = cursor.string()
                pairs[key] = cursor.value(cursor.scalar("I"))
            return pairs
