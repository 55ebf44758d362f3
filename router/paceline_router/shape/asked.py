"""Which members of a request's body count. Each of the two endpoints has some that the other has not, and engines pass
over those that are not theirs: what is judged here must be what is read there.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

COMPLETIONS: Final = b"/v1/completions"

_NULL: Final = b"null"


class Asked(Protocol):
    """What is read of a request's body. Raw fields are empty where they are absent."""

    messages: msgspec.Raw
    prompt: msgspec.Raw
    max_tokens: int | None
    max_completion_tokens: int | None
    n: int | None
    response_format: msgspec.Raw
    tools: msgspec.Raw


def text_of(body: Asked, path: bytes) -> bytes:
    """The raw JSON of messages or prompt, whichever the endpoint reads; where both may be read, of the messages. Empty
    where there is neither. Of a conversation that grows it keeps its beginning to the byte, apart from the closing
    bracket.
    """
    completions = path == COMPLETIONS
    text = bytes(body.prompt if completions else body.messages)
    if not text or text == _NULL:
        text = bytes(body.messages if completions else body.prompt)
        if text == _NULL:
            text = b""
    return text


def newer_bound(body: Asked, path: bytes) -> bool:
    """Whether `max_completion_tokens` bounds the answer: chats alone have it, where it comes before `max_tokens`."""
    return body.max_completion_tokens is not None and path != COMPLETIONS
