"""Parts of OpenAI's API that are not here, and say so instead of being unknown paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from .errors import not_here

_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_PARTS: Final = {
    "embeddings": "Embeddings",
    "responses": "Responses (the Responses API)",
    "conversations": "Conversations (the Responses API)",
    "messages": "Messages (Anthropic's API)",
    "audio": "Speech and transcription",
    "images": "Images",
    "videos": "Videos",
    "moderations": "Moderations",
    "files": "Files",
    "uploads": "Uploads",
    "batches": "Batches",
    "fine_tuning": "Fine-tuning jobs",
    "assistants": "Assistants",
    "threads": "Threads",
    "vector_stores": "Vector stores",
    "realtime": "Realtime sessions",
    "evals": "Evals",
    "rerank": "Rankings",
    "score": "Scores",
}


def unsupported_router() -> APIRouter:
    """501 in OpenAI's form for each of them, whatever comes after the name."""
    router = APIRouter()
    for name, what in _PARTS.items():
        for path in (f"/v1/{name}", f"/v1/{name}/{{rest:path}}"):
            router.add_api_route(path, _route(what), methods=_METHODS, include_in_schema=False)
    return router


def _route(what: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(request: Request) -> Response:
        raise not_here(what)

    return refuse
