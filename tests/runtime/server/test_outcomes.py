"""Every request ends in exactly one outcome, and nothing stays open (C192)."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest

from paceline_runtime.messages import AddRequest, FinishReason, Preemptions, RejectCode, Rejected

KINDS = (
    *("ok", "ok stream", "length", "n", "malformed", "unknown model", "too long", "refused", "tenant", "late"),
    *("fails", "fails stream", "leaves waiting", "leaves midway", "deadline"),
)


async def script(core: Any, request: AddRequest) -> None:
    kind = request.cache_salt
    if kind in ("refused", "tenant"):
        core.open.discard(request.request_id)
    if kind == "refused":
        core.send(Rejected(request.request_id, "full", RejectCode.QUEUE_FULL, 1.0))
    elif kind == "tenant":
        core.send(Rejected(request.request_id, "full", RejectCode.TENANT_LIMIT, 1.0))
    elif kind == "late":
        core.output(request, [], FinishReason.DEADLINE, message="late")
    elif kind == "fails":
        core.output(request, [], FinishReason.ERROR, message="broken")
    elif kind == "fails stream":
        core.output(request, core.encode("fox"))
        await asyncio.sleep(0.02)
        core.output(request, [], FinishReason.ERROR, message="broken")
    elif kind in ("leaves waiting", "deadline"):
        return
    elif kind == "leaves midway":
        while request.request_id in core.open:
            core.output(request, core.encode("fox"))
            await asyncio.sleep(0.01)
    else:
        for choice in range(1 + len(request.fork_ids)):
            await core.say(request, "the fox", choice=choice)


async def ask(front: Any, kind: str, name: str) -> None:
    body: dict[str, Any] = {"model": "org/tiny", "prompt": "the dog", "cache_salt": kind}
    headers = {"x-paceline-request-id": name}
    if kind in ("ok stream", "fails stream", "leaves midway"):
        body["stream"] = True
    if kind == "length":
        body["max_tokens"] = 1
    elif kind == "n":
        body["n"] = 3
    elif kind == "malformed":
        body["temperature"] = "hot"
    elif kind == "unknown model":
        body["model"] = f"model-{random.random()}"
    elif kind == "too long":
        body["prompt"] = [5] * 300
    elif kind == "deadline":
        headers["x-paceline-deadline-ms"] = "30"
    asking = asyncio.create_task(front.http.post("/v1/completions", json=body, headers=headers))
    if kind.startswith("leaves"):
        while front.replica.requests.find(name) is None:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    else:
        await asking


async def test_outcomes_add_up_to_what_was_received(front_end: Any, eventually: Any) -> None:
    wanted = [*KINDS] * 14
    random.Random(0).shuffle(wanted)
    async with front_end(script) as front:
        running = asyncio.Semaphore(24)

        async def one(kind: str, name: str) -> None:
            async with running:
                await ask(front, kind, name)

        await asyncio.gather(*(one(kind, f"n{n}") for n, kind in enumerate(wanted)))
        await eventually(lambda: len(front.replica.requests) == 0)
        assert front.replica.engine.open_requests == 0
        assert front.core.open == set()
        text = front.replica.metrics.render()[0].decode()

    def total(name: str) -> dict[str, float]:
        return {label: float(value) for label, value in re.findall(rf'(?m)^{name}{{\w+="(\w+)".*}} ([0-9.e+]+)$', text)}

    ended, refused = total("vllm:request_success_total"), total("paceline_requests_refused_total")
    assert ended == {"stop": 14 * 3, "length": 14, "abort": 14 * 2, "error": 14 * 4}
    assert refused == {"400": 14 * 2, "404": 14, "503": 14, "429": 14}
    received = re.search(r'paceline_requests_received_total{endpoint="completions".*} ([0-9.]+)', text)
    assert received is not None
    assert float(received[1]) == len(wanted) == sum(ended.values()) + sum(refused.values())
    assert "model-" not in text  # C185: nothing that a client sent is a label


async def test_series_do_not_grow_with_what_clients_send(front_end: Any) -> None:
    """C185, C186."""
    async with front_end() as front:

        async def series() -> int:
            return len((await front.http.get("/metrics")).text.splitlines())

        async def strange(n: int) -> None:
            headers = {"x-paceline-tenant": f"t{n}", "x-paceline-session": f"s{n}"}
            await front.http.post("/v1/completions", json={"model": f"m{n}", "prompt": "a"}, headers=headers)
            await front.http.get(f"/x/{n}")
            await front.http.request(f"M{n}", "/v1/models/x")

        await strange(0)
        before = await series()
        for n in range(1, 30):
            await strange(n)
        assert await series() == before


async def test_tenants_and_prompt_versions_have_series_of_their_own_up_to_a_bound(front_end: Any) -> None:
    async with front_end() as front:

        async def ask(n: int) -> None:
            headers = {"x-paceline-tenant": f"t{n}", "x-paceline-prompt-version": f"v{n}"}
            await front.http.post("/v1/completions", json={"model": "org/tiny", "prompt": "a"}, headers=headers)

        for n in range(30):
            await ask(n)
        await front.http.post("/v1/completions", json={"model": "org/tiny", "prompt": "a"})
        text = front.replica.metrics.render()[0].decode()
        made = len(front.core.encode("the quick brown fox")) + 1
        model = 'model_name="org/tiny"'
        assert f'paceline_tenant_requests_total{{{model},tenant="t0"}} 1.0' in text
        assert f'paceline_tenant_requests_total{{{model},tenant="_other"}} 10.0' in text
        assert f'paceline_tenant_requests_total{{{model},tenant="_none"}} 1.0' in text
        assert f'paceline_tenant_tokens_total{{kind="generation",{model},tenant="_other"}} {10.0 * made}' in text
        assert f'paceline_prompt_version_tokens_total{{kind="prompt",{model},prompt_version="v3"}} 1.0' in text
        assert "t25" not in text


async def test_preemptions_are_told_apart_by_few_classes(front_end: Any) -> None:
    async with front_end() as front:
        lost = [Preemptions("NoBlocks", "swap", str(n), 1) for n in range(-9, 10)] + [
            Preemptions("NoBlocks", "swap", "other", 5)
        ]
        front.core.more_stats = {"preemptions": lost}
        await front.http.post("/v1/completions", json={"model": "org/tiny", "prompt": "a"})
        text = front.replica.metrics.render()[0].decode()
        shown = dict(re.findall(r'paceline_preemptions_total{.*priority_class="(\w+)".*} ([0-9.]+)', text))
        assert shown == {"high": "9.0", "normal": "1.0", "low": "9.0", "other": "5.0"}


@pytest.mark.parametrize("value", ["0", "1"])
async def test_a_deadline_that_is_over_is_a_504(front_end: Any, value: str) -> None:
    async with front_end(script) as front:
        response = await front.http.post(
            "/v1/completions",
            json={"model": "org/tiny", "prompt": "a", "cache_salt": "deadline"},
            headers={"x-paceline-deadline-ms": value},
        )
        assert (response.status_code, response.json()["error"]["code"]) == (504, "deadline_exceeded")
