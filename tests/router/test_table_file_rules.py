"""The routes file is held to the rules of the CRD, in words that say what to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline_crds.crd import inference_service_crd
from paceline_crds.fields import VALIDATIONS
from paceline_router.table.cel import CelError, CelValueError, compile_cel
from paceline_router.table.crd_rules import broken_rules, service_schema
from paceline_router.table.file import RoutesFileError, read_table
from paceline_router.table.file_source import FileSource
from paceline_router.table.records import Table
from paceline_router.wire.heads import TRACE_PARENT, TRACE_STATE
from paceline_router.wire.request_head import _FRAMING

Service = dict[str, Any]


def good() -> Service:
    """One service with a part of everything that a file can say."""
    return {
        "name": "demo/chat",
        "servedName": "Qwen 3 / chat",
        "replicas": [
            {"url": "http://127.0.0.1:8001", "name": "a", "revision": "chat-1"},
            {"url": "http://[::1]:8002/", "pool": "long"},
            {"url": "http://replica_1.demo.svc.cluster.local"},
        ],
        "pools": [
            {"name": "default", "maxModelLen": 8192, "prefixIsolation": "None"},
            {"name": "long", "shapes": ["VeryLong"]},
        ],
        "traffic": {"generation": 3, "entries": [{"revision": "chat-1", "weight": 100}]},
        "routing": {"holdRequestsFor": "3s", "overLong": {"action": "Route", "pool": "long"}},
        "tenancy": {"identity": {"from": "APIKey"}, "tenants": [{"name": "a"}, {"name": "b.c"}]},
        "keysFile": "keys.yaml",
        "slo": {"ttft": {"p90": "800ms"}},
        "scaling": {"scaleToZero": {"holdRequestsFor": "60s"}},
    }


def write(path: Path, *services: Service) -> Path:
    path.write_text(json.dumps({"services": services}))
    return path


def test_a_file_that_keeps_the_rules_is_taken(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "routes.json", good()))
    assert [replica.address for replica in table.replicas.values()] == [
        "127.0.0.1:8001",
        "[::1]:8002",
        "replica_1.demo.svc.cluster.local:80",
    ]
    assert [replica.limits.shared_prefixes for replica in table.replicas.values()] == [True, False, True]


def at(service: Service, *path: str | int, put: Any) -> None:
    """Put a value at a path."""
    place: Any = service
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = put


REFUSED: dict[str, tuple[Callable[[Service], Any], str]] = {
    "a replica in a pool that there is not": (
        lambda s: at(s, "replicas", 1, "pool", put="lnog"),
        "replicas: the pool lnog is not under pools, so that no request goes there",
    ),
    "a share for a revision that no replica has": (
        lambda s: at(s, "traffic", "entries", 0, "revision", put="chat-2"),
        "traffic.entries: no replica has the revision chat-2, which is to get 100 %",
    ),
    "a text where true or false belongs": (
        lambda s: at(s, "replicas", 0, "ready", put="maybe"),
        "replicas.0.ready: write true or false",
    ),
    "a replica without an address": (
        lambda s: s["replicas"][0].pop("url"),
        "replicas.0.url: is missing; write it",
    ),
    "a share below zero": (
        lambda s: at(s, "traffic", "entries", 0, "weight", put=-1),
        "traffic.entries.0.weight: write 0 or more",
    ),
    "a tenant twice": (
        lambda s: at(s, "tenancy", "tenants", put=[{"name": "a"}, {"name": "a"}]),
        "tenancy.tenants: name: a is there twice; write it once",
    ),
    "a pool twice": (
        lambda s: at(s, "pools", put=[{"name": "long"}, {"name": "long"}]),
        "pools: name: long is there twice; write it once",
    ),
    "the pool default twice": (
        lambda s: at(s, "pools", put=[{"name": "default"}, {"name": "default"}, {"name": "long"}]),
        "pools: pool default is there twice; write it once",
    ),
    "a shape twice in a pool": (
        lambda s: at(s, "pools", 1, "shapes", put=["VeryLong", "VeryLong"]),
        "pools[0].shapes: VeryLong is there twice; write it once",
    ),
    "a shape in two pools": (
        lambda s: at(s, "pools", 0, "shapes", put=["VeryLong"]),
        "the shape VeryLong is claimed by the pools default and long; each shape belongs to one pool",
    ),
    "a pool's name that no pool has in a cluster": (
        lambda s: at(s, "pools", 1, "name", put="l" * 33),
        "write a pool's name of at most 32 characters, for example long",
    ),
    "a pool for over-long requests that there is not": (
        lambda s: at(s, "routing", "overLong", "pool", put="longest"),
        "routing.overLong.pool names no pool of this service; write the name of an entry of spec.pools, or default",
    ),
    "a pool for an action that has none": (
        lambda s: at(s, "routing", "overLong", "action", put="Cut"),
        "a pool is for action Route; set action: Route or remove pool",
    ),
    "a header for identity that is no client's to set": (
        lambda s: at(s, "tenancy", "identity", put={"from": "TrustedHeader", "header": "Content-Length"}),
        "tenancy.identity.header: write the name of a header that something in front of the router sets",
    ),
    "the header with the key as identity": (
        lambda s: at(s, "tenancy", "identity", put={"from": "TrustedHeader", "header": "authorization"}),
        "write the name of a header that something in front of the router sets, for example x-team",
    ),
    "a header for keys": (
        lambda s: at(s, "tenancy", "identity", "header", put="x-team"),
        "header is for from: TrustedHeader; remove it",
    ),
    "a Secret where there are none": (
        lambda s: at(s, "tenancy", "identity", "secretName", put="chat-keys"),
        "there are no Secrets outside Kubernetes; remove it and write keysFile",
    ),
    "keys without a file": (
        lambda s: s.pop("keysFile"),
        "keysFile: identity.from: APIKey needs it; name a YAML file",
    ),
    "a file of keys without identity by key": (
        lambda s: s.pop("tenancy"),
        "keysFile: it is for tenancy.identity.from: APIKey; write that too, or remove keysFile",
    ),
    "a tenant's name": (
        lambda s: at(s, "tenancy", "tenants", 0, "name", put="team a"),
        "a tenant's name has letters, digits and inner . _ -, for example team-a",
    ),
    "a duration without a unit": (
        lambda s: at(s, "routing", "holdRequestsFor", put="30"),
        "write a duration with its unit: 800ms, 30s, 1m30s or 2h",
    ),
    "a served name on two lines": (
        lambda s: at(s, "servedName", put="a\nb"),
        "write the name on one line",
    ),
    "a name that labels cannot have": (
        lambda s: at(s, "name", put="demo/1chat"),
        "use at most 63 lower-case letters, digits and hyphens, beginning with a letter",
    ),
    "a name without its namespace": (
        lambda s: at(s, "name", put="chat"),
        "chat: name: write NAMESPACE/NAME",
    ),
    "weights that are less than all": (
        lambda s: at(s, "traffic", "entries", put=[{"revision": "a", "weight": 50}, {"revision": "b", "weight": 40}]),
        "the weights of the pool default add up to 90; they are percents: make them 100 together",
    ),
    "weights that are more than all": (
        lambda s: at(s, "traffic", "entries", put=[{"revision": "a", "weight": 100}, {"revision": "b", "weight": 1}]),
        "add up to 101",
    ),
    "weights of one pool only": (
        lambda s: s["traffic"]["entries"].append({"pool": "long", "revision": "chat-1", "weight": 99}),
        "the weights of the pool long add up to 99",
    ),
    "a revision twice": (
        lambda s: at(s, "traffic", "entries", put=[{"revision": "a", "weight": 50}, {"revision": "a", "weight": 50}]),
        "pool default: the revision a is there twice; write it once",
    ),
    "port 0": (
        lambda s: at(s, "replicas", 0, "url", put="http://127.0.0.1:0"),
        "port 0 is nobody's; write the port that the replica listens on, 1 to 65535",
    ),
    "a user in the address": (
        lambda s: at(s, "replicas", 0, "url", put="http://user:pass@127.0.0.1:8001"),
        "user and password are sent nowhere; write for example http://127.0.0.1:8000",
    ),
    "TLS": (
        lambda s: at(s, "replicas", 0, "url", put="https://127.0.0.1:8001"),
        "a url begins with http://",
    ),
    "a path": (
        lambda s: at(s, "replicas", 0, "url", put="http://127.0.0.1:8001/v1"),
        "without a path, since /v1/… is added",
    ),
    "a query": (
        lambda s: at(s, "replicas", 0, "url", put="http://127.0.0.1:8001?x=1"),
        "without a path",
    ),
    "half an address": (
        lambda s: at(s, "replicas", 0, "url", put="http://127.0.0:8001"),
        "has no host, or none that there can be",
    ),
    "a replica's name twice": (
        lambda s: at(s, "replicas", 1, "name", put="a"),
        "replicas: replica a is there twice; write it once",
    ),
    "one replica by two spellings": (
        lambda s: at(s, "replicas", 1, "url", put="http://127.0.0.1:8001/"),
        "replicas: replica http://127.0.0.1:8001 is there twice",
    ),
    "a field that there is not": (
        lambda s: at(s, "served_as", put="x"),
        "demo/chat: served_as: there is no such field; remove it, or see to its spelling",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_file_that_breaks_a_rule_is_refused_with_what_to_write(tmp_path: Path, fault: str) -> None:
    change, words = REFUSED[fault]
    service = good()
    change(service)
    with pytest.raises(RoutesFileError) as refused:
        read_table(write(tmp_path / "routes.json", service))
    assert words in str(refused.value)


@pytest.mark.parametrize("header", [*_FRAMING.values(), "authorization", TRACE_PARENT, TRACE_STATE])
def test_a_header_that_the_router_uses_itself_names_no_tenant(tmp_path: Path, header: str) -> None:
    service = good()
    del service["keysFile"]
    for name in (header, header.title()):
        service["tenancy"]["identity"] = {"from": "TrustedHeader", "header": name}
        with pytest.raises(RoutesFileError, match="write the name of a header that something in front of the router"):
            read_table(write(tmp_path / "routes.json", service))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("services: []\nservices: []\n", "line 2: the field services is there twice"),
        (
            "services:\n- name: a/b\n  tenancy: {}\n  slo: {}\n  tenancy: {}\n",
            "line 5: the field tenancy is there twice",
        ),
        ('{"services": [{"name": "a/b", "name": "a/c"}]}', "line 1: the field name is there twice"),
    ],
)
def test_a_field_that_is_there_twice_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(text)
    with pytest.raises(RoutesFileError) as refused:
        read_table(path)
    assert words in str(refused.value)


def test_what_several_entries_share_may_be_written_once(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(
        "services:\n"
        "- &base {name: a/b, routing: {holdRequestsFor: 3s}, replicas: [{url: 'http://h:1'}]}\n"
        "- {<<: *base, name: a/c}\n"
    )
    assert {service.policy.hold for service in read_table(path).services.values()} == {3.0}


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    first, second = good(), good() | {"name": "demo/other"}
    first["replicas"][0]["url"] = "http://127.0.0.1:0"
    second["traffic"]["entries"] = [{"revision": "chat-1", "weight": 99}]
    del second["keysFile"]
    with pytest.raises(RoutesFileError) as refused:
        read_table(write(tmp_path / "routes.json", first, second))
    assert all(words in str(refused.value) for words in ("demo/chat: replicas", "add up to 99", "demo/other: keysFile"))


async def test_a_changed_file_that_breaks_a_rule_keeps_the_table_and_says_why(tmp_path: Path) -> None:
    path = write(tmp_path / "routes.json", good())
    used: list[Table] = []
    source = FileSource(path, lambda table, changed: used.append(table))
    await source.load()
    service = good()
    service["replicas"][0]["url"] = "http://127.0.0.1:0"
    write(path, service)
    await source.look()
    assert len(used) == 1
    assert source.error is not None
    assert "port 0 is nobody's" in source.error
    await source.look()  # the same file again is no news, and no reason to forget the fault
    assert source.error is not None
    write(path, good())
    await source.look()
    assert source.error is None


def reachable(schema: Mapping[str, Any], parts: Mapping[str, Any] | None) -> Iterator[dict[str, str]]:
    """The rules in a schema, of those fields that a file can have: by name, and None for a field with all it has."""
    yield from schema.get(VALIDATIONS, ())
    for name, child in schema.get("properties", {}).items():
        if parts is None or name in parts:
            yield from reachable(child, None if parts is None else parts[name])
    if "items" in schema:
        yield from reachable(schema["items"], parts)


IN_A_FILE: dict[str, Any] = {
    "spec": {
        "model": {"servedName": None},
        "pools": {"name": None, "shapes": None, "slo": None},
        "routing": None,
        "tenancy": None,
        "slo": None,
        "scaling": None,
    }
}


def test_every_rule_of_the_crd_that_a_file_can_break_is_read() -> None:
    found = list(reachable(service_schema(), IN_A_FILE))
    assert len(found) >= 15
    for entry in found:
        compile_cel(entry["rule"])
        if "messageExpression" in entry:
            compile_cel(entry["messageExpression"])


def test_the_rules_are_those_of_the_crd() -> None:
    crd = inference_service_crd()
    assert service_schema() == crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_a_rule_beyond_the_reader_is_an_error_and_never_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"properties": {"spec": {VALIDATIONS: [{"rule": "isQuantity(self)", "message": "write a quantity"}]}}}
    monkeypatch.setattr("paceline_router.table.crd_rules.service_schema", lambda: schema)
    with pytest.raises(CelError, match="isQuantity"):
        list(broken_rules({"spec": "1Gi"}))


@pytest.mark.parametrize(
    ("expression", "scope", "value"),
    [
        ("1 < 2 && !(3 <= 2) || false", {}, True),
        ("self.size() > 2 ? 'long' : 'short'", {"self": "abc"}, "long"),
        ("has(self.a) && self.a == 'x'", {"self": {}}, False),
        ("!has(self.a) || self.a in ['x', 'y']", {"self": {"a": "y"}}, True),
        ("self.matches('^[a-z]+$')", {"self": "abc\n"}, False),
        (r"self.matches('^\\d+$')", {"self": "12"}, True),
        (r"self.matches(r'^\d+$')", {"self": "12"}, True),
        ("self.filter(p, p.n > 1).size() == 1 && self.exists(p, p.n == 2)", {"self": [{"n": 1}, {"n": 2}]}, True),
        ("self.all(p, self.exists_one(q, q == p))", {"self": [1, 2, 2]}, False),
        ("self.a == 1 || self.b == 2", {"self": {"b": 2}}, True),
        ("self.a == 1 && self.b == 2", {"self": {"b": 3}}, False),
        ("size(self[0]) == 2", {"self": ["ab"]}, True),
        ("'%d of %s'.format([1, self])", {"self": "x"}, "1 of x"),
    ],
)
def test_cel_is_read_as_the_api_server_reads_it(expression: str, scope: dict[str, Any], value: object) -> None:
    assert compile_cel(expression)(scope) == value


@pytest.mark.parametrize("expression", ["1 +", "a b", "self.base64()", "url('x')", "'open", "{'a': 1}", "has(self)"])
def test_cel_that_is_not_read_is_said(expression: str) -> None:
    with pytest.raises(CelError):
        compile_cel(expression)


@pytest.mark.parametrize("expression", ["self.a == 1", "self.a == 1 || self.b == 3", "self.a == 1 && self.b == 2"])
def test_a_missing_value_is_told_from_a_broken_rule(expression: str) -> None:
    with pytest.raises(CelValueError):
        compile_cel(expression)({"self": {"b": 2}})


def test_all_faults_of_a_file_are_told_at_once_each_in_a_line_with_its_service(tmp_path: Path) -> None:
    first, second, third = good(), good(), good()
    first["replicas"][0]["ready"] = "maybe"
    second.update(name="demo/second", traffic={"entries": [{"revision": "chat-1", "weight": 60}]})
    del second["keysFile"]
    third["name"] = "demo/second"
    with pytest.raises(RoutesFileError) as caught:
        read_table(write(tmp_path / "routes.json", first, second, third))
    title, *faults = str(caught.value).splitlines()
    assert title.endswith("has 4 faults:")
    for words in (
        "demo/chat: replicas.0.ready: ",
        "demo/second: keysFile: ",
        "demo/second: traffic.entries: ",
        "twice",
    ):
        assert any(words in fault for fault in faults), words
    assert all(fault.startswith("  - demo/") for fault in faults)


@pytest.mark.parametrize("text", ["", "[]", "null", "services:", "services: {}", "other: []", "services: [1]"])
def test_a_file_that_is_no_list_of_services_is_told_what_to_write(tmp_path: Path, text: str) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(text)
    with pytest.raises(RoutesFileError, match=r"write (`services:`|a list|it|fields)"):
        read_table(path)
