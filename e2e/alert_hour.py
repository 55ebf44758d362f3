"""An hour of ordinary work under the rules as shipped: whatever fires is a false alarm.

    python e2e/alert_hour.py --minutes 60 --out results/alert-hour

A local cluster of its own; three small services, one of them idle; a few clients with streams and whole answers,
prompts of three lengths, now and then a request that is wrong or whose client leaves; and what people do on a working
day: a new version rolls out, a service is scaled, a replica is deleted, the operator restarts, a service is deleted.
Prometheus scrapes every 15 s, and Alertmanager is behind it. `alert-hour.json` has each alert by Prometheus' own record
of `ALERTS` (`pending` ones too), each message, what was asked, and the machine's load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from alerting import Watch, get, watching
from e2e_support import SYSTEM, Fleet

from paceline_local.testing import temporary_cluster
from paceline_observability.alerts import Windows, alerts

NAMESPACE = "hour"
SCRAPE = "15s"
PAUSE = 12.0
"""Mean seconds between two requests of a client: some 0.3 of a core in all."""

PROMISE = {"ttft": {"p90": "10s", "p99": "30s"}, "tpot": {"p90": "1s"}}
"""Generous, since others work on this machine: what is really late would be no false alarm."""

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "while", "seven", "wizards", "make", "brew")


@dataclass
class Traffic:
    """Clients that ask until they are told to stop; what became of it, by service."""

    url: str
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        """Four clients: three of `chat`, one of `batch`."""
        async with httpx.AsyncClient(base_url=self.url, timeout=120) as client:
            await asyncio.gather(*(self._client(client, stop, n, "batch" if n == 3 else "chat") for n in range(4)))

    async def _client(self, client: httpx.AsyncClient, stop: asyncio.Event, number: int, service: str) -> None:
        chance = random.Random(number)
        counts = self.outcomes.setdefault(service, Counter())
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), chance.expovariate(1 / PAUSE))
                return
            try:
                counts[await self._ask(client, chance, f"{NAMESPACE}/{service}")] += 1
            except (httpx.HTTPError, AssertionError) as error:
                counts["failed"] += 1
                self.failures.append(f"{time.strftime('%H:%M:%S')} {service}: {type(error).__name__}: {error}")

    async def _ask(self, client: httpx.AsyncClient, chance: random.Random, model: str) -> str:
        length = chance.choice((8, 8, 150, 400))
        content = " ".join(chance.choices(WORDS, k=length))
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": chance.choice((4, 16, 48)),
            "messages": [{"role": "system", "content": "You answer in short."}, {"role": "user", "content": content}],
        }
        kind = chance.choices(("whole", "stream", "stream with usage", "wrong", "left"), (30, 30, 30, 5, 5))[0]
        if kind == "whole":
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            return kind
        if kind == "wrong":
            answer = await client.post("/v1/chat/completions", json=body | {"temperature": -1})
            assert answer.status_code == 400, answer.text
            return kind
        body["stream"] = True
        if kind == "stream with usage":
            body["stream_options"] = {"include_usage": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            last = ""
            async for line in answer.aiter_lines():
                last = line or last
                if kind == "left":
                    return kind
            assert last == "data: [DONE]", last
        return kind


@contextlib.contextmanager
def asking(url: str) -> Iterator[Traffic]:
    """Traffic for the time of a `with` block, in a thread of its own."""
    traffic, loop, stop = Traffic(url), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(traffic.run(stop),))
    thread.start()
    try:
        yield traffic
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(180)
        loop.close()


def day(fleet: Fleet) -> list[tuple[float, str, Callable[[], object]]]:
    """What happens, and after which share of the time."""
    kubectl, operator = fleet.cluster.kubectl, "deployment/paceline-operator"

    def apply(name: str, **spec: Any) -> None:
        fleet.apply(NAMESPACE, name, slo=PROMISE, **spec)

    def delete_replica() -> None:
        pod = fleet.pods(NAMESPACE, "paceline.io/service=batch")[0]["metadata"]["name"]
        kubectl("delete", "pod", pod, "-n", NAMESPACE, "--wait=false")

    return [
        (0.15, "a new version of chat rolls out", lambda: apply("chat", runtime={"maxNumSeqs": 6})),
        (0.35, "chat is scaled to 2", lambda: kubectl("scale", "psvc/chat", "-n", NAMESPACE, "--replicas=2")),
        (0.55, "chat is scaled to 1", lambda: kubectl("scale", "psvc/chat", "-n", NAMESPACE, "--replicas=1")),
        (0.65, "one of two replicas of batch is deleted", delete_replica),
        (
            0.75,
            "the operator restarts",
            lambda: kubectl("rollout", "restart", operator, "-n", SYSTEM),
        ),
        (0.85, "idle is deleted", lambda: kubectl("delete", "psvc/idle", "-n", NAMESPACE, "--wait=false")),
    ]


def record(watch: Watch, begin: float, end: float) -> list[dict[str, Any]]:
    """Each alert that was pending or fired, with when and how often it was seen so."""
    found = get(f"{watch.prometheus}/api/v1/query_range", query="ALERTS", start=f"{begin}", end=f"{end}", step="15")[
        "data"
    ]["result"]
    return [
        {
            "alert": one["metric"],
            "from": round(float(one["values"][0][0]) - begin),
            "to": round(float(one["values"][-1][0]) - begin),
            "samples": len(one["values"]),
        }
        for one in found
    ]


def spend(fleet: Fleet, watch: Watch, seconds: float, out: Path) -> dict[str, Any]:
    """The hour itself; what was seen. Written again each minute, so that nothing is lost with the process."""
    begin, loads, happened = time.time(), [], []
    for name, replicas in (("chat", 1), ("batch", 2), ("idle", 1)):
        fleet.apply(NAMESPACE, name, slo=PROMISE, replicas=replicas)
    for name in ("chat", "batch", "idle"):
        fleet.wait_ready(NAMESPACE, name, 600)
    todo = day(fleet)
    assert fleet.cluster.router_url is not None
    with asking(fleet.cluster.router_url) as traffic:
        while True:
            passed = time.time() - begin
            while todo and passed >= todo[0][0] * seconds:
                _, what, act = todo.pop(0)
                act()
                happened.append({"after": round(time.time() - begin), "what": what})
            loads.append(os.getloadavg()[0])
            seen = {
                "seconds": round(passed),
                "scrape": SCRAPE,
                "rules": [alert.name for alert in alerts(Windows())],
                "happened": happened,
                "alerts": record(watch, begin, time.time()),
                "messages": [name for name, _ in watch.received.messages],
                "requests": {name: dict(counts) for name, counts in traffic.outcomes.items()},
                "failures": traffic.failures,
                "promises": [
                    {**one["metric"], "requests": float(one["value"][1])}
                    for one in watch.query("sum by (service, slo, result) (paceline_slo_requests_total)")
                ],
                "load": {"min": min(loads), "median": statistics.median(loads), "max": max(loads)},
            }
            out.write_text(json.dumps(seen, indent=1), encoding="utf-8")
            if passed >= seconds:
                return seen
            time.sleep(min(30.0, max(0.0, seconds - passed) + 0.1))


def main() -> None:
    """Run it, and say what fired."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True, help="folder for alert-hour.json and the logs")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with temporary_cluster(nodes=1, paceline=True, progress=print) as cluster:
        fleet = Fleet(cluster)
        with watching(cluster, given.out.resolve(), Windows(), SCRAPE) as watch, fleet.namespace(NAMESPACE):
            seen = spend(fleet, watch, given.minutes * 60.0, given.out / "alert-hour.json")
    fired = [one for one in seen["alerts"] if one["alert"]["alertstate"] == "firing"]
    print(json.dumps(seen["requests"]), f"{len(seen['failures'])} failed, load {seen['load']}")
    print(f"{len(fired)} alerts fired in {seen['seconds'] / 60:.0f} min", *fired, sep="\n")


if __name__ == "__main__":
    main()
