"""The finer points of the endpoint picker's protocol, with a real Envoy: headers, subsets, fallbacks, models, TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the endpoint picker needs the extra `epp` (grpcio)")
pytest.importorskip("google.protobuf", reason="the endpoint picker needs the extra `epp` (protobuf)")

from edge import BUFFERED, DUPLEX, NO_ENVOY, StartGateway, StartPeer, gateways, named, unchunked
from envoy_gateway import ENVOY, override_host
from self_signed import certify

from paceline_router.epp.server import Certificate

pytestmark = pytest.mark.skipif(ENVOY is None, reason=NO_ENVOY)

BOTH = pytest.mark.parametrize("mode", [BUFFERED, DUPLEX], ids=["buffered", "duplex"])


@pytest.fixture
def replica(peer: Any) -> StartPeer:
    """Start a scripted replica."""

    async def start(handler: Any) -> Any:
        return unchunked(await peer(handler))

    return start


@pytest.fixture
async def gateway(tmp_path: Path, helpers: Any) -> AsyncIterator[StartGateway]:
    """Start a data plane with these replicas, its picker, and an Envoy that asks it."""
    async with gateways(tmp_path, helpers.table_of) as start:
        yield start


async def test_headers_are_kept_apart(gateway: StartGateway, replica: StartPeer, helpers: Any) -> None:
    report = "x-paceline-load: v=1, run=7, wait=2, kv=10, ptok=0, dtok=0, seq=5\r\n"
    target = await replica(named("a", helpers, report))
    edge = await gateway(target)
    secret = {"authorization": "Bearer key", "cookie": "a=b", "x-paceline-session": "s1", "x-paceline-shape": "forged"}
    async with edge.ask(headers={**secret, "x-paceline-explain": "1"}) as response:
        assert "x-paceline-load" not in response.headers
        assert response.headers["x-paceline-pool"] == "default"
        assert "the only replica that could take it" in response.headers["x-paceline-reason"]
        assert response.headers["x-paceline-shape"] == "ShortInputShortOutput"
    received = target.received[-1].headers
    assert received["x-paceline-session"] == "s1"
    assert received["x-paceline-request-id"] == received["x-request-id"]
    assert received["x-paceline-shape"] == "ShortInputShortOutput"
    assert not received.keys() & {"authorization", "cookie"}
    assert edge.plane.backends["r0"].others == 8  # nine there, one of which is ours


async def test_only_endpoints_that_the_gateway_allows(gateway: StartGateway, replica: StartPeer, helpers: Any) -> None:
    peers = [await replica(named(name, helpers)) for name in "abc"]
    allowed = [f"127.0.0.1:{peers[1].port}"]
    edge = await gateway(*peers, subset=allowed)
    assert await edge.answers(6) == ["b"] * 6
    table = helpers.table_of(*peers)
    edge.plane.use(replace(table, replicas={uid: r for uid, r in table.replicas.items() if uid != "r1"}))
    async with edge.ask() as response:
        assert response.status == 503
        assert "that the gateway allows" in (await response.json())["error"]["message"]


async def test_replicas_whose_ports_the_pool_does_not_have_are_named(
    gateway: StartGateway, replica: StartPeer, helpers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    peers = [await replica(named(name, helpers)) for name in "ab"]
    edge = await gateway(*peers, subset=[f"127.0.0.1:{peers[0].port}"])
    assert await edge.answers(3) == ["a"] * 3
    said = [record.args[0] for record in caplog.records if "targetPorts" in record.msg and record.args]
    assert said == ["pod-1"]
    edge.plane.use(helpers.table_of(1, peers[1]))
    async with edge.ask() as response:
        assert response.status == 503
        assert "have other ports than" in (await response.json())["error"]["message"]


async def test_an_empty_list_of_allowed_endpoints_allows_none(
    gateway: StartGateway, replica: StartPeer, helpers: Any
) -> None:
    edge = await gateway(await replica(named("a", helpers)), subset=[])
    async with edge.ask() as response:
        assert response.status == 503


@BOTH
async def test_the_metadata_says_the_same_and_fallbacks_are_tried_in_order(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    peers = [await replica(named(name, helpers)) for name in "abc"]
    ports = [made.port for made in peers]
    edge = await gateway(*peers, mode=mode, cluster=override_host(*ports), fallbacks=2)
    for number, requests in enumerate((10, 0, 20)):
        edge.reports(number, requests)
    assert await edge.answers(3) == ["b"] * 3
    await peers[1].stop()
    assert await edge.answers(3) == ["a"] * 3
    # The request counts where it is answered, not where it could not be delivered.
    release = asyncio.Event()

    async def hold(request: Any) -> None:
        request.begin_stream()
        request.event("one")
        await release.wait()
        request.end_stream()

    peers[0].handler = hold
    async with edge.ask(stream=True) as response:
        await response.content.readuntil(b"\n\n")
        assert edge.loads() == [1, 0, 0]
        release.set()
        await response.content.read()
    await edge.until(lambda: edge.loads() == [0, 0, 0])
    await peers[1].start()


async def test_the_gateway_answers_for_the_models(gateway: StartGateway, replica: StartPeer, helpers: Any) -> None:
    edge = await gateway(await replica(named("a", helpers)))
    async with edge.session.get(edge.url + "/v1/models") as response:
        assert response.status == 200
        assert [model["id"] for model in (await response.json())["data"]] == ["smollm2"]
    async with edge.session.get(edge.url + "/elsewhere") as response:
        assert response.status == 404
    async with edge.ask(model="nobody") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("mode", [{"request_body_mode": "NONE"}, {"request_body_mode": "STREAMED"}])
async def test_a_gateway_that_does_not_show_the_body_is_told_so(
    gateway: StartGateway, replica: StartPeer, helpers: Any, mode: dict[str, str]
) -> None:
    edge = await gateway(await replica(named("a", helpers)), mode=mode)
    async with edge.ask() as response:
        assert response.status == 500
        assert "request_body_mode" in (await response.json())["error"]["message"]


async def test_tls_that_the_gateway_does_not_verify(
    gateway: StartGateway, replica: StartPeer, helpers: Any, tmp_path: Path
) -> None:
    target = await replica(named("a", helpers))
    edge = await gateway(target, certificate=Certificate(*certify(tmp_path, "paceline")))
    assert await edge.answers(2) == ["a", "a"]


async def test_a_gateway_without_its_picker_lets_nothing_through(
    gateway: StartGateway, replica: StartPeer, helpers: Any
) -> None:
    edge = await gateway(await replica(named("a", helpers)))
    assert await edge.answers() == ["a"]
    await edge.picker.stop(0)
    async with edge.ask() as response:
        assert response.status >= 500


async def test_the_configuration_in_the_docs_is_one(tmp_path: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs/concepts/endpoint-picker.md").read_text()
    written = tmp_path / "envoy.yaml"
    written.write_text(next(block for block in page.split("```") if block.startswith("yaml\n# envoy.yaml"))[5:])
    assert ENVOY is not None
    process = await asyncio.create_subprocess_exec(
        ENVOY,
        "--mode",
        "validate",
        "-c",
        str(written),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
