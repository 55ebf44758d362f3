"""The router benchmark counts every request and gives its figures."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline_bench.__main__ import app
from paceline_bench.comparison import Case, Sample
from paceline_bench.router import goals, native, timed
from paceline_bench.router.systems import SYSTEMS, has_compiled
from paceline_bench.router.works import UNIQUE, WORKS, Work, prompt, select, write_requests

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="the benchmark compiles its load generator with gcc")
MISSING = {"PACELINE_PEER_VLLM_ROUTER": "/nowhere/vllm-router"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> native.Programs:
    return native.build(tmp_path_factory.mktemp("programs"))


@needs_gcc
def test_the_benchmark_writes_a_row_for_every_load_and_system_and_names_what_is_missing(tmp_path: Path) -> None:
    options = [
        "--rounds",
        "1",
        "--seconds",
        "0.3",
        "--warm",
        "0.1",
        "--out",
        str(tmp_path),
        "--works",
        "json:64:32,sse",
    ]
    wanted = ["--systems", "paceline,vllm-router,aiohttp,c-relay", "--features", "plain", "--requests", "200"]
    result = CliRunner().invoke(app, ["router", *options, *wanted], env=MISSING)
    assert result.exit_code == 3, result.output
    assert "left out: vllm-router: not installed" in result.stderr
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["schema"] == "paceline.results/v1"
    figures = {(row["work"], row["system"], row["metric"]): row for row in document["rows"]}
    build = "compiled" if has_compiled() else "source"
    assert f"paceline (plain): the {build} build" in result.stderr
    for work, metric in (("json", "cpu_us_per_request"), ("json", "requests_per_s"), ("sse", "cpu_us_per_chunk")):
        for system in ("paceline", "aiohttp", "c-relay"):
            row = figures[work, system, metric]
            assert row["value"] > 0
            assert {"connections", "body_bytes", "features"} <= set(row["params"])
            assert row["params"].get("build") == (build if system == "paceline" else None)
    for work in ("json", "sse"):
        assert figures[work, "paceline", "added_ttft_ms_p99"]["unit"] == "ms"
    assert figures["json", "paceline", "cpu_us_per_request_ratio"]["params"]["goal"] == 1.9
    assert figures["all", "paceline", "not_answered"]["value"] == 0
    assert [row["params"]["requests"] for row in document["rows"] if row["work"] == "memory"] == list(range(0, 201, 20))


@needs_gcc
def test_every_request_of_the_load_generator_has_one_outcome(programs: native.Programs, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    write_requests(file, Work("sse", 8, 64, gap_ms=2))
    with native.replicas(programs, 2, tmp_path, slots=2) as ports:
        made = timed.run(programs, file, ports, None, connections=8, warm=0.0, seconds=0.5).counted
    assert made.sent == sum(made.outcomes.values()) == made.outcomes["answered"]
    assert made.bad == 0
    assert made.events >= made.requests * 64


@needs_gcc
def test_what_a_router_refuses_breaks_or_leaves_open_is_told_apart(programs: native.Programs, tmp_path: Path) -> None:
    body = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    file = tmp_path / "requests"
    file.write_bytes(b"%d -1\n" % len(body) + body)
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    answers = {
        "answered": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        "refused": b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
        "failed": b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        "error_events": chunked + b'13\r\ndata: {"error": {}}\r\n0\r\n\r\n',
        "cut": chunked + b"9\r\ndata: {}\n",
        "no_answer": b"",
    }
    for outcome, answer in answers.items():
        server = ["python3", "-c", SERVER, answer.hex(), str(int(outcome in ("cut", "no_answer")))]
        process = subprocess.Popen(server, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            made = timed.run(programs, file, [port], None, connections=1, warm=0, seconds=5, most=3).counted
        finally:
            process.kill()
            process.wait()
        assert (outcome, made.outcomes[outcome]) == (outcome, 3)
        assert made.sent == 3


SERVER = """
import socket, sys
answer, close = bytes.fromhex(sys.argv[1]), sys.argv[2] == "1"
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    peer, _ = listener.accept()
    while peer.recv(65536):
        peer.sendall(answer)
        if close:
            break
    peer.close()
"""


@needs_gcc
def test_an_open_loop_begins_as_many_requests_as_asked_for(programs: native.Programs, tmp_path: Path) -> None:
    file = tmp_path / "requests"
    write_requests(file, Work("json", 4, 64))
    with native.replicas(programs, 1, tmp_path) as ports:
        made = timed.run(programs, file, ports, None, connections=16, warm=0, seconds=1, rate=300).counted
    assert 200 < made.sent < 400
    assert made.bad == 0


@pytest.mark.parametrize("size", [64, 4096])
@pytest.mark.parametrize("shared", ["", "x" * 40, "x" * 10_000])
def test_prompts_have_their_size_and_a_place_that_differs_each_time(size: int, shared: str) -> None:
    text = prompt(random.Random(1), size, shared)
    assert len(text) == size
    assert UNIQUE in text
    assert UNIQUE not in prompt(random.Random(1), size, shared, unique=False)


def test_loads_are_chosen_by_the_start_of_their_name() -> None:
    assert select(["json"]) == [work for work in WORKS if work.name == "json"]
    assert [w.connections for w in select(["json:64"])] == [32, 256, 1024]
    assert [w.label for w in select(["json:4096:32", "sse"])] == [
        "json 4 KB, 32 connections",
        "sse 64 B, 256 connections",
    ]
    with pytest.raises(ValueError, match="no load is called jso"):
        select(["jso"])


def test_goals_are_for_loads_metrics_and_peers_that_exist() -> None:
    for goal in goals.GOALS:
        work = next(w for w in WORKS if goal.fits(w, goal.metric, goal.peer))
        assert goals.goal_of(work, goal.metric, goal.peer) == goal.at_most
        assert goal.peer in SYSTEMS


def test_ratios_pair_the_turns_of_one_round() -> None:
    case = Case("json", {})
    for ours, theirs in ((10.0, 20.0), (30.0, 40.0)):
        case.add("paceline (all)", Sample({"cpu_us_per_request": ours}))
        case.add("c-relay", Sample({"cpu_us_per_request": theirs}))
    assert goals.ratios(case, "paceline (all)", "c-relay", "cpu_us_per_request") == [0.5, 0.75]
    assert goals.ratios(case, "paceline (all)", "vllm-router", "cpu_us_per_request") == []
