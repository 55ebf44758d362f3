"""The drivers of the router that count requests, tenants and choices say what happened, and nothing else."""

from __future__ import annotations

import asyncio
import json
import math
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline_bench.__main__ import app
from paceline_bench.router import loss, tenants
from paceline_bench.router.clients import Asked, Client, Outcome, Seen, Tally
from paceline_bench.router.faults import FAULTS
from paceline_bench.router.timed import OUTCOMES, Counted

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="the benchmark compiles its replicas with gcc")

STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"
ERROR = b'{"error": {"message": "why"}}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(status: bytes, body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status, more, len(body), body)


@asynccontextmanager
async def server(answer: bytes, close: bool) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            while await reader.read(65536):
                writer.write(answer)
                if close:
                    break
        writer.close()

    made = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with made:
        yield made.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("tokens", "answer", "close", "outcome"),
    [
        (0, whole(b"200 OK", b'{"choices": [{"message": {"content": "a"}}]}'), False, Outcome.ANSWERED),
        (2, STREAM + chunk(EVENT) + chunk(EVENT) + chunk(DONE) + END, False, Outcome.ANSWERED),
        (2, STREAM + chunk(b": wait\n\n" + EVENT + EVENT + DONE) + END, False, Outcome.ANSWERED),
        (2, STREAM + chunk(EVENT) + chunk(b'data: {"error": {"message": "why"}}\n\n') + END, True, Outcome.ERROR_EVENT),
        (2, whole(b"429 Too Many Requests", ERROR, b"retry-after: 3\r\n"), False, Outcome.REFUSED),
        (2, whole(b"503 Service Unavailable", ERROR, b"retry-after: 1\r\n"), False, Outcome.REFUSED),
        (2, whole(b"503 Service Unavailable", ERROR), False, Outcome.FAILED),
        (0, whole(b"502 Bad Gateway", ERROR), False, Outcome.FAILED),
        (2, STREAM + chunk(EVENT) + chunk(DONE) + END, False, Outcome.LOST),
        (2, STREAM + chunk(EVENT) + chunk(EVENT) + END, False, Outcome.LOST),
        (2, STREAM + chunk(EVENT) + chunk(EVENT), True, Outcome.LOST),
        (2, STREAM + chunk(EVENT) + b"40\r\ndata: ", True, Outcome.LOST),
        (0, whole(b"200 OK", b"<html>"), False, Outcome.LOST),
        (0, whole(b"502 Bad Gateway", b"<html>"), False, Outcome.LOST),
        (0, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", True, Outcome.LOST),
        (0, b"", True, Outcome.LOST),
    ],
)
async def test_a_client_tells_what_it_can_read_from_what_is_lost(
    tokens: int, answer: bytes, close: bool, outcome: Outcome
) -> None:
    async with server(answer, close) as port:
        client = Client([port], keep=True, rng=random.Random(0))
        for _ in range(2):
            seen = await client.ask(Asked(b"{}", tokens))
            assert seen.outcome is outcome, seen
        client.close()


async def test_nobody_listening_is_a_lost_request() -> None:
    async with server(b"", True) as port:
        pass
    seen = await Client([port], keep=False, rng=random.Random(0)).ask(Asked(b"{}"))
    assert seen.outcome is Outcome.LOST


def tally(**counts: int) -> Tally:
    made = Tally(sent=sum(counts.values()))
    for name, count in counts.items():
        for _ in range(count):
            made.add(Seen(Outcome[name], "", 0.0, None, 0.0))
    return made


def test_planned_operations_must_answer_everything_and_nothing_may_be_lost_in_any() -> None:
    assert all(fault.right(tally(ANSWERED=5)) for fault in FAULTS.values())
    assert not any(fault.right(tally(ANSWERED=5, LOST=1)) for fault in FAULTS.values())
    assert FAULTS["replica killed"].right(tally(ANSWERED=5, ERROR_EVENT=1))
    for planned in ("none", "replicas rolled", "replica added", "replica removed", "table reloaded", "router rolled"):
        assert not FAULTS[planned].right(tally(ANSWERED=5, ERROR_EVENT=1))
        assert not FAULTS[planned].right(tally(ANSWERED=5, REFUSED=1))
    forgotten = tally(ANSWERED=5)
    forgotten.sent += 1
    assert not FAULTS["replica killed"].right(forgotten)


@needs_gcc
def test_the_loss_driver_counts_every_request_while_a_replica_is_killed(tmp_path: Path) -> None:
    options = ["--faults", "replica killed", "--clients", "6", "-o", "json", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["router-loss", *options])
    assert result.exit_code == 0, result.output
    counts = {row["metric"]: row["value"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]}
    assert counts["sent"] == sum(counts[outcome.value] for outcome in Outcome) > 0
    assert counts["lost"] == counts["failed"] == 0


def test_a_fault_that_does_not_exist_is_named() -> None:
    result = CliRunner().invoke(app, ["router-loss", "--faults", "flood"])
    assert result.exit_code == 2
    assert "no fault is called 'flood'" in result.stderr


def test_requests_are_never_the_same_and_ask_for_what_is_checked() -> None:
    rng = random.Random(0)
    made = [loss.make(rng) for _ in range(50)]
    assert len({asked.body for asked in made}) == 50
    for asked in made:
        body = json.loads(asked.body)
        assert asked.tokens == (body["max_tokens"] if body.get("stream") else 0)


# Tenants


def counted(p99: int) -> Counted:
    nothing = dict.fromkeys(OUTCOMES, 0)
    return Counted(0, nothing, 0, 0, 1.0, 0, p99, p99, p99, p99, "")


@pytest.mark.parametrize(
    ("beside", "said"),
    [((100, 101, 99, 100), "no worse"), ((200, 210, 190, 205), "worse"), ((100, 140, 80, 110), "not known")],
)
def test_no_worse_needs_the_whole_interval_within_the_margin(beside: tuple[int, ...], said: str) -> None:
    pairs = tenants.Pairs([counted(100_000)] * len(beside), [counted(1000 * value) for value in beside])
    assert tenants.verdict(*pairs.difference("latency_ms_p99")[1:]) == said


def test_one_pair_is_never_enough() -> None:
    assert tenants.verdict(*tenants.interval([0.0])[1:]) == "not known"


@pytest.mark.parametrize(
    ("freedom", "known"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (11, 2.201), (100, 1.984)]
)
def test_quantiles_of_students_t_are_those_of_the_tables(freedom: int, known: float) -> None:
    assert math.isclose(tenants.student95(freedom), known, rel_tol=0.01)


def test_all_tenants_of_a_setting_are_asked_for() -> None:
    names = [tenant["name"] for tenant in tenants.SETTINGS["queue"]["tenancy"]["tenants"]]
    sent = b"".join(tenants.requests_of(names))
    assert all(f"x-paceline-tenant: {name}".encode() in sent for name in names)
