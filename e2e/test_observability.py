"""What a person on call sees of a real fleet: every series is in the catalogue, vLLM's dashboard is answered, promises
are judged, and no log says what anybody asked.
"""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2e_support import SYSTEM, Fleet, eventually
from vllm_dashboard import queries

from paceline_observability.catalogue import BY_SERIES, CATALOGUE, stored_labels

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]

NAMESPACE, NAME = "observed", "chat"
REQUESTS = 24
"""Enough for a P90 to be judged."""

CANARY = "canary-7d1f"
OTHERS = (
    "process_",
    "python_",
    "paceline_kv_tier_",
    "paceline_scaling_",
    "paceline_rollout_",
    "paceline_output_canary_",
)
"""Of features that this service does not use, or libraries' own."""


@pytest.fixture(scope="module")
def asked(fleet: Fleet) -> Iterator[str]:
    """The name that clients send of a service that promises something and was asked something."""
    with fleet.namespace(NAMESPACE):
        routing = {"slowRequestThreshold": "1ms"}
        fleet.apply(NAMESPACE, NAME, slo={"ttft": {"p90": "60s"}, "tpot": {"p90": "60s"}}, routing=routing)
        fleet.wait_ready(NAMESPACE, NAME)
        model = f"{NAMESPACE}/{NAME}"
        _ask(fleet, model)
        yield model


def _ask(fleet: Fleet, model: str) -> None:
    """Good requests and bad ones, each with a canary wherever a client can put one."""
    headers = {
        "authorization": f"Bearer {CANARY}-key",
        "cookie": f"session={CANARY}-cookie",
        "x-api-key": f"{CANARY}-api-key",
        "x-paceline-session": f"{CANARY}-session",
    }
    good = {
        "model": model,
        "max_tokens": 4,
        "user": f"{CANARY}-user",
        "stop": [f"{CANARY}-stop"],
        "messages": [
            {"role": "system", "content": f"{CANARY}-system"},
            {"role": "user", "content": f"{CANARY}-prompt: say hello."},
        ],
    }
    url = f"{fleet.cluster.router_url}/v1/chat/completions"
    with httpx.Client(timeout=60, headers=headers) as client:
        for number in range(REQUESTS):
            stream = {"stream": True} if number % 2 else {}
            answer = client.post(url, json={**good, **stream})
            assert answer.status_code == 200, answer.text
        for bad in (
            {**good, "messages": f"{CANARY}-no-list"},
            {**good, "temperature": f"{CANARY}-hot"},
            {**good, "messages": [{"role": f"{CANARY}-role", "content": "x"}]},
            {**good, "response_format": {"type": "json_schema", "json_schema": {"name": CANARY, "schema": CANARY}}},
            {**good, "messages": [{"role": "user", "content": f"{CANARY} " * 3000}]},
        ):
            assert client.post(url, json=bad).status_code >= 400
        assert client.post(url, content=f'{{"model": "{model}", "messages": [{CANARY}'.encode()).status_code == 400
        assert client.post(url, json=good, headers={"x-paceline-deadline-ms": CANARY}).status_code == 400
        assert client.get(f"{url}/{CANARY}?key={CANARY}").status_code in (404, 405)
        # A client that leaves in the middle.
        with client.stream("POST", url, json={**good, "stream": True, "max_tokens": 400}) as answer:
            next(answer.iter_bytes())


def _query(fleet: Fleet, path: str, **parameters: str) -> Any:
    body = httpx.get(f"{fleet.cluster.prometheus_url}/api/v1/{path}", params=parameters, timeout=30).json()
    assert body["status"] == "success", body
    return body["data"]


def _fresh(fleet: Fleet) -> bool:
    """Whether the last requests are scraped."""
    promql = f'sum(paceline_router_requests_total{{namespace="{NAMESPACE}",outcome="2xx"}})'
    found = _query(fleet, "query", query=promql)["result"]
    return bool(found) and float(found[0]["value"][1]) >= REQUESTS


def test_every_series_of_the_fleet_is_in_the_catalogue_and_all_of_the_catalogue_is_there(
    fleet: Fleet, asked: str
) -> None:
    eventually(lambda: _fresh(fleet), "the requests are scraped")
    series = _query(fleet, "series", **{"match[]": '{job="pods",__name__!~"up|scrape_.+"}'})
    names = {one["__name__"] for one in series}
    assert names <= BY_SERIES.keys(), f"not in the catalogue: {sorted(names - BY_SERIES.keys())}"
    for one in series:
        assert one.keys() - {"__name__"} <= stored_labels(one["__name__"]), one
    seen = {BY_SERIES[name].name for name in names}
    missing = {metric.name for metric in CATALOGUE if not metric.name.startswith(OTHERS)} - seen
    assert not [name for name in sorted(missing) if _always(name)]


