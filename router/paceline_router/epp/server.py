"""The gRPC side of the endpoint picker: Envoy's `ext_proc` and gRPC's health check on one port."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from paceline_router.epp import ext_proc_pb2 as pb
from paceline_router.epp.picks import Picks
from paceline_router.epp.plane import PlanePicks
from paceline_router.epp.process import Processing
from paceline_router.flow.dataplane import DataPlane

log = logging.getLogger(__name__)

EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH = "grpc.health.v1.Health"
LIVENESS = "liveness"
READINESS = "readiness"

_HEADROOM = 256 * 1024
"""Bytes of a message beyond the body: headers, metadata."""


class PickerServer:
    """Listens on one port, in the event loop of the data path."""

    def __init__(
        self, picks: Picks, host: str, port: int, certificate: Certificate | None = None, *, shared: bool = False
    ) -> None:
        self._picks = picks
        self._shared = shared
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._certificate = certificate
        self._server: Any = None
        self.port = port

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._server = grpc.aio.server(
            options=(
                # By default a second router would quietly take half of the questions.
                ("grpc.so_reuseport", int(self._shared)),
                ("grpc.max_receive_message_length", self._picks.max_body_bytes + _HEADROOM),
                ("grpc.max_send_message_length", self._picks.max_body_bytes + _HEADROOM),
                # A gateway that vanishes without a word must not leave its requests counted.
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
            )
        )
        self._server.add_generic_rpc_handlers((self._ext_proc(), self._health()))
        try:
            if self._certificate is None:
                self.port = self._server.add_insecure_port(self._address)
            else:
                self.port = self._server.add_secure_port(self._address, self._certificate.credentials())
        except RuntimeError as exc:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {self._address}") from exc
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Take no more questions; requests that run have `grace` seconds to end."""
        await self._server.stop(grace)

    def _ext_proc(self) -> Any:
        process = grpc.stream_stream_rpc_method_handler(
            self._process, pb.ProcessingRequest.FromString, pb.ProcessingResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(EXT_PROC, {"Process": process})

    async def _process(self, _: object, context: Any) -> None:
        processing = Processing(self._picks)
        try:
            while not processing.over:
                message = await context.read()
                if message is grpc.aio.EOF:
                    return
                for response in await processing.take(message):
                    await context.write(response)
        finally:
            # Also when the gateway cancels or its connection breaks.
            processing.end()

    def _health(self) -> Any:
        check = grpc.unary_unary_rpc_method_handler(
            self._check, pb.HealthCheckRequest.FromString, pb.HealthCheckResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(HEALTH, {"Check": check})

    async def _check(self, request: pb.HealthCheckRequest, context: Any) -> pb.HealthCheckResponse:
        if request.service == LIVENESS:
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVING)
        if request.service in ("", READINESS, EXT_PROC):
            ready = self._picks.ready
            status = pb.HealthCheckResponse.SERVING if ready else pb.HealthCheckResponse.NOT_SERVING
            return pb.HealthCheckResponse(status=status)
        words = f"there is no service {request.service[:100]}; ask for {LIVENESS}, {READINESS} or {EXT_PROC}"
        await context.abort(grpc.StatusCode.NOT_FOUND, words)
        raise AssertionError("abort raises")


class Certificate:
    """Certificate chain and key in PEM files, read again when they change: a mounted Secret is replaced in place."""

    def __init__(self, chain: Path, key: Path) -> None:
        self._chain = chain
        self._key = key
        self._seen: tuple[int, int] | None = None

    def check(self) -> None:
        """Whether both files can be read.

        Raises:
            OSError: one cannot.
        """
        self._read()

    def credentials(self) -> Any:
        """For a server.

        Raises:
            OSError: a file cannot be read.
        """
        return grpc.dynamic_ssl_server_credentials(self._read(), self._changed)

    def _read(self) -> Any:
        self._seen = self._stamp()
        return grpc.ssl_server_certificate_configuration([(self._key.read_bytes(), self._chain.read_bytes())])

    def _stamp(self) -> tuple[int, int]:
        return self._chain.stat().st_mtime_ns, self._key.stat().st_mtime_ns

    def _changed(self) -> Any:
        """Asked at each handshake; None keeps what is in use."""
        try:
            return None if self._stamp() == self._seen else self._read()
        except OSError as exc:
            log.warning("the endpoint picker keeps its certificate: %s", exc)
            return None


async def serve_picker(
    plane: DataPlane,
    host: str,
    port: int,
    *,
    certificate: Certificate | None = None,
    fallbacks: int = 0,
    shared: bool = False,
) -> PickerServer:
    """Answer gateways' questions with the decisions of this data plane. The caller stops what is returned.

    Args:
        port: 0 takes a free one.
        certificate: with it TLS, without it plain HTTP/2.
        fallbacks: endpoints named after the chosen one, for gateways that understand a list.
        shared: other processes listen on the port as well.

    Raises:
        OSError: the address cannot be listened on, or the certificate cannot be read.
    """
    server = PickerServer(PlanePicks(plane, fallbacks), host, port, certificate, shared=shared)
    await server.start()
    log.info("endpoint picker on %s:%d", host, server.port)
    return server
