"""One HTTP request on its way through a gateway, as the messages of Envoy's `ext_proc` tell of it.

Nothing is sent or awaited here: a message comes in, the messages that answer it go out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

import msgspec

from paceline_crds import errors
from paceline_crds import headers as names
from paceline_router.epp import ext_proc_pb2 as pb
from paceline_router.epp.picks import Ask, Header, Picked, Picks
from paceline_router.wire.answers import Answer, Refusal
from paceline_router.wire.heads import READ, combined

log = logging.getLogger(__name__)

DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
UPSTREAM_ADDRESS = "upstream.address"
NAMESPACE = "envoy.lb"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"

CHUNK = 62 * 1024
"""Bytes of body in one message; Envoy recommends less than 64 KiB."""

# Never the replica's business, as through the proxy: who the client is, and what only the router may say. Where the
# router says it, the header is set after this.
NOT_PASSED_ON = ("authorization", "cookie", "proxy-authorization", names.TENANT, names.SHAPE, names.SHADOW)

_BODY_HEADERS = ("content-type", "content-encoding")
"""Whether the body is plain JSON."""

_encode = msgspec.json.Encoder().encode
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Processing:
    """The state of one `Process` stream, which belongs to one HTTP request."""

    __slots__ = (
        "_body",
        "_echoes",
        "_headers",
        "_method",
        "_path",
        "_picked",
        "_picks",
        "_request_id",
        "_size",
        "_streams",
        "_subset",
        "over",
    )

    def __init__(self, picks: Picks) -> None:
        self._picks = picks
        self._streams = False
        """The request's body comes in pieces, and goes on only as we send it back."""
        self._echoes = False
        """The same of the answer's body."""
        self._method = b""
        self._path = b""
        self._headers: dict[str, bytes] = {}
        self._subset: frozenset[str] | None = None
        self._request_id: bytes | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._picked: Picked | None = None
        self.over = False
        """The gateway has its answer; it hears nothing more."""

    async def take(self, message: pb.ProcessingRequest) -> Sequence[pb.ProcessingResponse]:
        """The answers to a message, in order. The one that brings the decision may take its time."""
        if self.over or message.observability_mode:
            return ()
        try:
            match message.WhichOneof("request"):
                case "request_headers":
                    return await self._request_headers(message)
                case "request_body":
                    return await self._request_body(message.request_body)
                case "request_trailers":
                    trailers = pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
                    return [*await self._whole(last=False), trailers] if self._waits else [trailers]
                case "response_headers":
                    return [self._response_headers(message)]
                case "response_body":
                    return [self._response_body(message)]
                case "response_trailers":
                    self.end()
                    return [pb.ProcessingResponse(response_trailers=pb.TrailersResponse())]
        except Refusal as refusal:
            return [self._immediate(refusal.answer)]
        except Exception:
            log.exception("a request could not be placed")
            failed = Refusal(500, "The endpoint picker failed.", type=errors.SERVER_ERROR)
            return [self._immediate(failed.answer)]
        return ()

    def end(self) -> None:
        """The request is over, or the gateway is gone."""
        picked, self._picked = self._picked, None
        if picked is not None:
            picked.over()

    # The request

    @property
    def _waits(self) -> bool:
        """The gateway streams the body, and the decision is still to come."""
        return self._streams and self._picked is None

    async def _request_headers(self, message: pb.ProcessingRequest) -> Sequence[pb.ProcessingResponse]:
        self._read_headers(message.request_headers.headers.headers)
        self._subset = _subset(message.metadata_context)
        # An Envoy too old to say how it is set up knows no body that is streamed both ways either.
        modes = message.protocol_config
        mode = modes.request_body_mode if message.HasField("protocol_config") else pb.BUFFERED
        self._echoes = modes.response_body_mode == pb.FULL_DUPLEX_STREAMED
        if message.request_headers.end_of_stream:
            picked = await self._pick(b"")
            common = pb.CommonResponse(header_mutation=_destination(picked), clear_route_cache=True)
            return [_placed(picked, pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common)))]
        if mode == pb.FULL_DUPLEX_STREAMED:
            self._streams = True
            return ()
        if mode != pb.BUFFERED:
            raise Refusal(
                500,
                "The gateway does not show the body, which names the model. Set ext_proc's request_body_mode to "
                "BUFFERED or FULL_DUPLEX_STREAMED.",
                type=errors.SERVER_ERROR,
            )
        return [pb.ProcessingResponse(request_headers=pb.HeadersResponse())]

    def _read_headers(self, given: Iterable[pb.HeaderValue]) -> None:
        for header in given:
            name = header.key.lower()
            value = header.raw_value or header.value.encode()
            if name == ":method":
                self._method = value
            elif name == ":path":
                self._path = value
            elif name == names.REQUEST_ID:
                self._request_id = value if _REQUEST_ID.fullmatch(value) else None
            elif name in _BODY_HEADERS or name.encode() in READ:
                earlier = self._headers.get(name)
                if earlier is not None:
                    together = combined(name, earlier, value)
                    if together is None:
                        raise Refusal(400, f"The header {name} is given twice.", param=name)
                    value = together
                self._headers[name] = value

    async def _request_body(self, body: pb.HttpBody) -> Sequence[pb.ProcessingResponse]:
        self._size += len(body.body)
        if self._size > self._picks.max_body_bytes:
            raise Refusal(413, f"The request body is larger than {self._picks.max_body_bytes} bytes.")
        if self._streams:
            self._body.append(body.body)
            return await self._whole(last=True) if body.end_of_stream else ()
        picked = await self._pick(body.body)
        common = pb.CommonResponse(header_mutation=_destination(picked), clear_route_cache=True)
        if picked.body != body.body:
            length = b"%d" % len(picked.body)
            common.header_mutation.set_headers.append(_set("content-length", length))
            common.body_mutation.body = picked.body
        return [_placed(picked, pb.ProcessingResponse(request_body=pb.BodyResponse(response=common)))]

    async def _whole(self, *, last: bool) -> Sequence[pb.ProcessingResponse]:
        """The streamed body is complete: headers and body go on together. `last`: no trailers follow."""
        body, self._body = b"".join(self._body), []
        picked = await self._pick(body)
        common = pb.CommonResponse(header_mutation=_destination(picked), clear_route_cache=True)
        headers = pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common))
        responses = [_placed(picked, headers)]
        body = picked.body
        for at in range(0, max(1, len(body)), CHUNK):
            end = at + CHUNK >= len(body)
            chunk = _streamed(body[at : at + CHUNK], end=end and last)
            responses.append(pb.ProcessingResponse(request_body=chunk))
        return responses

    async def _pick(self, body: bytes) -> Picked:
        ask = Ask(self._method, self._path, self._headers, body, self._subset, self._request_id)
        found = await self._picks.pick(ask)
        if isinstance(found, Answer):
            raise _Answered(found)
        self._picked = found
        return found

    # The answer

    def _response_headers(self, message: pb.ProcessingRequest) -> pb.ProcessingResponse:
        response = pb.ProcessingResponse(response_headers=pb.HeadersResponse())
        picked = self._picked
        if picked is not None:
            given = {h.key.lower(): h.raw_value or h.value.encode() for h in message.response_headers.headers.headers}
            status = given.get(":status", b"")
            headers = picked.answered(int(status) if status.isdigit() else 0, given, _served(message))
            mutation = response.response_headers.response.header_mutation
            mutation.set_headers.extend(_set(name, value) for name, value in headers)
            mutation.remove_headers.append(names.LOAD)
        if message.response_headers.end_of_stream:
            self.end()
        return response

    def _response_body(self, message: pb.ProcessingRequest) -> pb.ProcessingResponse:
        body = message.response_body
        if self._picked is not None:
            self._picked.saw(body.body)
        if body.end_of_stream:
            self.end()
        if self._echoes:
            return pb.ProcessingResponse(response_body=_streamed(body.body, end=body.end_of_stream))
        return pb.ProcessingResponse(response_body=pb.BodyResponse())

    def _immediate(self, answer: Answer) -> pb.ProcessingResponse:
        """The gateway gives this answer itself."""
        self.over = True
        self.end()
        mutation = pb.HeaderMutation(set_headers=[_set("content-type", b"application/json")])
        mutation.set_headers.extend(_set(name, value.encode("latin-1")) for name, value in answer.headers.items())
        return pb.ProcessingResponse(
            immediate_response=pb.ImmediateResponse(
                status=pb.HttpStatus(code=answer.status),
                headers=mutation,
                body=_encode(answer.body),
                details="paceline_endpoint_picker",
            )
        )


