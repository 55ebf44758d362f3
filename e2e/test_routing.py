"""Shapes, tenants with keys, and waiting for the first replica, with the chart, the real router and the real engine."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from e2e_support import SYSTEM, Fleet, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.long, pytest.mark.timeout(900)]

CHART = str(Path(__file__).parents[1] / "charts" / "paceline")
KEY = "sk-of-team-a"
PLAIN = "sk-of-team-b"
"""Somebody put the key where its hash should be."""
QUESTION = [{"role": "user", "content": "Say hello."}]


def client_of(fleet: Fleet, key: str, namespace: str) -> openai.OpenAI:
    """The SDK with a key, at the address of the service."""
    return openai.OpenAI(
        base_url=f"{fleet.cluster.router_url}/{namespace}/chat/v1", api_key=key, max_retries=0, timeout=120
    )


@contextmanager
def routers_may_read(fleet: Fleet, namespace: str, secret: str) -> Iterator[None]:
    """The right to read one Secret, as an administrator gives it. Taken back before its namespace goes: the chart
    cannot be upgraded while it has a Role for a namespace that is not there.
    """

    def set_to(secrets: list[dict[str, str]]) -> None:
        release = json.loads(fleet.cluster.helm("list", "-A", "-o", "json"))[0]
        fleet.cluster.helm(
            *("upgrade", release["name"], CHART, "-n", release["namespace"], "--reuse-values"),
            *("--set-json", f"router.keySecrets={json.dumps(secrets)}"),
        )

    set_to([{"namespace": namespace, "name": secret}])
    try:
        yield
    finally:
        set_to([])


def test_tenants_are_known_by_keys_in_a_secret_and_held_to_their_limits(fleet: Fleet) -> None:
    with fleet.namespace("keys"), routers_may_read(fleet, "keys", "chat-keys"):
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        entries = {"team-a": digest, "team-b": PLAIN}
        data = {name: base64.b64encode(value.encode()).decode() for name, value in entries.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys", "namespace": "keys"}}
        fleet.cluster.kubectl("apply", "-f", "-", stdin=json.dumps({**secret, "data": data}))
        tenancy = {
            "identity": {"from": "APIKey", "secretName": "chat-keys"},
            "tenants": [{"name": "team-a", "requestsPerMinute": 12}],
        }
        fleet.apply("keys", "chat", tenancy=tenancy)
        fleet.wait_ready("keys", "chat")

        def let_in() -> str:
            try:
                answer = client_of(fleet, KEY, "keys").chat.completions.create(
                    model="keys/chat", max_tokens=4, messages=QUESTION
                )
            except (openai.AuthenticationError, openai.InternalServerError):
                return ""  # the router has not heard of the Secret yet
            return answer.choices[0].message.content or ""

        assert eventually(let_in, "the key opens the service", 60)
        with pytest.raises(openai.AuthenticationError) as refused:
            client_of(fleet, "sk-wrong", "keys").chat.completions.create(
                model="keys/chat", max_tokens=4, messages=QUESTION
            )
        assert refused.value.code == "invalid_api_key"

        with pytest.raises(openai.AuthenticationError):
            client_of(fleet, PLAIN, "keys").chat.completions.create(model="keys/chat", max_tokens=4, messages=QUESTION)
        logs = "\n".join(
            fleet.cluster.kubectl("logs", "-n", where, "-l", which, "--tail=-1")
            for where, which in (
                (SYSTEM, "app.kubernetes.io/component=router"),
                (SYSTEM, "app.kubernetes.io/component=operator"),
                ("keys", "paceline.io/service=chat"),
            )
        )
        assert "keys/chat-keys, entry team-b" in logs, "it is told which entry is wrong"
        assert not [word for word in (KEY, PLAIN, "sk-wrong", *entries.values(), *data.values()) if word in logs]

        # Twelve a minute, of which ten seconds' worth may come at once.
        def ask_often() -> None:
            for _ in range(4):
                client_of(fleet, KEY, "keys").chat.completions.create(
                    model="keys/chat", max_tokens=1, messages=QUESTION
                )

        with pytest.raises(openai.RateLimitError) as limited:
            ask_often()
        wait = int(limited.value.response.headers["retry-after"])
        assert 1 <= wait <= 10
        time.sleep(wait)
        client_of(fleet, KEY, "keys").chat.completions.create(model="keys/chat", max_tokens=1, messages=QUESTION)


def test_the_shape_of_a_request_the_reason_of_its_place_and_its_times_are_told_on_request(fleet: Fleet) -> None:
    with fleet.namespace("shapes"):
        fleet.apply(
            "shapes",
            "chat",
            pools=[{"name": "parallel", "shapes": ["StructuredOrParallel"], "replicas": 1}],
            slo={"ttft": {"p90": "30s", "p99": "60s"}},
        )
        fleet.wait_ready("shapes", "chat")
        url = f"{fleet.cluster.router_url}/v1/chat/completions"
        found = {}
        for n in (1, 2):
            body = {"model": "shapes/chat", "messages": QUESTION, "max_tokens": 4, "n": n}
            answer = httpx.post(url, json=body, headers={"x-paceline-explain": "1"}, timeout=120)
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["choices"]) == n
            found[n] = answer.headers
        assert (found[1]["x-paceline-shape"], found[1]["x-paceline-pool"]) == ("ShortInputShortOutput", "default")
        assert (found[2]["x-paceline-shape"], found[2]["x-paceline-pool"]) == ("StructuredOrParallel", "parallel")
        assert found[1]["x-paceline-reason"]
        times = {part.split(";")[0].strip() for part in found[1]["server-timing"].split(",")}
        assert {"router", "engine"} <= times


def test_a_request_for_a_service_at_zero_is_answered_when_its_first_replica_is_there(fleet: Fleet) -> None:
    with fleet.namespace("zero"):
        scaling = {"scaleToZero": {"holdRequestsFor": "90s"}}
        fleet.apply("zero", "chat", replicas=0, scaling=scaling)
        fleet.wait_reason("zero", "chat", "ScaledToZero")
        answers: list[str] = []

        def ask() -> None:
            answers.append(fleet.chat("zero/chat"))

        waiting = threading.Thread(target=ask)
        waiting.start()
        try:
            time.sleep(1.0)
            assert answers == [], "it waits"
            fleet.apply("zero", "chat", replicas=1, scaling=scaling)
            fleet.wait_ready("zero", "chat")
        finally:
            waiting.join(timeout=120)
        assert len(answers) == 1
        assert answers[0]
