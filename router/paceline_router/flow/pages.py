"""What the router answers itself at its traffic port: the models it knows, and whether it is well."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from paceline_router.wire import answers, requests
from paceline_router.wire.answers import Answer, Refusal
from paceline_router.wire.requests import MODELS, PROXIED, Request, Target

if TYPE_CHECKING:
    from paceline_router.flow.dataplane import DataPlane

RETRY_AFTER_START = 1


def answer(plane: DataPlane, request: Request, target: Target) -> Answer:
    """The answer to a request that goes to no replica.

    Raises:
        Refusal: nothing is there, or not by this method, or the router does not know yet.
    """
    path = target.path
    if path in PROXIED:
        raise Refusal(405, "This path takes POST.", headers={"allow": "POST"})
    of_models = path == MODELS or path.startswith(MODELS + b"/")
    ready = path in (b"/health", b"/health/ready", b"/ping") and target.service is None
    live = path == b"/health/live" and target.service is None
    if not (of_models or ready or live):
        raise Refusal(
            404,
            "Nothing is served at this path. The API begins at /v1/ or /NAMESPACE/NAME/v1/.",
            type="not_found_error",
        )
    if request.method not in (b"GET", b"HEAD"):
        raise Refusal(405, "This path takes GET.", headers={"allow": "GET, HEAD"})
    if live:
        return Answer(200, {"status": "alive"})
    if ready:
        return _readiness(plane)
    if not plane.synced:
        raise starting()
    refused = functools.partial(plane.refused, request)
    if path == MODELS:
        return Answer(200, requests.models_page(plane.routes, target.service, refused))
    return Answer(200, requests.model_page(plane.routes, target.service, requests.model_id(path), refused))


def starting() -> Refusal:
    """The table is not there yet, so nothing can be called unknown."""
    return answers.unavailable("The router is starting and does not know the models yet.", RETRY_AFTER_START)


def _readiness(plane: DataPlane) -> Answer:
    if plane.ready:
        return Answer(200, {"status": "ready"})
    return Answer(503, {"status": "stopping" if plane.stopping else "starting"}, {"retry-after": "1"})
