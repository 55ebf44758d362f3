"""Stop strings, found across the borders of tokens and never shown."""

from __future__ import annotations

from collections.abc import Sequence


def possible_start(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins one of `markers` and is not yet the whole of it."""
    for size in range(min(len(text), max(map(len, markers), default=0) - 1), 0, -1):
        tail = text[-size:]
        if any(marker.startswith(tail) for marker in markers):
            return size
    return 0


class StopMatcher:
    """Passes text on until one of the stop strings is complete.

    Text is held back only while it may still become a stop string. The one that is complete first ends the answer; of
    those that end at the same character, the longest. So the result does not depend on how the text was cut.

    Args:
        include: show the stop string too, as the end of the answer.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the answer."""

    def feed(self, text: str) -> str:
        """Add text; what may be shown now. Nothing is shown after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        hit = self._first_match()
        if hit is not None:
            start, self.matched = hit
            end = start + len(self.matched) if self._include else start
            shown, self._held = self._held[:end], ""
            return shown
        keep = possible_start(self._held, self._stops)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def skip(self, text: str) -> str:
        """Text in which no stop string is looked for, nor one begun."""
        return "" if self.matched is not None else self.flush() + text

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_match(self) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = self._held.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])
