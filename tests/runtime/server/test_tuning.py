"""Knobs of a whole replica, changed over HTTP while it runs: what is refused, and where the change is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from paceline_crds.names import LABEL_POOL_HASH
from paceline_crds.tuning import TUNING_PATH
from paceline_operator.tuning.replicas import Page, Replicas

STARTED = {"maxNumSeqs": 8, "maxBatchedTokens": 64, "prefillChunkTokens": 32}


@pytest.fixture
def http(tiny_replica: Any) -> Iterator[httpx.Client]:
    """A client, after which everything is as at the start."""
    with httpx.Client(base_url=tiny_replica.url, timeout=60) as client:
        yield client
        assert client.put(TUNING_PATH, json={"knobs": {}}).json() == {"set": STARTED, "inEffect": STARTED}


def shown(http: httpx.Client, of: str) -> dict[str, float]:
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(f"paceline_knob_{of}{{")]
    return {line.split('knob="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


def test_a_change_is_in_effect_when_it_is_answered_and_told_beside_what_was_set(http: httpx.Client) -> None:
    before = http.get("/v1/paceline/config")
    answer = http.put(TUNING_PATH, json={"poolHash": "pool1234", "knobs": {"maxNumSeqs": 3}})
    assert (answer.status_code, answer.json()) == (200, {"set": STARTED, "inEffect": {**STARTED, "maxNumSeqs": 3}})
    seen = http.get("/v1/paceline/config", headers={"if-none-match": before.headers["etag"]})
    assert seen.status_code == 200, "who has the page of before is told that there is another one"
    assert seen.json()["parameters"]["maxNumSeqs"] == {
        "value": 3,
        "origin": "tuned",
        "set": {"value": 8, "origin": "environment"},
    }
    assert seen.json()["config_hash"] == before.json()["config_hash"], "it is the same configuration that runs"
    assert shown(http, "set") == STARTED
    assert shown(http, "in_effect") == {**STARTED, "maxNumSeqs": 3}
    body = {"model": "tiny", "prompt": [[5]] * 12, "max_tokens": 4, "ignore_eos": True}
    made = http.post("/v1/completions", json=body).json()
    assert len(made["choices"]) == 12
    http.put(TUNING_PATH, json={"knobs": {}})
    assert http.get("/v1/paceline/config").text == before.text


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"knobs": {"maxNumSeqs": 9}}, 400, "write at most 8"),
        ({"knobs": {"maxNumSeqs": 2, "maxBatchedTokens": 16}}, 400, "lower the first or raise the second"),
        ({"knobs": {"blockSize": 32}}, 400, "cannot change while the engine runs"),
        ({"knobs": {"maxNumSeqs": 2.5}}, 400, "whole numbers"),
        ({"knobs": {"maxNumSeqs": "2"}}, 400, "whole numbers"),
        ({"knob": {}}, 400, "knobs"),
        ({"poolHash": "other", "knobs": {"maxNumSeqs": 2}}, 409, "of pool hash pool1234, not other"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_what_to_write_and_changes_nothing(
    http: httpx.Client, body: dict[str, Any], status: int, words: str
) -> None:
    answer = http.put(TUNING_PATH, json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert shown(http, "in_effect") == STARTED


def test_it_is_asked_for_with_put_and_json_only(http: httpx.Client) -> None:
    assert http.get(TUNING_PATH).status_code == 405
    assert http.put(TUNING_PATH, content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert http.put(TUNING_PATH, content=b"a=1", headers={"content-type": "text/plain"}).status_code == 415
    assert http.put(TUNING_PATH, json={"knobs": {"x" * 5000: 1}}).status_code == 413


async def test_an_engine_that_goes_before_it_answers_is_told_as_such(front_end: Any, eventually: Any) -> None:
    async with front_end() as front:
        front.core.deaf = True
        asking = asyncio.create_task(front.http.put(TUNING_PATH, json={"knobs": {}}))
        await eventually(lambda: front.replica.engine._tunings)
        front.core.writer.close()
        answer = await asking
        assert answer.status_code == 503
        assert "engine" in answer.json()["error"]["message"]


async def test_the_operator_reads_what_it_needs_of_the_page_and_is_obeyed(
    http: httpx.Client, tiny_replica: Any
) -> None:
    body = {"model": "tiny", "prompt": [[5] * 40] * 3, "max_tokens": 6, "ignore_eos": True}
    made = await asyncio.to_thread(http.post, "/v1/completions", json=body)
    assert made.status_code == 200
    port = {"name": "metrics", "containerPort": httpx.URL(tiny_replica.url).port}
    pod = {
        "metadata": {"labels": {LABEL_POOL_HASH: "pool1234"}},
        "spec": {"containers": [{"name": "runtime", "ports": [port]}]},
        "status": {"podIP": "127.0.0.1"},
    }
    replicas = Replicas()
    said: list[Page | str] = []

    async def counted() -> Page:
        # Totals are those of the engine's last report, at most a second old.
        while True:
            said.append(await replicas.page(pod))
            page = said[-1]
            if isinstance(page, Page) and page.values["vllm:generation_tokens_total"] >= 18:
                return page
            await asyncio.sleep(0.05)

    page = await asyncio.wait_for(counted(), 60)
    assert (page.started, page.knobs) == (STARTED, STARTED)
    assert page.values["paceline_requests_received_total"] >= 1
    assert page.tpot[float("inf")] >= 1
    assert await replicas.tell(pod, {"maxNumSeqs": 4}) == ""
    told = await replicas.page(pod)
    assert isinstance(told, Page)
    assert told.knobs == {**STARTED, "maxNumSeqs": 4}
    assert "write at most 8" in await replicas.tell(pod, {"maxNumSeqs": 9})
    other = {**pod, "metadata": {"labels": {LABEL_POOL_HASH: "other"}}}
    assert "it answered 409" in await replicas.tell(other, {})
