"""From the recorder's pages to the evidence of the shadow step, in windows. Pure.

A pair comes to the recorder when both answers are complete, up to two minutes after its request; so a window is asked
for again until nothing more can come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline_shadow_traffic.comparisons_page import window
from paceline_shadow_traffic.evidence import Seen, Window
from paceline_shadow_traffic.pages import PageError

LATE_WINDOWS = 5
"""For which a window is asked for again, after it has ended."""

MOST_AT_ONCE = 60
"""Windows of one look; an operator that was away begins with the newest."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a recorder said of one shadow step.

    Attributes:
        since: begin of the evidence, seconds since the epoch.
        length: of a window, seconds.
        said: by number of the window, what it holds by place; None where the recorder did not answer.
        trouble: why the last look has no numbers; empty where it has.
    """

    since: float
    length: float
    said: Mapping[int, Mapping[str, Window] | None] = field(default_factory=dict)
    trouble: str = ""

    def due(self, now: float) -> list[tuple[int, float, float]]:
        """Windows to ask for: their numbers, begins and ends."""
        ended = int((now - self.since) // self.length)
        wanted = [
            number
            for number in range(max(0, ended - MOST_AT_ONCE), ended)
            if self.said.get(number) is None or number >= ended - LATE_WINDOWS
        ]
        return [(n, self.since + n * self.length, self.since + (n + 1) * self.length) for n in wanted]

    @property
    def windows(self) -> dict[str, tuple[Window, ...]]:
        """By place, in order. One that the recorder did not tell of is not known of any place."""
        places = {place for found in self.said.values() for place in found or ()}
        return {
            place: tuple(
                Window(begin, begin + self.length, Seen(), Seen()) if found is None else found[place]
                for number, found in sorted(self.said.items())
                if (begin := self.since + number * self.length) and (found is None or place in found)
            )
            for place in places
        }


def compare(
    compared: Compared, pages: Mapping[int, Mapping[str, Any] | None], service: str, base: str, candidate: str
) -> Compared:
    """With the answers to what was due in it.

    Args:
        pages: by number of the window; None where the recorder did not answer.
        service: `namespace/name`.
        base, candidate: revisions.
    """
    said, trouble = dict(compared.said), ""
    for number, page in pages.items():
        try:
            found = None if page is None else window(page, service, base, candidate)
        except PageError as error:
            found, trouble = None, str(error)
        if found is None:
            trouble = trouble or "the recorder does not answer"
            said.setdefault(number, None)
        else:
            said[number] = found
    return replace(compared, said=said, trouble=trouble)
