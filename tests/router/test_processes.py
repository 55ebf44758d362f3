"""Several router processes on one port."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds import metrics as catalogue
from paceline_router.processes.merging import (
    Exposition,
    Waiting,
    counted,
    merge_demand,
    merge_expositions,
    merge_routes,
    merge_samples,
)
from paceline_router.processes.supervisor import reserve, share_of
from paceline_router.processes.worker import Orders
from paceline_router.report.text import OPENMETRICS, exposition, sample, service_labels
from paceline_router.settings import Settings

START_SECONDS = 60
BODY = {"model": "smollm2", "messages": []}
TOKEN = {"authorization": "Bearer secret"}


class Fleet:
    def __init__(self, running: asyncio.subprocess.Process, port: int, admin_port: int) -> None:
        self.running = running
        self.url = f"http://127.0.0.1:{port}"
        self.admin = f"http://127.0.0.1:{admin_port}"

    def workers(self) -> list[int]:
        """Process ids of the workers."""
        found = Path(f"/proc/{self.running.pid}/task/{self.running.pid}/children").read_text().split()
        return [int(pid) for pid in found if b"processes.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@asynccontextmanager
async def fleet(config: Path, *options: str, processes: int = 2) -> AsyncIterator[Fleet]:
    command = [sys.executable, "-m", "paceline_router", "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", "0", "--admin-port", "0", "--log-level", "error", "--processes", str(processes), *options]
    environment = {**os.environ, "PACELINE_ADMIN_TOKEN": "secret"}
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        assert running.stdout is not None
        line = await asyncio.wait_for(running.stdout.readline(), START_SECONDS)
        match = re.search(rb"http://127.0.0.1:(\d+) \(admin port (\d+)\)", line)
        assert match is not None, line
        yield Fleet(running, int(match[1]), int(match[2]))
    finally:
        send(running, signal.SIGKILL)
        await running.wait()


def send(running: asyncio.subprocess.Process, number: int) -> None:
    """Not by `running.send_signal`, which takes the exit code from `running.wait` where the process has just ended."""
    if running.returncode is None:
        os.kill(running.pid, number)


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def routes_file(tmp_path: Path, *ports: int) -> Path:
    path = tmp_path / "routes.yaml"
    replicas = "".join(f"\n  - url: http://127.0.0.1:{port}" for port in ports)
    path.write_text(f"services:\n- name: demo/chat\n  servedName: smollm2\n  replicas:{replicas or ' []'}\n")
    return path


async def ask(url: str, count: int = 1) -> list[int]:
    """Statuses of so many requests, each on a connection of its own, so that the kernel spreads them."""
    statuses = []
    for _ in range(count):
        async with httpx.AsyncClient(timeout=START_SECONDS) as client:
            statuses.append((await client.post(url + "/v1/chat/completions", json=BODY)).status_code)
    return statuses


async def has_answered(service: Fleet, count: int) -> bool:
    """Whether so many are counted by now: of a process that is late with its answer the last word counts."""
    async with httpx.AsyncClient(timeout=START_SECONDS) as client:
        text = (await client.get(service.admin + "/metrics")).text
    found = re.findall(r'paceline_router_requests_total\{[^}]*outcome="2xx"\} (\d+)', text)
    assert not found or int(found[0]) <= count
    return [int(value) for value in found] == [count]


async def page_of(client: httpx.AsyncClient) -> Any:
    """The routes page. While a process has no time to answer, it is a 503 for all."""
    async with asyncio.timeout(START_SECONDS):
        while (answer := await client.get("/v1/paceline/routes", headers=TOKEN)).status_code == 503:
            await asyncio.sleep(0.1)
    assert answer.status_code == 200
    return answer.json()


async def until(condition: Any) -> None:
    async with asyncio.timeout(START_SECONDS):
        while not await condition():
            await asyncio.sleep(0.05)


async def ready(service: Fleet) -> bool:
    async with httpx.AsyncClient(timeout=START_SECONDS) as client:
        return (await client.get(service.admin + "/health/ready")).status_code == 200


async def test_all_share_a_port_and_one_admin_api_answers_for_them(tmp_path: Path, peer: Any) -> None:
    replica = await peer()
    async with fleet(routes_file(tmp_path, replica.port), "--shutdown-delay", "0") as service:
        assert len(service.workers()) == 2
        await until(lambda: ready(service))
        assert await ask(service.url, 40) == [200] * 40
        await until(lambda: has_answered(service, 40))
        async with httpx.AsyncClient(base_url=service.admin, timeout=START_SECONDS) as client:
            shown = await client.get("/metrics", headers={"accept": OPENMETRICS})
            assert shown.headers["content-type"] == OPENMETRICS
            assert "# {request_id=" in shown.text
            assert shown.text.endswith("# EOF\n")
            assert (await client.get("/health/live")).status_code == 200
            assert (await client.get("/v1/paceline/routes")).status_code == 401
            page = await page_of(client)
            assert page["synced"]
            assert [replica["ready"] for replica in page["services"]["demo/chat"]["replicas"]] == [True]
            assert (await client.get("/none", headers=TOKEN)).status_code == 404
            async with client.stream("GET", "/v1/paceline/demand", headers=TOKEN) as answer:
                assert answer.status_code == 200
        send(service.running, signal.SIGTERM)
        assert await asyncio.wait_for(service.running.wait(), START_SECONDS) == 0


async def test_a_worker_that_dies_is_replaced_and_what_it_counted_is_kept(tmp_path: Path, peer: Any) -> None:
    replica = await peer()
    async with fleet(routes_file(tmp_path, replica.port), "--shutdown-delay", "0") as service:
        await until(lambda: ready(service))
        await ask(service.url, 20)
        await until(lambda: has_answered(service, 20))
        before = service.workers()
        os.kill(before[0], signal.SIGKILL)

        async def replaced() -> bool:
            now = service.workers()
            return len(now) == 2 and before[0] not in now and await ready(service)

        await until(replaced)
        assert await ask(service.url, 20) == [200] * 20
        await until(lambda: has_answered(service, 40))


async def test_sigterm_lets_streams_of_all_workers_end(tmp_path: Path, peer: Any) -> None:
    gate = asyncio.Event()

    async def hold(request: Any) -> None:
        request.begin_stream()
        request.event("before")
        await gate.wait()
        request.event("after")
        request.end_stream()

    replica = await peer(hold)

    async def stream(service: Fleet, begun: asyncio.Event) -> str:
        url = service.url + "/v1/chat/completions"
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", url, json={**BODY, "stream": True}) as answer,
        ):
            text = ""
            async for part in answer.aiter_text():
                text += part
                begun.set()
            return text

    async with fleet(routes_file(tmp_path, replica.port), "--shutdown-delay", "0") as service:
        await until(lambda: ready(service))
        begun = [asyncio.Event() for _ in range(8)]
        streams = [asyncio.create_task(stream(service, event)) for event in begun]
        for event in begun:
            await asyncio.wait_for(event.wait(), START_SECONDS)
        send(service.running, signal.SIGTERM)

        async def red() -> bool:
            return not await ready(service)

        await until(red)
        gate.set()
        for text in await asyncio.gather(*streams):
            assert "after" in text
            assert text.endswith("data: [DONE]\n\n")
        assert await asyncio.wait_for(service.running.wait(), START_SECONDS) == 0


async def test_workers_do_not_outlive_their_supervisor(tmp_path: Path) -> None:
    async with fleet(routes_file(tmp_path), "--shutdown-delay", "0") as service:
        workers = service.workers()
        send(service.running, signal.SIGKILL)

        async def gone() -> bool:
            return not any(runs(pid) for pid in workers)

        await until(gone)


async def test_a_start_that_cannot_work_ends_all_and_says_why(tmp_path: Path) -> None:
    config = tmp_path / "routes.yaml"
    config.write_text("services: 5\n")
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "paceline_router", "--config", str(config), "--port", "0", "--admin-port", "0"),
        *("--processes", "2"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(running.communicate(), START_SECONDS)
    assert running.returncode == 2
    assert b"routes.yaml" in errors
    assert b"Traceback" not in errors
    assert out == b""


def test_a_port_that_another_has_is_refused_even_if_it_could_be_shared() -> None:
    with reserve("127.0.0.1", 0) as theirs:
        theirs.listen()
        with pytest.raises(OSError, match="in use"):
            reserve("127.0.0.1", theirs.getsockname()[1])


def test_limits_of_the_whole_are_divided() -> None:
    share = share_of(Settings(max_client_connections=10, max_in_flight=1024), 4)
    assert (share.processes, share.max_client_connections, share.max_in_flight) == (4, 3, 256)
    orders = Orders("127.0.0.1", 8080, "t", share, None, 20)
    assert Orders.decode(orders.encode()) == orders


TEXT = """# HELP paceline_router_rejected_total Some.
# TYPE paceline_router_rejected_total counter
paceline_router_rejected_total{status="400"} %d
# HELP paceline_router_wait_seconds Waits.
# TYPE paceline_router_wait_seconds histogram
paceline_router_wait_seconds_bucket{le="+Inf"} %d
paceline_router_wait_seconds_sum 0.25
# TYPE paceline_router_client_connections gauge
paceline_router_client_connections %d
# TYPE paceline_router_services gauge
paceline_router_services 3
# TYPE paceline_router_table_synced gauge
paceline_router_table_synced %d
# TYPE paceline_router_table_age_seconds gauge
paceline_router_table_age_seconds %s
"""


def test_counters_are_added_and_of_ages_the_oldest_counts() -> None:
    one, other = Exposition.parse(TEXT % (1, 2, 3, 1, "0.5")), Exposition.parse(TEXT % (10, 20, 30, 0, "1.5"))
    assert one.text() == TEXT % (1, 2, 3, 1, "0.5")
    merged = merge_expositions([one, other]).text()
    assert merged == (TEXT % (11, 22, 33, 0, "1.5")).replace("sum 0.25", "sum 0.5")
    assert merge_expositions([one, counted(other)]).text() == (TEXT % (11, 22, 3, 1, "0.5")).replace(
        "sum 0.25", "sum 0.5"
    )


def test_requests_to_look_at_outlive_the_merging_and_no_label_passes_for_one(helpers: Any) -> None:
    forged = 'x # {request_id="forged"} 1'
    labels = (*service_labels(helpers.KEY), ("tenant", forged), ("le", "+Inf"))
    bucket = f"{catalogue.ROUTER_TENANT_TTFT.name}_bucket"
    samples = [(bucket, labels, 3), sample(catalogue.ROUTER_TENANT_ADMITTED, labels[:2], forged, value=5)]
    with_one = exposition(samples, {(bucket, labels): ('r-"1', 0.25)})
    without = exposition(samples, {})
    one = Exposition.parse(with_one)
    assert one.text(openmetrics=True) == with_one
    assert one.text() == exposition(samples)
    assert Exposition.parse(without).exemplars == {}
    merged = merge_expositions([one, Exposition.parse(without)]).text(openmetrics=True)
    assert merged == with_one.replace("} 3 #", "} 6 #").replace("} 5", "} 10")


@given(st.lists(st.integers(0, 2**53 // 20), min_size=1, max_size=10))
def test_no_count_is_lost(counts: list[int]) -> None:
    merged = merge_expositions(Exposition.parse(TEXT % (count, count, 0, 1, "1.0")) for count in counts)
    assert merged.series["paceline_router_rejected_total"] == {
        'paceline_router_rejected_total{status="400"}': sum(counts)
    }


def page(generation: int | None, *replicas: dict[str, Any], age: float | None = 1.0, **services: Any) -> dict[str, Any]:
    chat = {"generation": generation, "servedName": "m", "problems": [], "replicas": list(replicas)}
    return {
        **{"synced": True, "ageSeconds": age, "error": None, "keys_unreadable": {}},
        "services": {"demo/chat": chat, **services},
    }


def replica(uid: str, **fields: Any) -> dict[str, Any]:
    usual = {"ready": True, "draining": False, "inFlight": 2, "loadKnown": True, "ejected": False}
    return {"uid": uid, "name": uid, **usual, **fields}


def test_what_one_process_does_not_follow_yet_is_not_followed() -> None:
    pages = [
        page(4, replica("a"), replica("b", draining=True), age=3.0, other={"generation": 1, "replicas": []}),
        page(3, replica("a", ready=False, ejected=True, loadKnown=False), replica("b")),
    ]
    merged = merge_routes(pages)
    assert list(merged["services"]) == ["demo/chat"]
    chat = merged["services"]["demo/chat"]
    assert chat["generation"] == 3
    assert merged["ageSeconds"] == 3.0
    assert chat["replicas"] == [
        replica("a", inFlight=4, ejected=True, loadKnown=False),
        replica("b", inFlight=4),
    ]
    assert merge_routes([*pages, page(None, age=None)])["services"]["demo/chat"]["generation"] is None
    assert merge_routes([*pages, page(None, age=None)])["ageSeconds"] is None
    assert not merge_routes([page(1), {**page(1), "synced": False}])["synced"]


def test_keys_are_unreadable_when_no_process_can_check_them_and_every_problem_is_told() -> None:
    fine, troubled = page(1), page(1)
    troubled["keys_unreadable"] = {"demo/chat": "it does not exist"}
    troubled["services"]["demo/chat"]["problems"] = ["odd", "API keys cannot be checked: it does not exist"]
    merged = merge_routes([fine, troubled])
    assert merged["keys_unreadable"] == {}
    assert merged["services"]["demo/chat"]["problems"] == troubled["services"]["demo/chat"]["problems"]
    merged = merge_routes([troubled, troubled])
    assert merged["keys_unreadable"] == troubled["keys_unreadable"]
    assert len(merged["services"]["demo/chat"]["problems"]) == 2


def test_samples_and_demand_are_those_of_all() -> None:
    pages = [
        {"scale": "s", "to": 9.0, "services": {"a/b": {"from": 1.0, "rows": [1]}}},
        {"scale": "s", "to": 8.0, "services": {"a/b": {"from": 2.0, "rows": [2]}, "c/d": {"from": 0.0, "rows": []}}},
    ]
    assert merge_samples(pages) == {
        "scale": "s",
        "to": 8.0,
        "services": {"a/b": {"from": 2.0, "rows": [1, 2]}, "c/d": {"from": 0.0, "rows": []}},
    }
    heard = [{"a/b": Waiting("a/b", 1, 50, 7)}, {"a/b": Waiting("a/b", 2, 70, 1), "c/d": Waiting("c/d", 0, 0, 0)}]
    assert merge_demand(heard) == [Waiting("a/b", 3, 70, 8), Waiting("c/d", 0, 0, 0)]
