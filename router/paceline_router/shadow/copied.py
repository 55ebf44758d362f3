"""An exchange of which a candidate gets a copy. Compiled, as what it derives from is; all else of copies is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline_router.flow.exchange import Exchange

if TYPE_CHECKING:
    from paceline_router.flow.backend import Backend
    from paceline_router.shadow.copying import Copy
    from paceline_router.table.routes import Lane
    from paceline_router.wire.response_head import ResponseHead
    from paceline_router.wire.upstream import UpstreamConnection


class Copied(Exchange):
    """Tells its copy what its own replica answers, and when it ends. Nothing here waits for the copy."""

    __slots__ = ("_offered", "copy")

    _offered: bool
    copy: Copy | None

    def begin(self, lane: Lane) -> None:
        """See `Waiting`."""
        self._offered = False
        self.copy = None
        super().begin(lane)

    def _send_to(self, backend: Backend, now: float, *, fresh: bool = False) -> None:
        super()._send_to(backend, now, fresh=fresh)
        if self.copy is not None:
            self.copy.base.again(now)
        elif not self._offered:
            self._offered = True
            tap = self.living.shadow
            if tap is not None:
                self.copy = tap.offer(self, self._model, now)

    def on_head(self, upstream: UpstreamConnection, head: ResponseHead) -> None:
        """Status and headers are there."""
        if self.copy is not None:
            self.copy.base.begin(head)
        super().on_head(upstream, head)

    def on_data(self, data: bytes) -> None:
        """A part of the body, in the framing it came in."""
        if self.copy is not None:
            self.copy.hear_base(self._plane.now(), data)
        super().on_data(data)

    def on_end(self, last: bytes = b"") -> None:
        """The answer is complete."""
        # The base class hands a last part to `on_data` in some forms of answers and not in others.
        copy, self.copy = self.copy, None
        if copy is not None and last:
            copy.hear_base(self._plane.now(), last)
        super().on_end(last)
        if copy is not None:
            copy.base_ended(self)

    def _finish(self, outcome: str, keep_alive: bool | None = True) -> None:
        super()._finish(outcome, keep_alive)
        copy, self.copy = self.copy, None
        if copy is not None:
            copy.base_ended(self)
