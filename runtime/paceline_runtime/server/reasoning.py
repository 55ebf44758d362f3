"""Parts what a model thinks from what it says: `<think>…</think>` before the answer."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from .stop import possible_start

BEGIN: Final = "<think>"
END: Final = "</think>"
MARKERS: Final = frozenset({BEGIN, END})


@dataclass(frozen=True, slots=True)
class Parted:
    """A piece of text, parted."""

    reasoning: str = ""
    content: str = ""


class _State(enum.Enum):
    BEFORE = enum.auto()
    INSIDE = enum.auto()
    AFTER = enum.auto()


class ReasoningSplitter:
    """Text before, in and after the thoughts of one answer. What it gives does not depend on how the text was cut.

    White space around the thoughts is dropped, since it belongs to the markers and not to the answer.

    Args:
        inside: whether the prompt itself ends with `<think>`, so that the answer begins with thoughts.
    """

    def __init__(self, *, inside: bool) -> None:
        self._state = _State.INSIDE if inside else _State.BEFORE
        self._held = ""
        self._trim = inside

    def feed(self, text: str) -> Parted:
        """Add text; what is now certain."""
        if self._state is _State.AFTER:
            return Parted(content=self._trimmed(text))
        self._held += text
        if self._state is _State.BEFORE:
            body = self._held.lstrip()
            if body.startswith(BEGIN):
                self._held, self._state, self._trim = body[len(BEGIN) :], _State.INSIDE, True
            elif BEGIN.startswith(body):
                return Parted()
            else:
                self._state, held, self._held = _State.AFTER, self._held, ""
                return Parted(content=held)
        at = self._held.find(END)
        if at >= 0:
            thoughts, rest = self._held[:at], self._held[at + len(END) :]
            reasoning = self._trimmed(thoughts.rstrip())
            self._held, self._state, self._trim = "", _State.AFTER, True
            return Parted(reasoning, self._trimmed(rest))
        keep = possible_start(self._held, (END,))
        ready = self._held[: len(self._held) - keep].rstrip()
        self._held = self._held[len(ready) :]
        return Parted(reasoning=self._trimmed(ready))

    def flush(self) -> Parted:
        """The end: what was held back."""
        held, self._held = self._held, ""
        if self._state is _State.INSIDE:
            return Parted(reasoning=self._trimmed(held.rstrip()))
        return Parted(content=held)

    def _trimmed(self, text: str) -> str:
        """White space at the beginning of a part is dropped."""
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        return text


def thinks(template: str) -> bool:
    """Whether a chat template is that of a model which thinks aloud."""
    return END in template or BEGIN in template
