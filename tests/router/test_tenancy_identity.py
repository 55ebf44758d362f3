"""Whose request it is: keys, their Secret or file, and headers."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.tenancy import TenancySpec
from paceline_kube import Timing
from paceline_kube.testing import FakeApiServer
from paceline_kube.testing import Refusal as KubeRefusal
from paceline_router.tenancy import tenants as tenants_module
from paceline_router.tenancy.keys import (
    MOST_PROBLEMS,
    Keys,
    digest_of,
    keys_from_entries,
    keys_from_secret,
    tenant_of_entry,
)
from paceline_router.tenancy.tenants import Tenants, identity_headers
from paceline_router.tenancy.watch import SecretWatcher
from paceline_router.wire.answers import Refusal
from paceline_router.wire.request_head import read_also, read_head

SECRETS = "/api/v1/secrets"
KEY = b"sk-chat-1"


def spec(**fields: Any) -> TenancySpec:
    return TenancySpec.model_validate_json(json.dumps(fields))


def by_key(*entries: tuple[str, bytes], **fields: Any) -> Tenants:
    made = Tenants()
    keys = Keys({digest_of(key): name for name, key in entries})
    made.use(spec(identity={"from": "APIKey", "secretName": "chat-keys"}, **fields), keys)
    return made


def refused(made: Tenants, headers: dict[str, bytes]) -> Any:
    with pytest.raises(Refusal) as caught:
        made.identify(headers)
    return caught.value.answer


def rejected(made: Tenants) -> dict[str, float]:
    name = "paceline_router_identity_rejected_total"
    samples = made.samples((("namespace", "demo"), ("service", "chat")))
    return {dict(labels)["reason"]: value for sample, labels, value in samples if sample == name and value}


def test_a_key_names_its_tenant_whatever_the_client_says_of_itself() -> None:
    made = by_key(("chat", KEY), ("batch.laptop", b"sk-batch"))
    headers = {"authorization": b"Bearer sk-chat-1", "x-paceline-tenant": b"batch"}
    tenant = made.identify(headers)
    assert (tenant.name, tenant.line) == ("chat", b"x-paceline-tenant: chat\r\n")
    assert made.identify({"authorization": b"Bearer sk-batch"}).name == "batch"


@pytest.mark.parametrize("value", [b"Bearer sk-chat-1", b"bearer sk-chat-1", b"BEARER   sk-chat-1"])
def test_the_scheme_is_read_in_any_case(value: bytes) -> None:
    assert by_key(("chat", KEY)).identify({"authorization": value}).name == "chat"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-paceline-tenant": b"chat"},
        {"authorization": b""},
        {"authorization": b"Bearer"},
        {"authorization": b"sk-chat-1"},
        {"authorization": b"Basic c2stY2hhdC0x"},
        {"authorization": b"Bearer sk-chat-1 sk-chat-1"},
        {"authorization": b"Bearer " + b"x" * 1025},
        {"authorization": b"Bearer sk-\xff"},
    ],
)
def test_a_request_without_a_readable_key_is_told_how_to_send_one(headers: dict[str, bytes]) -> None:
    made = by_key(("chat", KEY))
    answer = refused(made, headers)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="paceline"'
    assert answer.body["error"]["code"] == "invalid_api_key"
    assert "Authorization: Bearer KEY" in answer.body["error"]["message"]
    assert rejected(made) == {"missing_key": 1}


def test_an_unknown_key_is_refused_and_neither_repeated_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = by_key(("chat", KEY))
    answer = refused(made, {"authorization": b"Bearer sk-guess"})
    assert (answer.status, answer.body["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"].endswith('error="invalid_token"')
    assert "sk-guess" not in json.dumps(answer.body) + caplog.text
    assert rejected(made) == {"unknown_key": 1}


def test_a_revoked_key_is_refused_from_the_next_request_on() -> None:
    made = by_key(("chat", KEY))
    headers = {"authorization": b"Bearer sk-chat-1"}
    made.identify(headers)
    made.use(spec(identity={"from": "APIKey", "secretName": "chat-keys"}), Keys())
    assert refused(made, headers).status == 401


def test_keys_that_cannot_be_checked_let_nobody_in() -> None:
    made = by_key(("chat", KEY))
    policy = spec(identity={"from": "APIKey", "secretName": "chat-keys"})
    headers = {"authorization": b"Bearer sk-chat-1"}
    for keys in (Keys(trouble="the Secret demo/chat-keys does not exist"), None):
        made.use(policy, keys)
        answer = refused(made, headers)
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
    made.use(policy, Keys(trouble="the Secret demo/chat-keys does not exist"))
    # Why is for whoever runs the service, not for whoever has no key.
    assert "chat-keys" not in refused(made, headers).body["error"]["message"]
    assert made.keys.trouble == "the Secret demo/chat-keys does not exist"
    made.use(spec(identity={"from": "TrustedHeader"}))
    assert made.keys.trouble == ""


def test_accepted_keys_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants_module, "_MOST_ACCEPTED", 8)
    made = by_key(("chat", KEY))
    for spaces in range(1, 100):
        assert made.identify({"authorization": b"Bearer" + b" " * spaces + KEY}).name == "chat"
        assert len(made._accepted) <= 8


def test_a_tenant_with_dots_in_its_name_gets_its_own_entries() -> None:
    made = by_key(("team.a", b"k1"), ("team.a.ci", b"k2"), ("team.b", b"k3"), tenants=[{"name": "team.a"}])
    names = [made.identify({"authorization": b"Bearer " + key}).name for key in (b"k1", b"k2", b"k3")]
    assert names == ["team.a", "team.a", "team"]


# Headers


def test_without_identity_the_header_is_believed() -> None:
    made = Tenants()
    made.use(None)
    tenant = made.identify({"x-paceline-tenant": b"team"})
    assert (tenant.name, tenant.label, tenant.line) == ("team", "team", b"x-paceline-tenant: team\r\n")
    assert made.identify({"x-paceline-tenant": b"team"}) is tenant
    nobody = made.identify({})
    assert (nobody.name, nobody.label, nobody.line) == ("", "_none", b"")


def test_a_trusted_header_of_another_name_replaces_the_usual_one() -> None:
    made = Tenants()
    policy = spec(identity={"from": "TrustedHeader", "header": "X-Forwarded-User"})
    made.use(policy)
    assert identity_headers([policy, None]) == {"authorization", "x-forwarded-user", "x-paceline-tenant"}
    headers = {"x-forwarded-user": b"team", "x-paceline-tenant": b"other"}
    assert made.identify(headers).line == b"x-paceline-tenant: team\r\n"
    assert made.identify({"x-paceline-tenant": b"other"}).name == ""


@pytest.mark.parametrize("value", [b"", b"a b", b"a\x01", b"\xc3\xa4", b"x" * 129])
def test_a_name_that_no_tenant_can_have_is_refused(value: bytes) -> None:
    made = Tenants()
    made.use(spec(identity={"from": "TrustedHeader", "header": "x-user"}))
    answer = refused(made, {"x-user": value})
    assert (answer.status, answer.body["error"]["param"]) == (400, "x-user")


@pytest.mark.parametrize("lines", [b"x-user: alice\r\nx-user: bob", b"x-user: alice, bob"])
def test_two_names_in_a_trusted_header_are_called_so(lines: bytes) -> None:
    made = Tenants()
    made.use(spec(identity={"from": "TrustedHeader", "header": "x-user"}))
    read_also(["x-user"])
    answer = refused(made, read_head(b"POST / HTTP/1.1\r\nhost: x\r\n" + lines).headers)
    assert answer.status == 400
    assert "x-user is given twice or has more than one name" in answer.body["error"]["message"]


def test_what_clients_call_themselves_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants_module, "MOST_TENANTS", 64)
    made = Tenants()
    made.use(spec(default={"tokensPerMinute": 600}, tenants=[{"name": "chat"}]))
    for number in range(1000):
        tenant = made.identify({"x-paceline-tenant": b"n%d" % number})
        assert made.reserve(tenant, 1, float(number)) is None
        assert len(made) <= 65
    kept = {tenant.name for tenant in made}
    assert {"chat", "n999", ""} <= kept
    assert "n0" not in kept


def test_a_tenant_that_owes_or_runs_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants_module, "MOST_TENANTS", 4)
    made = Tenants()
    made.use(spec(default={"tokensPerMinute": 600}))
    owing, running = (made.identify({"x-paceline-tenant": name}) for name in (b"owing", b"running"))
    assert made.reserve(owing, 600, 1.0) is None
    made.settle(owing, 600, 600, 600, 1.0)
    running.running = 1
    for number in range(50):
        assert made.reserve(made.identify({"x-paceline-tenant": b"n%d" % number}), 1, 2.0) is None
    assert made.identify({"x-paceline-tenant": b"owing"}) is owing
    assert made.identify({"x-paceline-tenant": b"running"}) is running
    # When nobody can be forgotten, a new name is refused rather than let in without account.
    for tenant in made:
        tenant.running = 1
    answer = refused(made, {"x-paceline-tenant": b"new"})
    assert (answer.status, answer.body["error"]["code"]) == (503, "too_many_tenants")
    assert len(made) == 4
    # Time goes on although nobody is let in, and so do debts.
    for tenant in made:
        tenant.running = 0
        tenant.token_full_at = 3600.0
    assert refused(made, {"x-paceline-tenant": b"new"}).status == 503
    made.tidy(3540.0)
    assert made.identify({"x-paceline-tenant": b"new"}).name == "new"


def test_who_runs_stays_known_when_the_spec_changes() -> None:
    made = Tenants()
    made.use(spec(tenants=[{"name": "batch", "maxConcurrent": 4, "weight": 3}]))
    batch = made.identify({"x-paceline-tenant": b"batch"})
    batch.running = 2
    made.use(spec(default={"maxConcurrent": 9}))
    assert made.identify({"x-paceline-tenant": b"batch"}) is batch
    assert (batch.slots, batch.weight, batch.running) == (9, 1, 2)


# What is in a Secret


def hexed(key: bytes) -> str:
    return digest_of(key).hex()


@pytest.mark.parametrize(
    "value",
    [
        hexed(KEY),
        hexed(KEY).upper(),
        f"  {hexed(KEY)}\n",
        f"sha256:{hexed(KEY)}",
        f"{hexed(KEY)}  -\n",
    ],
)
def test_the_usual_ways_to_write_a_hash_are_read(value: str) -> None:
    assert keys_from_entries({"chat": value}) == Keys({digest_of(KEY): "chat"})


@pytest.mark.parametrize("value", ["", "sk-chat-1", hexed(KEY)[:-1], hexed(KEY) + "0", "g" * 64, f"{hexed(KEY)} x"])
def test_what_is_no_hash_is_reported_without_its_value(value: str) -> None:
    keys = keys_from_entries({"chat": value})
    assert not keys.entries
    assert len(keys.problems) == 1
    assert not value or value not in keys.problems[0]


def test_the_hash_of_nothing_and_a_hash_given_twice_count_for_nobody() -> None:
    keys = keys_from_entries({"a": hexed(b""), "b": hexed(KEY), "c": hexed(KEY), "d": hexed(b"d"), "_x": hexed(b"x")})
    assert list(keys.entries.values()) == ["d"]
    assert len(keys.problems) == 3


@given(st.dictionaries(st.text(max_size=8), st.one_of(st.none(), st.integers(), st.text(max_size=80), st.binary())))
def test_no_secret_breaks_the_reading(data: dict[str, Any]) -> None:
    keys = keys_from_secret(data)
    assert len(keys.entries) + len(keys.problems) <= 2 * len(data)


def test_of_very_many_bad_entries_some_are_told_and_how_many_more() -> None:
    keys = keys_from_entries({f"t{number}": "x" for number in range(1000)})
    assert len(keys.problems) == MOST_PROBLEMS + 1
    assert keys.problems[-1] == f"and {1000 - MOST_PROBLEMS} more"


DOTTED = st.text("ab.", min_size=1, max_size=8)


@given(DOTTED, st.sets(DOTTED, max_size=6))
def test_an_entry_is_for_the_longest_name_that_it_is_called_after(entry: str, names: set[str]) -> None:
    known = [name for name in names if entry == name or entry.startswith(name + ".")]
    assert tenant_of_entry(entry, names) == (max(known, key=len) if known else entry.partition(".")[0])


# The Secret in the cluster


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as started:
        yield started


class Heard:
    """Notes that keys may have changed, and waits for what one is waiting for."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def __call__(self, name: tuple[str, str]) -> None:
        assert name == ("demo", "chat-keys")
        self.event.set()

    async def until(self, watcher: SecretWatcher, wanted: Any) -> Keys:
        async with asyncio.timeout(10):
            while not wanted(keys := watcher.keys("demo", "chat-keys")):
                self.event.clear()
                await self.event.wait()
            return keys


