"""What probe results add up to."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from paceline_local.node.errors import ConfigError
from paceline_local.node.probes import (
    ProbeSpec,
    catch_up,
    first_state,
    http_get,
    named_port,
    observe,
    probe_spec,
    tcp_connect,
)

specs = st.builds(
    ProbeSpec,
    kind=st.sampled_from(["startup", "liveness", "readiness"]),
    handler=st.just({}),
    initial_delay=st.floats(0, 100),
    period=st.floats(1, 60),
    success_threshold=st.integers(1, 4),
    failure_threshold=st.integers(1, 4),
)


@given(specs, st.lists(st.booleans(), max_size=30))
def test_a_result_counts_once_it_came_as_often_in_a_row_as_the_threshold(spec: ProbeSpec, results: list[bool]) -> None:
    state = first_state(spec, 0.0, 0.0)
    expected = spec.kind == "liveness"
    for n in range(1, len(results) + 1):
        if state.failed:
            break
        state = observe(spec, state, results[n - 1], state.due)
        if n >= spec.success_threshold and all(results[n - spec.success_threshold : n]):
            expected = True
        if n >= spec.failure_threshold and not any(results[n - spec.failure_threshold : n]):
            expected = False
        assert state.passing is expected
        assert state.failed is (
            spec.kind != "readiness"
            and n >= spec.failure_threshold
            and not any(results[n - spec.failure_threshold : n])
        )


@given(specs, st.floats(0, 1000), st.floats(0, 1000))
def test_the_first_run_is_never_before_the_initial_delay(spec: ProbeSpec, started: float, now: float) -> None:
    state = first_state(spec, started, now)
    assert state.due >= started + spec.initial_delay
    assert state.due >= now


def test_missed_runs_are_skipped() -> None:
    spec = ProbeSpec("readiness", {}, period=10)
    state = observe(spec, first_state(spec, 0, 0), True, 0)
    assert catch_up(spec, state, 15.0).due == 10.0
    assert catch_up(spec, state, 500.0).due == 500.0


def test_defaults_are_those_of_the_api() -> None:
    spec = probe_spec("liveness", {"livenessProbe": {"tcpSocket": {"port": 1}}})
    assert spec is not None
    assert (spec.period, spec.timeout, spec.success_threshold, spec.failure_threshold) == (10, 1, 1, 3)
    assert probe_spec("startup", {"livenessProbe": {}}) is None


def test_grpc_probes_are_refused_with_words() -> None:
    with pytest.raises(ConfigError, match="use httpGet, tcpSocket or exec"):
        probe_spec("readiness", {"readinessProbe": {"grpc": {"port": 1}}})


def test_ports_are_found_by_name() -> None:
    container = {"ports": [{"name": "http", "containerPort": 8000}]}
    assert named_port("http", [container]) == 8000
    assert named_port("81", [container]) == 81
    with pytest.raises(ConfigError, match="no container port is named 'grpc'"):
        named_port("grpc", [container])


async def test_http_and_tcp_probes_against_a_real_server() -> None:
    seen = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers.get("X-Mine"))
        if request.path == "/slow":
            await asyncio.sleep(5)
        return web.Response(status=int(request.query.get("status", "200")))

    app = web.Application()
    app.router.add_get("/{any:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    container = {"ports": [{"name": "http", "containerPort": port}]}
    async with aiohttp.ClientSession() as session:

        async def probe(path: str, timeout: float = 5.0) -> tuple[bool, str]:
            body = {"path": path, "port": "http", "httpHeaders": [{"name": "X-Mine", "value": "1"}]}
            return await http_get(session, body, "127.0.0.1", container, timeout)

        assert (await probe("/"))[0]
        assert (await probe("/?status=302"))[0]
        good, words = await probe("/?status=503")
        assert not good
        assert words == "HTTP probe failed with statuscode: 503"
        good, words = await probe("/slow", timeout=0.1)
        assert not good
        assert "no answer within 0.1 s" in words
        assert (await tcp_connect({"port": port}, "127.0.0.1", container, 5.0))[0]
    await runner.cleanup()
    assert not (await tcp_connect({"port": port}, "127.0.0.1", container, 5.0))[0]
    assert set(seen) == {"1"}
