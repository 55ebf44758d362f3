"""The endpoint picker's gRPC side, asked by a client of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the endpoint picker needs the extra `epp` (grpcio)")
pytest.importorskip("google.protobuf", reason="the endpoint picker needs the extra `epp` (protobuf)")

import grpc
import grpc.aio
from self_signed import certify

from paceline_router.epp import ext_proc_pb2 as pb
from paceline_router.epp.picks import Ask
from paceline_router.epp.server import EXT_PROC, HEALTH, Certificate, PickerServer

SERVING = pb.HealthCheckResponse.SERVING
NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING


class Held:
    """A choice that counts, and says when it is let go."""

    endpoints = ("127.0.0.1:9",)
    headers = ()

    def __init__(self, picks: Picks, body: bytes) -> None:
        self._picks = picks
        self.body = body
        picks.held += 1

    def answered(self, status: int, headers: Any, served: str | None) -> tuple[()]:
        return ()

    def saw(self, part: bytes) -> None:
        pass

    def over(self) -> None:
        self._picks.held -= 1
        self._picks.let_go.set()


class Picks:
    def __init__(self) -> None:
        self.ready = True
        self.max_body_bytes = 6 * 1024 * 1024
        self.held = 0
        self.let_go = asyncio.Event()

        self.release = asyncio.Event()
        self.release.set()
        self.waiting = asyncio.Event()
        self.gave_up = asyncio.Event()

    async def pick(self, ask: Ask) -> Any:
        self.waiting.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.gave_up.set()
            raise
        return Held(self, ask.body)


StartServer = Callable[..., Awaitable[PickerServer]]


@pytest.fixture
def picks() -> Picks:
    return Picks()


@pytest.fixture
async def server(picks: Picks) -> AsyncIterator[StartServer]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(**kwargs: Any) -> PickerServer:
            made = PickerServer(picks, "127.0.0.1", **{"port": 0, **kwargs})
            await made.start()
            stack.push_async_callback(made.stop, 0)
            return made

        yield start


def process(channel: Any) -> Any:
    return channel.stream_stream(
        f"/{EXT_PROC}/Process",
        request_serializer=pb.ProcessingRequest.SerializeToString,
        response_deserializer=pb.ProcessingResponse.FromString,
    )()


async def health(channel: Any, service: str) -> int:
    check = channel.unary_unary(
        f"/{HEALTH}/Check",
        request_serializer=pb.HealthCheckRequest.SerializeToString,
        response_deserializer=pb.HealthCheckResponse.FromString,
    )
    return (await check(pb.HealthCheckRequest(service=service))).status


def begin() -> Any:
    headers = [pb.HeaderValue(key=":method", raw_value=b"POST"), pb.HeaderValue(key=":path", raw_value=b"/v1/x")]
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=headers)))
    message.protocol_config.request_body_mode = pb.BUFFERED
    return message


async def place(channel: Any, body: bytes = b"{}") -> Any:
    """A stream whose request has been placed."""
    call = process(channel)
    await call.write(begin())
    await call.read()
    await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)))
    placed = await call.read()
    assert placed.request_body.response.header_mutation.set_headers[0].header.raw_value == b"127.0.0.1:9"
    return call


async def test_a_stream_is_one_request(server: StartServer, picks: Picks) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{(await server()).port}") as channel:
        call = await place(channel)
        assert picks.held == 1
        await call.write(pb.ProcessingRequest(response_headers=pb.HttpHeaders(end_of_stream=True)))
        await call.read()
        assert picks.held == 0
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_body_of_several_megabytes_fits_into_one_message(server: StartServer, picks: Picks) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{(await server()).port}") as channel:
        await place(channel, b"x" * picks.max_body_bytes)


async def test_a_cancelled_stream_lets_go(server: StartServer, picks: Picks) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{(await server()).port}") as channel:
        call = await place(channel)
        call.cancel()
        await asyncio.wait_for(picks.let_go.wait(), 10)
        assert picks.held == 0


async def test_a_request_that_is_held_is_placed_later_and_others_meanwhile(server: StartServer, picks: Picks) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{(await server()).port}") as channel:
        picks.release.clear()
        held = asyncio.create_task(place(channel))
        await picks.waiting.wait()
        assert await health(channel, "") == SERVING
        assert not held.done()
        picks.release.set()
        await held
        assert picks.held == 1


async def test_a_gateway_that_does_not_wait_any_longer_ends_the_wait(server: StartServer, picks: Picks) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{(await server()).port}") as channel:
        picks.release.clear()
        call = process(channel)
        await call.write(begin())
        await call.read()
        await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=b"{}", end_of_stream=True)))
        await picks.waiting.wait()
        call.cancel()
        await asyncio.wait_for(picks.gave_up.wait(), 10)
        assert picks.held == 0


async def test_a_half_closed_stream_lets_go(server: StartServer, picks: Picks) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{(await server()).port}") as channel:
        call = await place(channel)
        await call.done_writing()
        await asyncio.wait_for(picks.let_go.wait(), 10)


async def test_a_connection_that_breaks_lets_go_of_all_its_requests(server: StartServer, picks: Picks) -> None:
    target = (await server()).port
    writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        writers.extend((writer, back))
        await asyncio.gather(carry(reader, back), carry(there, writer))

    between = await asyncio.start_server(relay, "127.0.0.1", 0)
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{between.sockets[0].getsockname()[1]}")
    calls = [await place(channel) for _ in range(5)]
    assert picks.held == len(calls)
    between.close()
    for writer in writers:
        writer.transport.abort()
    async with asyncio.timeout(10):
        while picks.held:
            picks.let_go.clear()
            await picks.let_go.wait()
    await channel.close()


async def test_stopping_lets_requests_end_within_their_grace(server: StartServer, picks: Picks) -> None:
    made = await server()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{made.port}") as channel:
        call = await place(channel)
        stopping = asyncio.create_task(made.stop(30))
        await call.write(pb.ProcessingRequest(response_headers=pb.HttpHeaders(end_of_stream=True)))
        await call.read()
        await call.done_writing()
        await stopping
    assert picks.held == 0


async def test_stopping_without_grace_lets_go(server: StartServer, picks: Picks) -> None:
    made = await server()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{made.port}") as channel:
        await place(channel)
        await made.stop(0)
        await asyncio.wait_for(picks.let_go.wait(), 10)


@pytest.mark.parametrize("service", ["", "readiness", EXT_PROC])
async def test_health_is_readiness(server: StartServer, picks: Picks, service: str) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{(await server()).port}") as channel:
        assert await health(channel, service) == SERVING
        picks.ready = False
        assert await health(channel, service) == NOT_SERVING
        assert await health(channel, "liveness") == SERVING


async def test_the_health_of_strangers_is_not_found(server: StartServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{(await server()).port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await health(channel, "nobody")
        assert failure.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_port_that_is_taken_is_an_error_of_the_system(server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="cannot listen"):
        await server(port=taken.getsockname()[1])


async def test_two_processes_do_not_share_a_port_unseen(server: StartServer) -> None:
    first = await server()
    with pytest.raises(OSError, match="cannot listen"):
        await server(port=first.port)


def trusting(folder: Path, port: int) -> Any:
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials((folder / "tls.crt").read_bytes()))


async def test_tls_with_files_that_may_be_replaced(server: StartServer, tmp_path: Path) -> None:
    made = await server(certificate=Certificate(*certify(tmp_path, "first")))
    async with trusting(tmp_path, made.port) as channel:
        assert await health(channel, "") == SERVING
    certify(tmp_path, "second")
    async with trusting(tmp_path, made.port) as channel:
        assert await health(channel, "") == SERVING
    (tmp_path / "tls.key").unlink()
    async with trusting(tmp_path, made.port) as channel:
        assert await health(channel, "") == SERVING


async def test_tls_without_its_files_does_not_start(server: StartServer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await server(certificate=Certificate(tmp_path / "none.crt", tmp_path / "none.key"))


def test_the_committed_messages_are_those_of_the_proto(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="no protobuf compiler (grpcio-tools) is installed")
    here = Path(pb.__file__).parent
    root = here.parent.parent
    made = tmp_path / "made.bin"
    subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={made}",
            str(here / "ext_proc.proto"),
        ],
        check=True,
    )  # fmt: skip
    from google.protobuf import descriptor_pb2

    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    for message in compiled.message_type:
        for kind in (message, *message.nested_type):
            for field in kind.field:
                field.ClearField("json_name")
    assert descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb) == compiled