def secret(name: str = "chat-keys", **entries: bytes) -> dict[str, Any]:
    data = {tenant: base64.b64encode(hexed(key).encode()).decode() for tenant, key in entries.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "demo"}, "data": data}


async def test_a_secret_is_followed_from_missing_to_there_to_changed_to_gone(server: FakeApiServer) -> None:
    heard = Heard()
    async with SecretWatcher(server.client(), heard) as watcher:
        assert "not followed" in watcher.keys("demo", "chat-keys").trouble
        watcher.want({("demo", "chat-keys")})
        assert "not been read yet" in watcher.keys("demo", "chat-keys").trouble
        keys = await heard.until(watcher, lambda keys: "does not exist" in keys.trouble)
        assert "demo/chat-keys" in keys.trouble
        await server.put(SECRETS, secret("another", chat=b"of another secret"))
        await server.put(SECRETS, secret(chat=KEY))
        await heard.until(watcher, lambda keys: set(keys.entries) == {digest_of(KEY)})
        await server.put(SECRETS, secret(chat=b"sk-chat-2"))
        await heard.until(watcher, lambda keys: set(keys.entries) == {digest_of(b"sk-chat-2")})
        await server.remove(SECRETS, "demo", "chat-keys")
        await heard.until(watcher, lambda keys: "does not exist" in keys.trouble)
        watcher.want(set())
        assert "not followed" in watcher.keys("demo", "chat-keys").trouble
    asked = [line for line in server.requests if "secrets" in line]
    assert asked
    assert all("/namespaces/demo/" in line and "metadata.name%3Dchat-keys" in line for line in asked)


async def test_a_router_that_may_not_read_the_secret_says_so(server: FakeApiServer) -> None:
    server.refuse(KubeRefusal(403, "Forbidden", "no", times=1_000_000), path="secrets")
    heard = Heard()
    timing = Timing(backoff_first=0.01, backoff_most=0.02)
    async with SecretWatcher(server.client(), heard, timing, look_seconds=0.01) as watcher:
        watcher.want({("demo", "chat-keys")})
        await heard.until(watcher, lambda keys: "may not read the Secret demo/chat-keys" in keys.trouble)
