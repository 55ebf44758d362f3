"""Pairs as routers tell them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from paceline_shadow_traffic.pair import Heard, Pair

CHAT = "/v1/chat/completions"


def whole(text: str, reason: str = "stop", **message: Any) -> Heard:
    """An answer that is no stream."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": reason}
    return Heard(200, "", False, [(0.5, json.dumps({"choices": [choice]}).encode())], 0.5)


def streamed(*words: str, reason: str = "stop", gap: float = 0.02, first: float = 0.1) -> Heard:
    """A stream of an event for each word."""

    def event(delta: dict[str, Any], reason: str | None) -> bytes:
        return (
            b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}).encode()
        )

    pieces = [(first + gap * number, event({"content": word}, None)) for number, word in enumerate(words)]
    end = first + gap * len(words)
    return Heard(200, "", True, [*pieces, (end, event({}, reason) + b"data: [DONE]\n\n")], end)


def pair(number: int, base: Heard, candidate: Heard, at: float = 1000.0, **fields: Any) -> Pair:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields.pop("body", {})}
    values: dict[str, Any] = {
        "id": f"req-{number}",
        "at": at,
        "service": "demo/chat",
        "base": "old",
        "candidate": "new",
        "pool": "default",
        "shape": "ShortInputShortOutput",
        "path": CHAT,
        "tenant": "",
        "request": json.dumps(body).encode(),
        "answers": (base, candidate),
        "replicas": ("127.0.0.1:9", "127.0.0.1:9"),
        "served": ("m", "m"),
    }
    return Pair(**{**values, **fields})


@pytest.fixture
def told() -> Any:
    """The makers of this file for tests, which cannot import it."""
    return SimpleNamespace(whole=whole, streamed=streamed, pair=pair, CHAT=CHAT)
