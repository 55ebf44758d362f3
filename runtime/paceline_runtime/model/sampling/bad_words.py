"""Token sequences that are never completed.

An automaton over all but the last token of each sequence (Aho and Corasick, "Efficient string matching", 1975) follows
the text; its state tells which tokens would complete one. A token costs the same whatever came before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


class BadWords:
    """The automaton: the same for all answers of a request. States are numbers, 0 before anything was read."""

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._next: list[dict[int, int]] = [{}]
        endings: list[set[int]] = [set()]
        self._longest = 0
        for word in words:
            state = 0
            for token in word[:-1]:
                following = self._next[state].setdefault(token, len(self._next))
                if following == len(self._next):
                    self._next.append({})
                    endings.append(set())
                state = following
            endings[state].add(word[-1])
            self._longest = max(self._longest, len(word) - 1)
        self._fail = [0] * len(self._next)
        self._endings: list[Ids] = [np.fromiter(sorted(ends), np.int64, len(ends)) for ends in endings]
        # The nearest shorter state that has endings of its own: those of all of them are forbidden together.
        self._shorter = [-1] * len(self._next)
        waiting = deque([0])
        while waiting:
            state = waiting.popleft()
            for token, child in self._next[state].items():
                if state != 0:
                    self._fail[child] = self.advance(self._fail[state], token)
                fail = self._fail[child]
                self._shorter[child] = fail if len(self._endings[fail]) else self._shorter[fail]
                waiting.append(child)

    def start(self, tokens: Sequence[int]) -> int:
        """The state after a prompt: a sequence that begins in it must not be completed either."""
        state = 0
        for token in tokens[len(tokens) - min(self._longest, len(tokens)) :]:
            state = self.advance(state, token)
        return state

    def advance(self, state: int, token: int) -> int:
        """The state after one more token: the longest end of the text that begins a sequence."""
        while True:
            following = self._next[state].get(token)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fail[state]

    def forbidden(self, state: int) -> list[Ids]:
        """Tokens that would complete a sequence now, in pieces; a token may be in several."""
        pieces: list[Ids] = []
        while state >= 0:
            if len(self._endings[state]):
                pieces.append(self._endings[state])
            state = self._shorter[state]
        return pieces