def _always(name: str) -> bool:
    """Whether a metric has a series from the start, or since an ordinary request: what else there is needs a fault, a
    limit, several pools or several processes.
    """
    rare = (
        "spills", "ejections", "tenant", "identity", "imbalance", "estimate", "retries", "traced", "process_restarts",
        "preemptions", "rejections", "refused", "shadow", "recorder", "errors", "drift_unknown", "crd_missing",
        "waiting_by_reason", "prompt_version", "engine_seconds", "canary", "held", "oldest", "split",
        "tuning",
    )  # fmt: skip
    return not any(word in name for word in rare)


def test_vllms_dashboard_is_answered_by_a_replica_of_the_fleet(fleet: Fleet, asked: str) -> None:
    eventually(lambda: _fresh(fleet), "the requests are scraped")
    (info,) = _query(fleet, "query", query=f'vllm:num_requests_running{{namespace="{NAMESPACE}"}}')["result"]
    assert {"service", "pool", "revision", "pod"} <= info["metric"].keys()
    for panel, promql in queries(info["metric"]["model_name"], "10m"):
        found = _query(fleet, "query", query=promql)["result"]
        assert found, panel
        assert all(math.isfinite(float(one["value"][1])) for one in found if "histogram_quantile" in promql), panel


def test_promises_are_judged_from_what_the_routers_saw_and_exported(fleet: Fleet, asked: str) -> None:
    def judged() -> dict[str, Any] | None:
        found = fleet.condition(NAMESPACE, NAME, "SLOMet")
        return found if found is not None and found["status"] != "Unknown" else None

    # The operator looks once a minute.
    found = eventually(judged, f"SLOMet ({fleet.condition(NAMESPACE, NAME, 'SLOMet')})", 180)
    assert found is not None
    assert (found["status"], found["reason"]) == ("True", "PromisesKept")
    assert "TTFT P90 (at most 60s): kept by" in found["message"]
    limits = f'paceline_slo_threshold_seconds{{namespace="{NAMESPACE}",service="{NAME}"}}'
    exported = {
        (one["metric"]["signal"], one["metric"]["level"]): float(one["value"][1])
        for one in _query(fleet, "query", query=limits)["result"]
    }
    assert exported == {("ttft", "p90"): 60.0, ("tpot", "p90"): 60.0}


@pytest.mark.parametrize("more", [(NAME,), ()])
def test_a_fleet_and_a_service_are_seen_at_a_glance(fleet: Fleet, asked: str, more: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "paceline_cli", "status", *more, "-n", NAMESPACE]
    environ = {**os.environ, "KUBECONFIG": str(fleet.cluster.kubeconfig)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert (f"{NAMESPACE}/{NAME}: ready (AsAsked)" if more else "AsAsked") in done.stdout
    assert ("SLOMet" if more else "SLO") in done.stdout


def test_no_log_has_what_a_client_said_and_each_line_is_an_object(fleet: Fleet, asked: str) -> None:
    secret = fleet.cluster.get("secret", "paceline-router-admin", "-n", SYSTEM)
    token = base64.b64decode(secret["data"]["token"]).decode()
    logs = {
        component: fleet.cluster.kubectl(
            "logs", "-n", SYSTEM, "-l", f"app.kubernetes.io/component={component}", "--tail=-1"
        )
        for component in ("router", "operator")
    }
    logs["replica"] = fleet.cluster.kubectl("logs", "-n", NAMESPACE, "-l", f"paceline.io/service={NAME}", "--tail=-1")
    for component, text in logs.items():
        assert text.strip(), component
        assert CANARY not in text, [line for line in text.splitlines() if CANARY in line][:3]
        assert token not in text, component
        for line in text.splitlines():
            # The line for people, on standard output, that says that it is ready is the one that is no object.
            ready = "ready" in line and (" at http://" in line or " on http://" in line)
            assert ready or isinstance(json.loads(line), dict), f"{component}: {line}"
    slow = [json.loads(line) for line in logs["router"].splitlines() if "slow_request" in line]
    ours = [one for one in slow if one["service"] == asked]
    assert ours
    assert all(next(iter(one)) in ("revision", "service") for one in ours)
    decisions = [json.loads(line) for line in logs["operator"].splitlines() if '"decision":' in line]
    assert any(one["service"] == asked and one["decision"] == "Ready" for one in decisions)
    (pod,) = fleet.pods(NAMESPACE)
    first = json.loads(next(line for line in logs["replica"].splitlines() if line.startswith("{")))
    assert next(iter(first.items())) == ("revision", pod["metadata"]["labels"]["paceline.io/pool-hash"])
