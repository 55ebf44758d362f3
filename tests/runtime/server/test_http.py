"""What every answer has in common: ids, load, errors in one form, bounds; and the replica's own endpoints."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from paceline_crds import metrics as catalogue
from paceline_crds.headers import LoadReport
from paceline_runtime.messages import AddRequest, FinishReason, Preemptions, TierStats
from paceline_runtime.server.replica import Phase

CHAT = {"model": "org/tiny", "messages": [{"role": "user", "content": "hi"}]}


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(response.json()) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    return dict(error)


# --- ids and headers ---


async def test_every_answer_has_a_request_id_and_the_load(front_end: Any) -> None:
    async with front_end() as front:
        last = 0
        for method, path in (("GET", "/v1/models"), ("GET", "/nothing"), ("PUT", "/v1/models"), ("GET", "/metrics")):
            response = await front.http.request(method, path)
            assert response.headers["x-request-id"]
            report = LoadReport.decode(response.headers["x-paceline-load"])
            assert report is not None
            assert report.sequence > last
            last = report.sequence


async def test_the_routers_id_wins_over_the_clients(front_end: Any) -> None:
    async with front_end() as front:
        headers = {"x-request-id": "mine", "x-paceline-request-id": "router-1"}
        assert (await front.http.get("/version", headers=headers)).headers["x-request-id"] == "router-1"
        del headers["x-paceline-request-id"]
        assert (await front.http.get("/version", headers=headers)).headers["x-request-id"] == "mine"
        for bad in ("", "a b", "x" * 200, "é"):
            answer = await front.http.get("/version", headers={"x-request-id": bad.encode("latin-1")})
            assert answer.headers["x-request-id"] not in ("", bad)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-paceline-request-id", "two words"),
        ("x-paceline-request-id", "x" * 129),
        ("x-paceline-deadline-ms", "-5"),
        ("x-paceline-deadline-ms", "1.5"),
        ("x-paceline-deadline-ms", "1796011070000"),
        ("x-paceline-priority", "high priority"),
        ("x-paceline-tenant", ""),
        ("x-paceline-session", "a\tb"),
        ("x-paceline-shadow", "yes"),
    ],
)
async def test_malformed_headers_are_refused_by_name(front_end: Any, name: str, value: str) -> None:
    async with front_end() as front:
        response = await front.http.post("/v1/chat/completions", json=CHAT, headers={name: value})
        assert (response.status_code, error_of(response)["param"]) == (400, name)
        assert front.core.requests == []


async def test_a_header_that_is_there_twice_is_refused(front_end: Any) -> None:
    async with front_end() as front:
        headers = [("x-paceline-tenant", "a"), ("x-paceline-tenant", "b"), ("content-type", "application/json")]
        response = await front.http.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert (response.status_code, error_of(response)["param"]) == (400, "x-paceline-tenant")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_stopped_at_its_deadline(front_end: Any, eventually: Any, stream: bool) -> None:
    async def silent(core: Any, request: AddRequest) -> None:
        await asyncio.Event().wait()

    async with front_end(silent) as front:
        response = await front.http.post(
            "/v1/chat/completions", json={**CHAT, "stream": stream}, headers={"x-paceline-deadline-ms": "50"}
        )
        assert (response.status_code, error_of(response)["code"]) == (504, "deadline_exceeded")
        await eventually(lambda: len(front.core.aborted) == 1)


# --- errors ---


@pytest.mark.parametrize("path", ["/", "/x/y", "/v1", "/V1/models", "//v1/models", "/v1/chat/completions/", "/docs"])
async def test_unknown_paths_are_404_in_the_one_form(front_end: Any, path: str) -> None:
    async with front_end() as front:
        response = await front.http.get(path, follow_redirects=False)
        assert response.status_code == 404
        error_of(response)


async def test_wrong_methods_are_405_in_the_one_form(front_end: Any) -> None:
    async with front_end() as front:
        for method, path in (("GET", "/v1/chat/completions"), ("DELETE", "/v1/models"), ("POST", "/health/live")):
            response = await front.http.request(method, path)
            assert response.status_code == 405
            assert response.headers["allow"]
            error_of(response)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"5", b'{"model": NaN}', b'{"a":"\xff"}', b'{"a":"\\ud800"}', b"[" * 100_000]
)
async def test_bodies_that_are_no_json_object_are_400(front_end: Any, body: bytes) -> None:
    async with front_end() as front:
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            response = await front.http.post(path, content=body, headers={"content-type": "application/json"})
            assert response.status_code == 400
            error_of(response)


async def test_other_content_types_and_encodings_are_415(front_end: Any) -> None:
    async with front_end() as front:
        for headers in (
            {"content-type": "text/plain"},
            {"content-type": "application/x-www-form-urlencoded"},
            {"content-type": "application/json", "content-encoding": "gzip"},
        ):
            response = await front.http.post("/v1/chat/completions", content=b"{}", headers=headers)
            assert response.status_code == 415
            error_of(response)


async def test_bodies_over_the_bound_are_413_declared_or_not(front_end: Any) -> None:
    async def chunks() -> Any:
        for _ in range(30):
            yield b" " * 100

    async with front_end(max_body_bytes=1000) as front:
        kind = {"content-type": "application/json"}
        for content in (b" " * 1001, chunks()):
            response = await front.http.post("/v1/chat/completions", content=content, headers=kind)
            assert response.status_code == 413
            assert response.headers["connection"] == "close"
            error_of(response)
        assert (await front.http.get("/health/live")).status_code == 200


async def test_an_unexpected_fault_is_a_500_with_an_id_and_nothing_else(
    front_end: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with front_end() as front:

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("a secret path /etc/x")

        monkeypatch.setattr(front.replica.tokenizer, "encode_chat", broken)
        with caplog.at_level(logging.CRITICAL):
            response = await front.http.post("/v1/chat/completions", json=CHAT)
        assert response.status_code == 500
        assert "secret" not in response.text
        assert response.headers["x-request-id"] in error_of(response)["message"]


async def test_before_it_is_ready_and_while_it_drains_the_replica_says_503(front_end: Any) -> None:
    async with front_end() as front:
        for phase, live, reading in ((Phase.STARTING, 200, 503), (Phase.DRAINING, 200, 200), (Phase.DEAD, 503, 503)):
            front.replica.phase = phase
            response = await front.http.post("/v1/chat/completions", json=CHAT)
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            assert error_of(response)["type"] == "service_unavailable_error"
            assert (response.headers.get("connection") == "close") == (phase is not Phase.STARTING)
            assert (await front.http.get("/health/ready")).status_code == 503
            assert (await front.http.get("/health/live")).status_code == live
            assert (await front.http.get("/v1/paceline/load")).status_code == reading
            with pytest.raises(openai.InternalServerError):
                await front.sdk.chat.completions.create(**CHAT)
        front.replica.phase = Phase.SERVING
        assert (await front.http.get("/health/ready")).status_code == 200
        assert front.core.requests == []


# --- the engine goes away ---


async def test_when_the_engine_goes_open_streams_end_with_an_error_and_liveness_turns_red(front_end: Any) -> None:
    async def vanish(core: Any, request: AddRequest) -> None:
        core.output(request, core.encode("fox"))
        await asyncio.sleep(0.3)
        core.writer.close()

    async with front_end(vanish) as front:
        response = await front.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert response.text.rstrip().splitlines()[-1].startswith('data: {"error":')
        assert "[DONE]" not in response.text
        assert (await front.http.get("/health/live")).status_code == 503
        assert (await front.http.post("/v1/chat/completions", json=CHAT)).status_code == 503


async def test_an_engine_that_falls_silent_turns_liveness_red(front_end: Any, eventually: Any) -> None:
    async with front_end(liveness_seconds=0.3) as front:
        assert (await front.http.get("/health/live")).status_code == 200
        await asyncio.sleep(0.4)
        response = await front.http.get("/health/live")
        assert (response.status_code, response.json()["status"]) == (503, "unavailable")
        from paceline_runtime.messages import StepOutputs

        front.core.send(StepOutputs([], front.core.stats()))
        await eventually(lambda: front.replica.live(asyncio.get_running_loop().time()).ok)


# --- the replica's own endpoints ---


async def test_the_configuration_is_reported_with_origins_and_a_hash_as_etag(front_end: Any) -> None:
    async with front_end() as front:
        response = await front.http.get("/v1/paceline/config")
        body = response.json()
        assert body["parameters"]["maxModelLen"] == {"value": 256, "origin": "flag"}
        assert body["model_digest"] == "sha256:0"
        assert body["pool_hash"] == "pool1234"
        assert response.headers["etag"] == f'"{body["config_hash"]}"'
        again = await front.http.get("/v1/paceline/config", headers={"if-none-match": response.headers["etag"]})
        assert again.status_code == 304


async def test_requests_can_be_followed_by_their_id(front_end: Any, eventually: Any) -> None:
    steps = asyncio.Event()

    async def two_steps(core: Any, request: AddRequest) -> None:
        await steps.wait()
        core.output(request, core.encode("fox"))
        await asyncio.sleep(0.3)
        core.output(request, [core.eos], FinishReason.STOP, stop_token_id=core.eos)

    async with front_end(two_steps) as front:
        headers = {"x-paceline-request-id": "a/b-1"}

        async def state() -> dict[str, Any]:
            found: dict[str, Any] = (await front.http.get("/v1/paceline/requests/a/b-1")).json()
            return found

        asking = asyncio.create_task(front.http.post("/v1/chat/completions", json=CHAT, headers=headers))
        await eventually(lambda: len(front.core.requests) == 1)
        waiting = await state()
        assert (waiting["state"], waiting["completionTokens"], waiting["totalSeconds"]) == ("waiting", 0, None)
        steps.set()
        await eventually(lambda: front.replica.requests.find("a/b-1").state == "running")
        await asking
        over = await state()
        assert over["state"] == "stop"
        assert over["totalSeconds"] >= over["firstTokenSeconds"] > 0
        missing = await front.http.get("/v1/paceline/requests/other")
        assert (missing.status_code, error_of(missing)["code"]) == (404, "request_not_found")


async def test_metrics_are_exactly_those_of_the_catalogue(front_end: Any) -> None:
    tier = TierStats(
        name="host", active=True, reason="", blocks_used=1, blocks_total=2, stored_blocks_total=3,
        loaded_blocks_total=4, hit_tokens_total=5, saved_seconds_total=6.0, cost_seconds_total=7.0,
    )  # fmt: skip
    async with front_end() as front:
        front.core.more_stats = {
            "tiers": [tier],
            "preemptions": [Preemptions("NoBlocks", "recompute", "normal", 1)],
            "waiting_by_reason": {"NoBlocks": 1},
        }
        # Refusals have series once there is one: their statuses are no short list.
        await front.http.post("/v1/chat/completions", json={**CHAT, "model": "unheard-of"})
        await front.http.post("/v1/chat/completions", json=CHAT)
        text = (await front.http.get("/metrics")).text
    shown = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            family.documentation,
            {frozenset(sample.labels) - {"le"} for sample in family.samples},
        )
        for family in text_string_to_metric_families(text)
    }
    assert shown == {m.name: (m.kind, m.help, {frozenset(m.labels)}) for m in catalogue.RUNTIME}


async def test_who_accepts_openmetrics_gets_it_with_the_requests_to_look_at(front_end: Any) -> None:
    async def scripted(core: Any, request: AddRequest) -> None:
        await core.say(request, "the fox")

    async with front_end(scripted) as front:
        await front.http.post("/v1/chat/completions", json=CHAT, headers={"x-paceline-request-id": "router-1"})
        accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
        answer = await front.http.get("/metrics", headers={"accept": accept})
        plain = await front.http.get("/metrics", headers={"accept": "*/*"})
        # Longer ids than an exemplar may have are left out of it, and nothing else of the request is.
        long = {"x-paceline-request-id": "r" * 128}
        assert (await front.http.post("/v1/chat/completions", json=CHAT, headers=long)).status_code == 200
        later = await front.http.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# {" not in plain.text
    families = {family.name: family for family in openmetrics_families(answer.text)}
    assert families.keys() == {family.name for family in text_string_to_metric_families(plain.text)}
    pointed = {
        name: found.exemplar.labels
        for name, family in families.items()
        for found in family.samples
        if found.exemplar is not None
    }
    names = ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_time_per_output_token_seconds")
    assert pointed == {f"vllm:{name}": {"request_id": "router-1"} for name in names}
    assert "r" * 128 not in later.text
    assert 'vllm:time_to_first_token_seconds_count{model_name="org/tiny"} 2.0' in later.text


async def test_metrics_have_vllms_names_and_count_every_request_once(front_end: Any) -> None:
    async def scripted(core: Any, request: AddRequest) -> None:
        if request.sampling.max_tokens == 7:
            core.output(request, [], FinishReason.ERROR, message="no")
        else:
            await core.say(request, "the fox")

    async with front_end(scripted) as front:
        await front.http.post("/v1/chat/completions", json=CHAT)
        await front.http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})
        await front.http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 7})
        await front.http.post("/v1/chat/completions", json={**CHAT, "model": "unheard-of"})
        await front.http.post("/v1/completions", json={"model": "org/tiny", "prompt": ""})
        text = (await front.http.get("/metrics")).text
        samples = {
            line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[:1] != "#"
        }
        model = 'model_name="org/tiny"'
        ended = {
            r: samples[f'vllm:request_success_total{{finished_reason="{r}",{model}}}']
            for r in ("stop", "length", "abort", "error")
        }
        refused = {c: samples[f'paceline_requests_refused_total{{code="{c}",{model}}}'] for c in ("404", "400")}
        assert ended == {"stop": 1, "length": 1, "abort": 0, "error": 1}
        assert refused == {"404": 1, "400": 1}
        received = sum(
            samples[f'paceline_requests_received_total{{endpoint="{e}",{model}}}']
            for e in ("chat_completions", "completions")
        )
        assert received == sum(ended.values()) + sum(refused.values())
        assert samples[f"vllm:time_to_first_token_seconds_count{{{model}}}"] == 2
        assert f'paceline_config_info{{config_hash="{front.replica.config_hash}",pool_hash="pool1234"}}' in samples
        for name in (
            "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
            "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:num_preemptions_total",
            "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:inter_token_latency_seconds_sum",
            "vllm:e2e_request_latency_seconds_sum",
        ):  # fmt: skip
            assert f"{name}{{{model}}}" in samples
        assert "unheard-of" not in text


@pytest.mark.parametrize(
    "path", ["/health/live", "/health/ready", "/health", "/ping", "/version", "/v1/models", "/v1/models/org/tiny"]
)
async def test_head_is_answered_like_get_without_the_body(front_end: Any, path: str) -> None:
    async with front_end() as front:
        wanted, answer = await front.http.get(path), await front.http.head(path)
        assert (answer.status_code, answer.content) == (wanted.status_code, b"")
        for name in ("content-type", "content-length"):
            assert answer.headers[name] == wanted.headers[name]
        # The connection is of use for the next one.
        assert (await front.http.get(path)).content == wanted.content


async def test_a_chat_without_messages_is_an_invalid_value(front_end: Any) -> None:
    async with front_end() as front:
        response = await front.http.post("/v1/chat/completions", json={"model": "org/tiny", "messages": []})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, "messages", "invalid_value")


async def test_a_client_that_closes_its_sending_side_counts_as_gone(front_end: Any) -> None:
    async def never_ends(core: Any, request: Any) -> None:
        core.output(request, [5])

    async with front_end(never_ends) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
        body = json.dumps({"model": "org/tiny", "prompt": "fox", "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        writer.write(head + body)
        await reader.readuntil(b"data: ")
        writer.write_eof()
        async with asyncio.timeout(10):
            while not front.core.aborted:
                await asyncio.sleep(0.01)
        assert front.core.aborted == [front.core.requests[0].request_id]
        writer.close()
