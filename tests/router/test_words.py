"""What clients and operators read when something is wrong says what is wrong, and nothing odd is handed through."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from paceline_router.flow.connecting import words_of
from paceline_router.flow.dataplane import DataPlane
from paceline_router.processes.admin import CombinedAdmin
from paceline_router.processes.admin import make_app as make_combined_app
from paceline_router.report.admin import make_app
from paceline_router.report.tokens import AdminToken
from paceline_router.settings import Settings
from paceline_router.table.records import Table
from paceline_router.wire.retry_after import MOST_SECONDS, readable

PATH = "/v1/chat/completions"
BODY = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
TOKEN = {"authorization": "Bearer secret"}
NOON = 1_800_000_000.0
"""Fri, 15 Jan 2027 08:00:00 GMT."""


class Source:
    error: str | None = None

    def age(self) -> float | None:
        return None


def one_process(token: AdminToken) -> Iterator[FastAPI]:
    yield make_app(DataPlane(Settings()), Source(), token)


def several_processes(token: AdminToken) -> Iterator[FastAPI]:
    fleet = CombinedAdmin(dict, {}, 2, token, "inner", "127.0.0.1", 0)
    yield make_combined_app(fleet, token)
    fleet._socket.close()


@pytest.fixture(params=[one_process, several_processes])
def admin(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    made: Callable[[AdminToken], Iterator[FastAPI]] = request.param
    apps = made(AdminToken(value="secret"))
    yield TestClient(next(apps))
    assert next(apps, None) is None


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/metrics", {}),
        ("DELETE", "/health/ready", {}),
        ("PUT", "/v1/paceline/routes", TOKEN),
        ("POST", "/v1/paceline/demand", TOKEN),
    ],
)
def test_the_admin_api_says_which_method_a_path_takes(
    admin: TestClient, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = admin.request(method, path, headers=headers)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert answer.json() == {
        "error": {"message": "This path takes GET.", "type": "invalid_request_error", "param": None, "code": None}
    }


def test_the_admin_api_says_how_the_token_is_sent(admin: TestClient) -> None:
    answer = admin.get("/v1/paceline/routes")
    assert answer.status_code == 401
    assert "Authorization: Bearer TOKEN" in answer.json()["error"]["message"]


async def test_a_host_name_that_nobody_knows_is_called_so(
    router: Any, peer: Any, helpers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    table = helpers.table_of(80)
    lost = dataclasses.replace(table.replicas["r0"], host="replica.invalid")
    service = await router(table=Table(table.services, {}, {"r0": lost}), connect_timeout=30.0)
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        answer = await client.post(PATH, json=BODY)
    message = answer.json()["error"]["message"]
    assert answer.status_code == 503
    assert "no connection to it: its host name cannot be resolved" in message
    assert "replica.invalid" not in message
    assert "the host name replica.invalid of replica pod-0 cannot be resolved" in caplog.text


def test_failed_connections_are_told_apart_in_the_systems_words() -> None:
    assert words_of(socket.gaierror(-2, "Name or service not known")) == "its host name cannot be resolved"
    assert words_of(ConnectionRefusedError(111, "Connect call failed ('10.0.0.1', 80)")) == "Connection refused"
    assert words_of(TimeoutError()) == "timed out"
    assert words_of(OSError()) == "Input/output error"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"0", b"0"),
        (b"30", b"30"),
        (b"86400", b"86400"),
        (b"86401", b"86400"),
        (b"99999999999999999999", b"86400"),
        (b"1.5", b"2"),
        (b"2.0", b"2"),
        (b"-1", b"1"),
        (b"", b"1"),
        (b"soon", b"1"),
        (b"1, 2", b"1"),
        (b"1e9", b"1"),
        (b"0x10", b"1"),
        ("٣".encode(), b"1"),
        (b"Fri, 15 Jan 2027 08:05:00 GMT", b"Fri, 15 Jan 2027 08:05:00 GMT"),
        (b"Fri, 15 Jan 2027 07:00:00 GMT", b"Fri, 15 Jan 2027 07:00:00 GMT"),
        (b"Sat, 15 Jan 2028 08:00:00 GMT", b"86400"),
        (b"Fri, 31 Feb 2027 08:00:00 GMT", b"1"),
        (b"2027-01-15T08:05:00Z", b"1"),
    ],
)
def test_when_to_come_back_is_always_a_time_that_can_be_read(value: bytes, said: bytes) -> None:
    assert readable(value, NOON) == said


@given(st.binary(max_size=40) | st.from_regex(rb"[0-9.,eE+-]{0,30}", fullmatch=True))
def test_whatever_a_replica_says_the_client_gets_a_number_or_a_date(value: bytes) -> None:
    said = readable(value, NOON)
    assert said.endswith(b" GMT") or 0 <= int(said) <= MOST_SECONDS


@pytest.mark.parametrize(("value", "said"), [("never", "1"), ("-5", "1"), ("31536000", "86400"), ("7", "7")])
@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_an_odd_retry_after_of_a_replica_is_not_passed_on(
    router: Any, peer: Any, value: str, said: str, status: str
) -> None:
    async def busy(request: Any) -> None:
        await request.answer({"error": {"message": "busy"}}, status, f"retry-after: {value}\r\n")

    service = await router(await peer(busy))
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        # Twice: a head that was seen before is not read again.
        for _ in range(3):
            answer = await client.post(PATH, json=BODY)
            assert (answer.status_code, answer.headers["retry-after"]) == (int(status[:3]), said)
