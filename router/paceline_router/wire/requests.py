"""What a client asks for: endpoint, service, and the body as the replica must get it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec

from paceline_crds import errors
from paceline_router.table.routes import Route, Routes
from paceline_router.wire.answers import Refusal, model_not_found, unavailable
from paceline_router.wire.members import members_of, with_member


class Request(msgspec.Struct, eq=False):
    """One HTTP request.

    Attributes:
        headers: only those the router reads (`heads.READ`), by lower-case name. Requests with the same head share them:
            who changes any makes a copy.
        plain: there is nothing to be read or passed on but whose it is: `authorization` and the tenant's name at most.
        fault: why it is refused if it goes to a replica: a malformed Paceline header, a body that is not plain JSON.
        length: of the body as announced; `request_head.CHUNKED` where only its end says so.
        expects: the client waits for 100 Continue before it sends the body.
        received_at: when it had arrived in full (monotonic seconds).
    """

    method: bytes
    target: bytes
    headers: dict[str, bytes]
    body: bytes
    keep_alive: bool = True
    http10: bool = False
    received_at: float = 0.0
    plain: bool = True
    fault: Refusal | None = None
    length: int = 0
    expects: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request's path points: a path that all services share, and the service when the address names one."""

    path: bytes
    service: str | None


Refused: TypeAlias = Callable[[Route], Refusal | None]
"""Why a service is not for whoever sent a request; None where it is."""

PROXIED: Final[dict[bytes, Target]] = {
    path: Target(path, None) for path in (b"/v1/chat/completions", b"/v1/completions", b"/tokenize", b"/detokenize")
}
"""Paths that go to a replica, chosen by the `model` in the body. Everything else is answered here or refused."""

MODELS: Final = b"/v1/models"

RETRY_AFTER_ROLLING_OUT: Final = 5
"""Seconds; a replica of a new revision takes longer than that to start, but the switch itself takes none."""

_ADDRESS: Final = re.compile(rb"/([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)/([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)(/.*)")


_NOTHING: Final = msgspec.Raw(b"")
_NULL: Final = b"null"


class Body(msgspec.Struct, gc=False):
    """What the router reads of a request's body; the replica reads the rest, and says what is wrong with it.

    A number or switch that is absent, null (what several clients write for "not set") or of a wrong type is not known:
    `None`. Raw JSON is empty where it is absent. Of a key that is there twice the last counts, as in the engine; which
    keys count at an endpoint says `shape.asked`.
    """

    model: str | None = None
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    response_format: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING


class _Loose(msgspec.Struct, gc=False):
    """The same fields, whatever is in them. All others are passed over, however many there are."""

    model: msgspec.Raw = msgspec.Raw(_NULL)
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    response_format: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    max_tokens: msgspec.Raw = _NOTHING
    max_completion_tokens: msgspec.Raw = _NOTHING
    n: msgspec.Raw = _NOTHING
    stream: msgspec.Raw = _NOTHING


_decode: Final = msgspec.json.Decoder(Body).decode
_decode_loosely: Final = msgspec.json.Decoder(_Loose).decode
_decode_text: Final = msgspec.json.Decoder(str | None).decode
_LOOSE: Final[dict[str, Callable[[msgspec.Raw], Any]]] = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "n"), msgspec.json.Decoder(int).decode),
    "stream": msgspec.json.Decoder(bool).decode,
}
_PLACE: Final = re.compile(r"\(byte (\d{1,9})\)")
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LONE: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")
_CUT_OFF: Final = 24
"""Bytes at the end of a text in which half a character is taken for the text's end."""

_RAW: Final = ("messages", "prompt", "response_format", "tools")


def parse_target(target: bytes) -> Target:
    """Split a request target into service address and path. The query is dropped; nothing is normalised or decoded.

    `/v1/...` belongs to all services, `/namespace/name/v1/...` to one, also where the namespace is called `v1`. Only
    below `/v1/models/` everything is the id of a model, which may have slashes.
    """
    known = PROXIED.get(target)
    if known is not None:
        return known
    if not target.startswith(b"/"):
        # A client that takes the router for a forward proxy sends the absolute form.
        match = re.match(rb"https?://[^/?#]*(/[^?#]*)?", target, re.IGNORECASE)
        target = (match.group(1) or b"/") if match else target
    path = target.split(b"?", 1)[0]
    if not path.startswith(MODELS + b"/"):
        match = _ADDRESS.fullmatch(path)
        if match and (match[3].startswith(b"/v1/") or match[3] in PROXIED):
            return Target(match[3], f"{match[1].decode()}/{match[2].decode()}")
    return Target(path, None)


def model_id(path: bytes) -> str | None:
    """The id in `/v1/models/{id}`, whose slashes may be plain or encoded; None when there is none.

    Raises:
        Refusal: 404, it is not text, as every id is.
    """
    raw = path[len(MODELS) + 1 :]
    if not raw:
        return None
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        text = "The model id in the path is not UTF-8 text. GET /v1/models lists the models that there are."
        raise Refusal(404, text, type=errors.NOT_FOUND, param="model", code=errors.CODE_MODEL_NOT_FOUND) from None


