"""Whose a request is comes first: without a key nothing is told of a service and nothing of it moves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Any

import httpx
import pytest

from paceline_crds.routing import RoutingSpec
from paceline_crds.tenancy import TenancySpec
from paceline_router.report.admin import metrics_page, routes_page
from paceline_router.table.policy import Policy, make_policy
from paceline_router.table.records import Replica, Revision, Service, Table, TrafficShare
from paceline_router.tenancy.keys import Keys

PATH = "/v1/chat/completions"
BODY = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
GOOD = {"authorization": "Bearer good"}
BAD = {"authorization": "Bearer bad"}


def policy_of(**identity: str) -> Policy:
    tenancy = json.dumps({"identity": identity} if identity else {})
    return make_policy(RoutingSpec(), TenancySpec.model_validate_json(tenancy))


BY_KEY = policy_of(**{"from": "APIKey", "secretName": "keys"})
OPEN = policy_of()
BY_HEADER = policy_of(**{"from": "TrustedHeader"})


def service_of(key: str, policy: Policy) -> Service:
    return Service(key, key.partition("/")[2], policy=policy)


def keys_of(*keys: str) -> Keys:
    return Keys({hashlib.sha256(key.encode()).digest(): f"tenant-{key}" for key in keys})


def client_of(router: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=router.url, timeout=30)


def said(answer: httpx.Response) -> tuple[int, str, dict[str, str]]:
    """All of an answer that is not of this one request."""
    headers = {name: value for name, value in answer.headers.items() if name != "x-request-id"}
    return answer.status_code, answer.text, headers


class Source:
    error: str | None = None

    def age(self) -> float | None:
        return None


async def rolling(router: Any, peer: Any) -> Any:
    """A service with keys that is being rolled out from the name `smollm2` to `smollm3`."""
    port = (await peer()).port
    revisions = [
        Revision("demo/chat-1", "chat-1", "demo/chat", "2026-01-01", {"default": "h1"}, {"default": "smollm2"}),
        Revision("demo/chat-2", "chat-2", "demo/chat", "2026-01-02", {"default": "h2"}, {"default": "smollm3"}),
    ]
    replica = Replica("r0", "pod-0", "demo/chat", "default", "h1", "127.0.0.1", port, True, False)
    service = Service(
        "demo/chat", "smollm3", traffic=(TrafficShare("default", "chat-1", 100),), generation=1, policy=BY_KEY
    )
    table = Table({"demo/chat": service}, {made.key: made for made in revisions}, {"r0": replica})
    started = await router(table=table)
    started.plane.use_keys("demo/chat", keys_of("good"))
    return started


@pytest.mark.parametrize("headers", [{}, BAD, {"authorization": "Basic Z29vZA=="}])
async def test_without_a_key_no_revision_is_told_from_one_that_there_is_not(
    router: Any, peer: Any, headers: dict[str, str]
) -> None:
    service = await rolling(router, peer)
    async with client_of(service) as client:
        answers = [
            await client.post(PATH, json=BODY, headers={**headers, "x-paceline-revision": revision})
            for revision in ("chat-1", "chat-2", "chat-3")
        ]
        allowed = await client.post(PATH, json=BODY, headers={**GOOD, "x-paceline-revision": "chat-3"})
    assert {answer.status_code for answer in answers} == {401}
    assert said(answers[0]) == said(answers[1]) == said(answers[2])
    assert (allowed.status_code, allowed.json()["error"]["code"]) == (404, "revision_not_found")


@pytest.mark.parametrize("by_hand", [{}, {"x-paceline-revision": "chat-2"}])
async def test_without_a_key_a_name_to_come_is_a_name_that_there_is_not(
    router: Any, peer: Any, by_hand: dict[str, str]
) -> None:
    service = await rolling(router, peer)
    async with client_of(service) as client:
        coming, absent = [
            await client.post(PATH, json={**BODY, "model": model}, headers={**BAD, **by_hand})
            for model in ("smollm3", "smollm4")
        ]
        card = await client.get("/v1/models/smollm3", headers=BAD)
        known = await client.post(PATH, json={**BODY, "model": "smollm3"}, headers=GOOD)
    assert coming.status_code == absent.status_code == card.status_code == 404
    assert coming.text.replace("smollm3", "smollm4") == absent.text
    assert known.status_code == 503
    assert "is being rolled out" in known.text


async def test_without_a_key_nothing_is_counted_but_that(router: Any, peer: Any) -> None:
    service = await rolling(router, peer)
    plane = service.plane
    living = plane.living["demo/chat"]
    living.budget.tokens = 10.0
    before = metrics_page(plane, Source())
    attempts = [
        (PATH, {**BODY, "stream": True}, {}),
        (PATH, BODY, {**BAD, "x-paceline-revision": "chat-1"}),
        (PATH, BODY, {**BAD, "x-paceline-revision": "chat-9"}),
        ("/demo/chat/v1/completions", {"prompt": "word " * 5000}, {**BAD, "x-paceline-session": "s"}),
        (PATH, BODY, {**BAD, "x-paceline-tenant": "blue", "x-paceline-prompt-version": "v1"}),
    ]
    async with client_of(service) as client:
        for path, body, headers in attempts:
            assert (await client.post(path, json=body, headers=headers)).status_code == 401
    assert (living.arrivals, living.budget.tokens) == (0, 10.0)
    assert not living.gate.queued
    assert plane.demand()[0].arrivals == 0
    changed = set(metrics_page(plane, Source()).splitlines()) - set(before.splitlines())
    moved = {re.split(r"[{ ]", line)[0] for line in changed}
    assert moved <= {
        "paceline_router_identity_rejected_total",
        "paceline_router_refused_total",
        "paceline_router_rejected_total",
        "paceline_router_client_connections",
    }
    async with client_of(service) as client:
        assert (await client.post(PATH, json=BODY, headers=GOOD)).status_code == 200
    assert plane.demand()[0].arrivals == 1


async def mixed(router: Any, *keyed: str, others: bool = True) -> Any:
    """Services with keys, and one without any identity and one with a trusted header."""
    services = {key: service_of(key, BY_KEY) for key in keyed}
    if others:
        services["demo/free"] = service_of("demo/free", OPEN)
        services["demo/team"] = service_of("demo/team", BY_HEADER)
    started = await router(table=Table(services))
    for key in keyed:
        started.plane.use_keys(key, keys_of("good" if key == "demo/mine" else "other"))
    return started


def ids(answer: httpx.Response) -> list[str]:
    return [card["id"] for card in answer.json()["data"]]


async def test_models_lists_what_a_key_may_use_and_what_needs_none(router: Any) -> None:
    service = await mixed(router, "demo/mine", "demo/yours")
    async with client_of(service) as client:
        assert ids(await client.get("/v1/models", headers=GOOD)) == ["free", "mine", "team"]
        for headers in ({}, BAD):
            assert ids(await client.get("/v1/models", headers=headers)) == ["free", "team"]
        assert (await client.get("/v1/models/mine", headers=GOOD)).status_code == 200
        assert (await client.get("/v1/models/free")).status_code == 200
        assert (await client.head("/v1/models", headers=BAD)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/mine", "/demo/mine/v1/models"])
@pytest.mark.parametrize(("headers", "words"), [({}, "No API key"), (BAD, "Incorrect API key")])
async def test_models_need_a_key_where_every_service_that_is_asked_about_does(
    router: Any, path: str, headers: dict[str, str], words: str
) -> None:
    service = await mixed(router, "demo/mine", "demo/yours", others=False)
    async with client_of(service) as client:
        answer = await client.get(path, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Bearer")
        assert words in answer.json()["error"]["message"]
        assert ids(await client.get("/v1/models", headers=GOOD)) == ["mine"]
    assert service.plane.living["demo/mine"].tenants._identity_rejected == [0] * 5


async def test_models_of_a_service_whose_keys_cannot_be_read_are_not_shown(router: Any) -> None:
    service = await mixed(router, "demo/mine", others=False)
    service.plane.use_keys("demo/mine", Keys(trouble="the file keys.yaml cannot be read"))
    async with client_of(service) as client:
        answer = await client.get("/v1/models", headers=GOOD)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "keys.yaml" not in answer.text
    page = routes_page(service.plane, Source())
    assert page["keys_unreadable"] == {"demo/mine": "the file keys.yaml cannot be read"}
    problems = page["services"]["demo/mine"]["problems"]
    assert problems == ["API keys cannot be checked: the file keys.yaml cannot be read"]


async def test_an_empty_table_lists_no_models_and_asks_for_no_key(router: Any) -> None:
    service = await router(table=Table())
    async with client_of(service) as client:
        answer = await client.get("/v1/models")
    assert (answer.status_code, ids(answer)) == (200, [])


async def test_a_key_whose_service_got_other_keys_is_no_longer_shown_it(router: Any) -> None:
    service = await mixed(router, "demo/mine")
    async with client_of(service) as client:
        assert "mine" in ids(await client.get("/v1/models", headers=GOOD))
        service.plane.use_keys("demo/mine", keys_of("new"))
        assert "mine" not in ids(await client.get("/v1/models", headers=GOOD))
        table = service.plane.table
        changed = dataclasses.replace(table.services["demo/mine"], policy=OPEN)
        service.plane.use(Table({**table.services, "demo/mine": changed}))
        assert "mine" in ids(await client.get("/v1/models"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("Bearer " + "k" * 1025, "The API key has 1025 characters, and none has more than 1024."),
        ("Bearer a b", "The API key has blanks or is not ASCII."),
        ("k" * 2000, "No API key was given. Send it in the header: Authorization: Bearer KEY."),
    ],
)
async def test_a_key_that_cannot_be_one_is_told_why(router: Any, value: str, words: str) -> None:
    service = await mixed(router, "demo/mine", others=False)
    async with client_of(service) as client:
        for answer in (
            await client.post(PATH, json={**BODY, "model": "mine"}, headers={"authorization": value}),
            await client.get("/v1/models", headers={"authorization": value}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert words in answer.json()["error"]["message"]
            assert "kkk" not in answer.text
