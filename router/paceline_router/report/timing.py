"""Where the time of a request went: waiting, the router, the engine, and what is neither."""

from __future__ import annotations

from typing import Final, NamedTuple

from paceline_router.report.finished import Finished

QUEUE: Final = b"queue;dur="
TO_FIRST_TOKEN: Final = b"first-token;dur="
_LAST: Final = (b"first-token", b"total")


def engine_seconds(timing: bytes) -> float:
    """What the replica says it took until its answer began to leave it; negative when it does not say.

    Our runtime's last span is that: until the first token of a stream, until the end of a whole answer. Other
    engines' spans mean other things, so they are passed over.
    """
    at = timing.rfind(b";dur=")
    if at >= 0 and timing.endswith(_LAST, 0, at):
        try:
            seconds = float(timing[at + 5 :]) / 1000.0
        except ValueError:
            return -1.0
        return seconds if 0.0 <= seconds < 1e6 else -1.0
    return -1.0


def span_seconds(timing: bytes, span: bytes) -> float:
    """One span of our runtime's, `QUEUE` or `TO_FIRST_TOKEN`; negative when it is not there."""
    at = timing.find(span)
    if at < 0:
        return -1.0
    at += len(span)
    end = timing.find(b",", at)
    try:
        seconds = float(timing[at:] if end < 0 else timing[at:end]) / 1000.0
    except ValueError:
        return -1.0
    return seconds if 0.0 <= seconds < 1e6 else -1.0


class Parts(NamedTuple):
    """Seconds; None where not known.

    Attributes:
        wait: for the tenant's turn, or for a replica.
        retried: in attempts that failed, and in making connections for them.
        router: until the request was with the replica, without the two above. Known for a first attempt only.
        engine_queue: of `engine`.
        engine: what the replica says its engine took until the answer began to leave it.
        net: from sending to the first byte, without `engine`: the link, the replica's HTTP server, and what a router
            too busy to read leaves lying.
        first_byte: from the whole request to the first byte of the answer.
        total: until the end.
    """

    wait: float
    router: float | None
    engine_queue: float | None
    engine: float | None
    net: float | None
    first_byte: float | None
    total: float


def waited(exchange: Finished) -> float:
    """Seconds in queues of the router."""
    parked = exchange.parked_at
    if parked == 0.0:
        return 0.0
    admitted = exchange.admitted_at
    return (admitted if admitted >= parked else exchange.ended_at) - parked


def parts(exchange: Finished, now: float) -> Parts:
    """All of it, at a request's first byte or at its end. Not for the path of every request."""
    started, sent, first = exchange.started_at, exchange.sent_at, exchange.first_byte_at
    timing = exchange.engine_timing or b""
    wait = waited(exchange)
    engine = _known(engine_seconds(timing))
    return Parts(
        wait=wait,
        router=max(0.0, sent - started - wait) if sent and exchange.attempts == 1 else None,
        engine_queue=_known(span_seconds(timing, QUEUE)),
        engine=engine,
        net=max(0.0, first - sent - engine) if engine is not None and first and sent else None,
        first_byte=first - started if first else None,
        total=now - started,
    )


def server_timing(exchange: Finished, now: float) -> bytes:
    """The value of the header of that name, for who asked: milliseconds. A part that is not known is left out."""
    it = parts(exchange, now)
    named = (
        ("queue", it.wait),
        ("router", it.router),
        ("engine-queue", it.engine_queue),
        ("engine", it.engine),
        ("net", it.net),
        ("first-byte", it.first_byte),
    )
    spans = [f"{name};dur={seconds * 1000.0:.2f}" for name, seconds in named if seconds is not None]
    return ", ".join([*spans, f"attempts;desc={exchange.attempts}"]).encode()


def _known(seconds: float) -> float | None:
    return None if seconds < 0.0 else seconds