def parse_body(body: bytes) -> Body:
    """What the router needs of a body.

    Raises:
        Refusal: 400, in words, when the body is not a JSON object or `model` is not text.
    """
    try:
        return _decode(body)
    except msgspec.ValidationError:
        return _parse_loosely(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _not_json(exc, body) from None
    except RecursionError:
        raise _too_deep() from None


def _parse_loosely(body: bytes) -> Body:
    """Field by field, for a body in which some field has a wrong type."""
    try:
        fields = _decode_loosely(body)
    except msgspec.ValidationError:
        raise Refusal(400, "The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _not_json(exc, body) from None
    except RecursionError:
        raise _too_deep() from None
    found = Body()
    try:
        found.model = _decode_text(fields.model)
    except msgspec.ValidationError:
        raise Refusal(400, "`model` must be a string.", param="model") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _not_json(exc, bytes(fields.model)) from None
    for name in _RAW:
        setattr(found, name, getattr(fields, name))
    for name, decode in _LOOSE.items():
        with contextlib.suppress(msgspec.DecodeError):
            setattr(found, name, decode(getattr(fields, name)))
    return found


def _not_json(exc: Exception, text: bytes) -> Refusal:
    escape = _lone_half(str(exc), text)
    if escape is None:
        return Refusal(400, f"The request body is not valid JSON: {exc}.")
    return Refusal(
        400,
        f"The request body is not valid JSON: {escape} is half of a surrogate pair. Write both halves, or the "
        "character itself in UTF-8.",
    )


def _lone_half(words: str, text: bytes) -> str | None:
    """The escape of half a character that the decoder took offence at. Its words about one differ with what follows,
    and near the end of the text they are that it was cut off.
    """
    place = _PLACE.search(words)
    if place is not None:
        end = int(place[1])
        found = _HALF.search(text[max(0, end - (12 if "surrogate" in words else 6)) : end])
    else:
        text = text[-_CUT_OFF:].rstrip()
        found = _LONE.search(text) if text.endswith((b"}", b'"')) else None
    return None if found is None else found[0].decode("ascii")


def _too_deep() -> Refusal:
    return Refusal(400, "The request body is nested too deeply.")


def find_route(
    routes: Routes, service: str | None, model: str | None, refused: Refused, *, by_hand: bool = False
) -> Route:
    """The service of a request.

    Args:
        service: from the path, if it names one.
        model: from the body.
        refused: tells who is not to learn what names a service will have or its other revisions have.
        by_hand: the request names its revision, so the names of revisions without traffic count as well.

    Raises:
        Refusal: 400 when nothing names a service, 404 when what is named does not exist, 503 when it is a name that
            the service is to have once the roll-out under way has moved traffic.
    """
    route: Route | None
    if service is None:
        if not model:
            raise Refusal(400, "You must provide a `model` parameter.", param="model")
        route = routes.by_model.get(model)
        if route is not None:
            return route
        route = routes.by_other_name.get(model)
    else:
        route = routes.by_key.get(service)
        if route is None:
            raise model_not_found(service)
        if not model or model in (route.served_name, service) or model in route.names:
            return route
        if model not in route.other_names:
            route = None
    if route is not None and refused(route) is not None:
        route = None
    if route is not None and by_hand:
        return route
    if route is not None and model == route.service.served_name:
        raise unavailable(
            f"The model `{model}` is being rolled out; until traffic has moved, ask for `{route.service.key}`.",
            RETRY_AFTER_ROLLING_OUT,
        )
    raise model_not_found(model)


def body_for(served_name: str, model: str | None, body: bytes) -> bytes:
    """The body with `served_name` as `model`, all other values kept to the byte.

    A body that already says so is returned as it is.

    Args:
        model: of the body, which `parse_body` has read.
    """
    if model == served_name:
        return body
    return with_member(body, "model", members_of(body).model, served_name)


def models_page(routes: Routes, service: str | None, refused: Refused) -> dict[str, object]:
    """The body of `GET /v1/models`: the services that whoever asks may use.

    Raises:
        Refusal: 404 when the address names a service that does not exist; 401 or 503 when all there are want a key and
            the one that came with the request is none of theirs, or cannot be checked.
    """
    served = routes.models
    if service is not None:
        route = find_route(routes, service, None, refused)
        served = {route.served_name: route}
    refusals = {name: refusal for name, route in served.items() if (refusal := refused(route)) is not None}
    if refusals and len(refusals) == len(served):
        raise max(refusals.values(), key=lambda refusal: refusal.status)
    cards = [_model_card(name, route) for name, route in served.items() if name not in refusals]
    return {"object": "list", "data": cards}


def model_page(routes: Routes, service: str | None, model: str | None, refused: Refused) -> dict[str, object]:
    """The body of `GET /v1/models/{id}`: the same object that the list has.

    Raises:
        Refusal: 404, or why the service is not for whoever asks.
    """
    if not model:
        raise Refusal(404, "A model id follows /v1/models/; GET /v1/models lists them.")
    route = find_route(routes, service, model, refused)
    refusal = refused(route)
    if refusal is not None:
        raise refusal
    return _model_card(model, route)


def _model_card(name: str, route: Route) -> dict[str, object]:
    return {"id": name, "object": "model", "created": route.service.created, "owned_by": "paceline"}
