"""Files of keys: read beside the traffic; what was good in one is kept whatever becomes of it, unless it goes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_router.report.admin import routes_page
from paceline_router.table import apart
from paceline_router.table.file import read_table
from paceline_router.table.records import Table
from paceline_router.tenancy.keys import Keys
from paceline_router.tenancy.keys_reading import MAX_BYTES, read_keys
from paceline_router.tenancy.keys_source import KeysSource

BODY = {"model": "smollm2", "messages": []}
DIGITS = "0123456789" * 6 + "0123"
"""A hash that YAML takes for a number."""


def hexed(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def entry(key: bytes) -> str:
    return f'"{hexed(key)}"'


def tables(folder: Path, *files: str, port: int = 1) -> Table:
    """Services `demo/chat`, `demo/chat1`, … with these files of keys."""
    path = folder / "routes.yaml"
    path.write_text(
        "services:\n"
        + "".join(
            f"- name: demo/chat{number or ''}\n  servedName: smollm2{number or ''}\n"
            f"  replicas: [{{url: 'http://127.0.0.1:{port + number}'}}]\n"
            f"  tenancy: {{identity: {{from: APIKey}}}}\n  keysFile: {folder / file}\n"
            for number, file in enumerate(files)
        )
    )
    return read_table(path)


def a_bomb(path: Path) -> None:
    lists = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))
    path.write_text("\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x, x]", *lists]))


SPOILERS: dict[str, Callable[[Path], object]] = {
    "no regular file": os.mkfifo,
    "no regular file ": Path.mkdir,
    "is larger than": lambda path: path.write_text(f"blue: {entry(b'one')}\n#" + "x" * MAX_BYTES),
    "is not YAML": lambda path: path.write_text("blue: [sk-secret\n"),
    "is not YAML ": lambda path: path.write_bytes(b"blue: \xff\xfe"),
    "is not YAML  ": lambda path: path.write_text("a: " + "[" * 1000 + "]" * 1000),
    "is not YAML   ": a_bomb,
    "is not a mapping": lambda path: path.write_text("- sk-secret\n"),
}
"""By what is said: what may be written in the place of a file of keys."""


@pytest.mark.parametrize("said", SPOILERS)
def test_a_file_that_cannot_be_used_says_why_and_quotes_nothing(tmp_path: Path, said: str) -> None:
    path = tmp_path / "keys.yaml"
    SPOILERS[said](path)
    keys = read_keys(path)
    assert said.strip() in keys.trouble
    assert str(path) in keys.trouble
    assert "sk-secret" not in keys.trouble
    assert not keys.entries


@pytest.mark.parametrize(
    ("text", "tenants", "problems"),
    [
        (f"blue: {hexed(b'one')}\n", ["blue"], []),
        (f'{{"blue": {entry(b"one")}, "red.2": {entry(b"two")}}}', ["blue", "red.2"], []),
        (f"blue: {DIGITS}\n", ["blue"], []),
        (f"blue: sha256:{hexed(b'one')}\n1: {hexed(b'two')}\n", ["blue", "1"], []),
        ("", [], []),
        ("blue: 0123\n", [], ["blue: not the hex SHA-256"]),
        (f"blue: {hexed(b'one')}\nred: [x]\n", ["blue"], ["red: not the hex SHA-256"]),
        (f"blue: {hexed(b'one')}\n? [x]\n: y\n", ["blue"], ["in line 2: its name is no text"]),
        (f"blue: {hexed(b'one')}\nblue: {hexed(b'two')}\n", ["blue"], ["blue: it is there twice, and the last counts"]),
    ],
)
def test_what_is_good_in_a_file_counts_and_the_rest_is_told(
    tmp_path: Path, text: str, tenants: list[str], problems: list[str]
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    keys = read_keys(path)
    assert not keys.trouble
    assert sorted(keys.entries.values()) == sorted(tenants)
    assert len(keys.problems) == len(problems)
    for problem, said in zip(problems, keys.problems, strict=True):
        assert problem in said


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "keys.yaml"
    path.write_bytes(data)
    keys = read_keys(path)
    assert not (keys.trouble and keys.entries)


class Service:
    """A router in front of one replica, with a file of keys."""

    def __init__(self, router: Any, folder: Path) -> None:
        self._router = router
        self.plane = router.plane
        self.file = folder / "keys.yaml"
        self.source = KeysSource(router.plane.use_keys)

    async def status(self, key: str) -> int:
        async with httpx.AsyncClient(timeout=30) as client:
            headers = {"authorization": f"Bearer {key}"}
            url = f"{self._router.url}/v1/chat/completions"
            return (await client.post(url, json=BODY, headers=headers)).status_code

    def page(self) -> dict[str, Any]:
        class Source:
            error: str | None = None

            def age(self) -> float | None:
                return 0.0

        return routes_page(self.plane, Source())

    def problems(self) -> list[str]:
        found: list[str] = self.page()["services"]["demo/chat"]["problems"]
        return found

    def clear(self) -> None:
        if self.file.is_dir():
            self.file.rmdir()
        else:
            self.file.unlink()


@pytest.fixture
async def service(router: Any, peer: Any, tmp_path: Path) -> Service:
    replica = await peer()
    table = tables(tmp_path, "keys.yaml", port=replica.port)
    made = Service(await router(table=table), tmp_path)
    made.file.write_text(f"blue: {entry(b'one')}\n")
    made.source.use_table(table, table.services.keys())
    return made


async def test_keys_of_a_file_are_followed_and_revoked_with_it(service: Service) -> None:
    assert await service.status("one") == 503, "not read yet"
    await service.source.look()
    assert (await service.status("one"), await service.status("two")) == (200, 401)
    service.file.write_text(f"blue: {entry(b'two')}\n# other\n")
    await service.source.look()
    assert (await service.status("one"), await service.status("two")) == (401, 200)
    service.file.unlink()
    await service.source.look()
    assert await service.status("two") == 503
    assert "cannot be read" in service.page()["keys_unreadable"]["demo/chat"]


@pytest.mark.parametrize("said", SPOILERS)
async def test_a_file_that_turns_bad_keeps_the_keys_that_were_good_and_says_so(service: Service, said: str) -> None:
    await service.source.look()
    service.clear()
    SPOILERS[said](service.file)
    await service.source.look()
    assert (await service.status("one"), await service.status("two")) == (200, 401)
    (problem,) = service.problems()
    assert problem.startswith("API keys are those that were read before: ")
    assert said.strip() in problem
    assert service.page()["keys_unreadable"] == {}
    service.clear()
    service.file.write_text(f"blue: {entry(b'two')}\n")
    await service.source.look()
    assert (await service.status("one"), await service.status("two"), service.problems()) == (401, 200, [])


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere"])
async def test_a_reader_that_dies_loses_no_key_and_the_file_is_read_again(
    service: Service, monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    await service.source.look()
    service.file.write_text(f"blue: {entry(b'two')}\n# other\n")
    monkeypatch.setattr(apart.sys, "executable", executable)
    await service.source.look()
    assert await service.status("one") == 200
    assert "process" in service.problems()[0]
    monkeypatch.undo()
    await service.source.look()
    assert (await service.status("one"), await service.status("two"), service.problems()) == (401, 200, [])


async def test_a_service_that_came_back_knows_no_keys_from_before(service: Service, tmp_path: Path) -> None:
    await service.source.look()
    table = tables(tmp_path, "keys.yaml")
    for now in (Table(services={}, replicas={}), table):
        service.plane.use(now)
        service.source.use_table(now, table.services.keys())
    assert await service.status("one") == 503


async def test_services_may_share_a_file_and_one_that_nobody_names_is_let_go(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"blue: {entry(b'a')}\n")
    (tmp_path / "b.yaml").write_text(f"blue: {entry(b'b')}\n")
    told: list[tuple[str, str]] = []

    def use_keys(service: str, keys: Keys) -> None:
        known = next((name for name in ("a", "b") if hashlib.sha256(name.encode()).digest() in keys.entries), "")
        told.append((service, known))

    source = KeysSource(use_keys)
    both = tables(tmp_path, "a.yaml", "a.yaml")
    source.use_table(both, both.services.keys())
    await source.look()
    assert told == [("demo/chat", "a"), ("demo/chat1", "a")]
    source.use_table(tables(tmp_path, "a.yaml", "b.yaml"), {"demo/chat1"})
    assert len(told) == 2, "until it is read the keys stay as they were"
    await source.look()
    assert told[2:] == [("demo/chat1", "b")]
    source.use_table(tables(tmp_path, "a.yaml", "a.yaml"), {"demo/chat1"})
    assert told[3:] == [("demo/chat1", "a")]
    (tmp_path / "b.yaml").unlink()
    await source.look()
    assert len(told) == 4