class _Answered(Refusal):
    """An answer that is no error, on the way of one."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status, "answered")
        self.answer = answer


def _subset(metadata: pb.Metadata) -> frozenset[str] | None:
    """The endpoints the gateway allows: a list, or (as some send it) a text with commas. None: it does not say."""
    if SUBSET_NAMESPACE not in metadata.filter_metadata:
        return None
    fields = metadata.filter_metadata[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    texts = [value.string_value] if value.string_value else [item.string_value for item in value.list_value.values]
    return frozenset(part.strip() for text in texts for part in text.split(",") if part.strip())


def _served(message: pb.ProcessingRequest) -> str | None:
    """The endpoint that gave the answer, as the protocol has it, or as Envoy's attribute if it is set up to send it."""
    metadata = message.metadata_context.filter_metadata
    if NAMESPACE in metadata and SERVED in metadata[NAMESPACE].fields:
        return metadata[NAMESPACE].fields[SERVED].string_value or None
    for attributes in message.attributes.values():
        if UPSTREAM_ADDRESS in attributes.fields:
            return attributes.fields[UPSTREAM_ADDRESS].string_value or None
    return None


def _set(name: str, value: bytes) -> pb.HeaderValueOption:
    """Set a header, whatever the client wrote there: the default would add to it."""
    return pb.HeaderValueOption(
        header=pb.HeaderValue(key=name, raw_value=value),
        append_action=pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _destination(picked: Picked) -> pb.HeaderMutation:
    headers: list[Header] = [(DESTINATION, ",".join(picked.endpoints).encode()), *picked.headers]
    return pb.HeaderMutation(
        set_headers=[_set(name, value) for name, value in headers],
        remove_headers=NOT_PASSED_ON,
    )


def _placed(picked: Picked, response: pb.ProcessingResponse) -> pb.ProcessingResponse:
    """The response with the destination in the metadata too: gateways look in one place or the other."""
    response.dynamic_metadata.update({NAMESPACE: {DESTINATION: ",".join(picked.endpoints)}})
    return response


def _streamed(body: bytes, *, end: bool) -> pb.BodyResponse:
    mutation = pb.BodyMutation(streamed_response=pb.StreamedBodyResponse(body=body, end_of_stream=end))
    return pb.BodyResponse(response=pb.CommonResponse(body_mutation=mutation))
