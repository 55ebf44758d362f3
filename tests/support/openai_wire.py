"""What tests of the OpenAI surface share: strict forms of its bodies, and the events of a stream."""

from __future__ import annotations

from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict

MESSAGES = [{"role": "user", "content": "which fox?"}]
ANSWER = "the quick brown fox"


class Strict(BaseModel):
    """Every field is there, of its own type, and none besides."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Details(Strict):
    cached_tokens: int


class Usage(Strict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Details


class ErrorBody(Strict):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Strict):
    error: ErrorBody


def chat(**more: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "org/tiny", "messages": MESSAGES, **more}


def events(body: str) -> list[str]:
    """The data of each event of a stream, which has nothing else in it."""
    assert body.endswith("\n\n")
    blocks = body.removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


def error_of(response: httpx.Response) -> ErrorBody:
    """The error in an answer, in OpenAI's form."""
    assert response.headers["content-type"] == "application/json"
    return Error.model_validate_json(response.content).error
