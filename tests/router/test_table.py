"""From objects of the Kubernetes API to routes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_kube import Change
from paceline_router.flow.backend import Backend
from paceline_router.flow.dataplane import DataPlane
from paceline_router.settings import Settings
from paceline_router.table.cluster import changes_of, services_of
from paceline_router.table.records import (
    Limits,
    Removal,
    Replica,
    Revision,
    Service,
    Table,
    TrafficShare,
    replica_from_pod,
    revision_from_object,
    service_from_object,
    updated,
)
from paceline_router.table.routes import Route, Routes, compile_routes, revision_of
from paceline_router.wire.answers import Refusal
from paceline_router.wire.requests import find_route

KEY = "demo/chat"


def anyone(_route: Route) -> None:
    """Nobody is refused."""


def pod(name: str = "p", uid: str = "u", **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "demo",
            "uid": uid,
            "labels": {"paceline.io/service": "chat", "paceline.io/pool": "default", "paceline.io/pool-hash": "h1"},
        },
        "spec": {"containers": [{"name": "runtime", "ports": [{"name": "metrics", "containerPort": 8000}]}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    for path, value in changes.items():
        part, _, field = path.partition("__")
        made[part][field] = value
    return made


def replica(uid: str, ready: bool = True, pool_hash: str = "h1", **more: Any) -> Replica:
    values: dict[str, Any] = {"pool": "default", "draining": False, "service": KEY} | more
    return Replica(uid=uid, name=uid, pool_hash=pool_hash, host="10.0.0.1", port=8000, ready=ready, **values)


def revision(name: str, created: str = "1", **hashes: str) -> Revision:
    return Revision(f"demo/{name}", name, KEY, created, hashes)


def shares(*entries: tuple[str, int], pool: str = "default") -> tuple[TrafficShare, ...]:
    return tuple(TrafficShare(pool, name, weight) for name, weight in entries)


def routes_of(table: Table) -> Routes:
    backends = {uid: Backend(replica, 0.0) for uid, replica in table.replicas.items()}
    return compile_routes(table, lambda replica: backends[replica.uid])


def table_of(*records: Service | Revision | Replica) -> Table:
    return updated(Table(), records)


def uids(routes: Routes, lane: int = 0) -> list[str]:
    return [backend.replica.uid for backend in routes.by_key[KEY].lanes[lane].backends]


def test_a_ready_pod_is_a_replica() -> None:
    assert replica_from_pod(pod()) == Replica("u", "p", KEY, "default", "h1", "10.0.0.1", 8000, True, False)


@pytest.mark.parametrize(
    ("changes", "ready", "draining"),
    [
        ({"status__conditions": [{"type": "Ready", "status": "False"}]}, False, False),
        ({"status__conditions": [{"type": "Ready", "status": "Unknown"}]}, False, False),
        ({"status__conditions": None}, False, False),
        ({"metadata__deletionTimestamp": "2026-01-01T00:00:00Z"}, False, True),
        ({"metadata__annotations": {"paceline.io/draining": "2026-01-01T00:00:00Z"}}, False, True),
        ({"metadata__annotations": {"other": "x"}}, True, False),
    ],
)
def test_running_is_not_ready_and_draining_takes_no_new_work(
    changes: dict[str, Any], ready: bool, draining: bool
) -> None:
    made = replica_from_pod(pod(**changes))
    assert made is not None
    assert (made.ready, made.draining) == (ready, draining)


@pytest.mark.parametrize(
    "changes",
    [
        {"status__phase": "Failed", "status__podIP": None},
        {"status__podIP": ""},
        {"status__phase": "Succeeded"},
        {"metadata__labels": {}},
        {"metadata__labels": None},
    ],
)
def test_a_pod_without_address_or_service_is_none(changes: dict[str, Any]) -> None:
    assert replica_from_pod(pod(**changes)) is None


def test_the_port_is_the_one_the_pod_names() -> None:
    containers = [{"ports": [{"name": "http", "containerPort": 1}, {"name": "metrics", "containerPort": 8300}]}]
    made = replica_from_pod(pod(spec__containers=containers))
    assert made is not None
    assert made.port == 8300
    assert made.address == "10.0.0.1:8300"


def test_an_evicted_pod_is_removed_at_once_and_its_successor_is_another_replica() -> None:
    table = table_of(Service(KEY, "m"), *changes_of(Replica, Change("added", ("demo", "p"), None, pod())))  # type: ignore[arg-type]
    assert list(table.replicas) == ["u"]
    evicted = pod(status__phase="Failed", status__podIP=None)
    table = updated(table, changes_of(Replica, Change("modified", ("demo", "p"), pod(), evicted)))
    assert table.replicas == {}
    table = updated(table, changes_of(Replica, Change("added", ("demo", "p"), None, pod(uid="u2"))))
    assert list(table.replicas) == ["u2"]
    table = updated(table, changes_of(Replica, Change("deleted", ("demo", "p"), pod(uid="u2"), None, relisted=True)))
    assert table.replicas == {}


def test_a_changed_uid_under_one_name_removes_the_old_replica() -> None:
    change = Change("modified", ("demo", "p"), pod(uid="old"), pod(uid="new"))
    assert changes_of(Replica, change)[0] == Removal(Replica, "old")


def test_a_service_is_read_from_its_object() -> None:
    made = service_from_object(
        {
            "metadata": {"name": "chat", "namespace": "demo", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"model": {"servedName": "acme/m"}, "replicas": 2, "pools": [{"name": "long", "replicas": 3}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "False", "reason": "CrashLoop"}],
                "traffic": {"generation": 4, "entries": [{"pool": "default", "revision": "chat-1", "weight": 100}]},
            },
        }
    )
    order = ("2026-01-01T00:00:00Z", "u")
    assert made == Service(KEY, "acme/m", order, 4, shares(("chat-1", 100)), wanted=5, trouble="CrashLoop")
    assert made.created == 1767225600


def test_what_an_object_lacks_is_not_known() -> None:
    made = service_from_object({"metadata": {"name": "chat", "namespace": "demo"}, "spec": {"replicas": "many"}})
    assert made.served_name == "chat"
    assert (made.generation, made.traffic, made.wanted, made.trouble, made.created) == (0, (), None, None, 0)


def test_a_revision_is_read_from_its_object() -> None:
    obj = {
        "metadata": {"name": "chat-1", "namespace": "demo", "creationTimestamp": "t"},
        "spec": {"service": "chat", "pools": [{"name": "default", "hash": "h1"}, {"name": "long", "hash": "h2"}]},
    }
    assert revision_from_object(obj) == Revision("demo/chat-1", "chat-1", KEY, "t", {"default": "h1", "long": "h2"})


def test_a_revision_has_the_measured_start_ups_of_its_pools_and_odd_ones_are_not_known() -> None:
    pools = [
        {"name": "default", "hash": "h1", "startUp": {"fastestSeconds": 3, "slowestSeconds": 7}},
        {"name": "long", "hash": "h2"},
        {"name": "odd", "hash": "h3", "startUp": {"slowestSeconds": "soon"}},
    ]
    obj = {"metadata": {"name": "chat-1", "namespace": "demo"}, "spec": {"service": "chat"}, "status": {"pools": pools}}
    assert revision_from_object(obj).start_up == {"default": 7.0}
    assert revision_from_object({**obj, "status": {"pools": 3}}).start_up == {}


def test_a_revision_knows_what_its_replicas_call_the_model() -> None:
    pools = [
        {"name": "default", "hash": "h1", "config": {"model": {"source": "package://x", "servedName": "acme/m"}}},
        {"name": "odd", "hash": "h2", "config": {"model": {"servedName": 3}}},
        {"name": "older", "hash": "h3"},
    ]
    made = revision_from_object(
        {"metadata": {"name": "chat-1", "namespace": "demo"}, "spec": {"service": "chat", "pools": pools}}
    )
    assert made.served == {"default": "acme/m"}


def named(name: str, pool_hash: str, served: str) -> Revision:
    return Revision(f"demo/{name}", name, KEY, name, {"default": pool_hash}, {"default": served})


RENAMED = (named("r1", "h1", "old/M"), named("r2", "h2", "new/M"))


def test_a_changed_served_name_is_in_use_once_traffic_has_moved() -> None:
    table = table_of(Service(KEY, "old/M", traffic=shares(("r1", 100))), RENAMED[0], replica("a"))
    assert set(routes_of(table).by_model) == {"old/M", KEY}
    # The spec changes first, then the new revision is there and starts, then traffic moves, then the old one goes.
    for change in (
        Service(KEY, "new/M", traffic=shares(("r1", 100))),
        RENAMED[1],
        replica("b", pool_hash="h2", ready=False),
        replica("b", pool_hash="h2"),
    ):
        table = updated(table, [change])
        routes = routes_of(table)
        assert set(routes.by_model) == {"old/M", KEY}
        assert list(routes.models) == ["old/M"]
        assert routes.by_key[KEY].served_name == "old/M"
        assert routes.by_key[KEY].lanes[0].served["a"] == "old/M"
        with pytest.raises(Refusal, match="being rolled out") as refused:
            find_route(routes, None, "new/M", anyone)
        assert (refused.value.status, refused.value.answer.headers["retry-after"]) == (503, "5")
    table = updated(table, [Service(KEY, "new/M", traffic=shares(("r2", 100)))])
    for change in (replica("a", ready=False), Removal(Replica, "a")):
        routes = routes_of(table)
        assert set(routes.by_model) == {"new/M", KEY}
        assert list(routes.models) == ["new/M"]
        assert routes.by_key[KEY].lanes[0].served["b"] == "new/M"
        with pytest.raises(Refusal) as refused:
            find_route(routes, None, "old/M", anyone)
        assert refused.value.status == 404
        table = updated(table, [change])


@pytest.mark.parametrize(("weights", "first"), [((90, 10), "old/M"), ((50, 50), "new/M"), ((10, 90), "new/M")])
def test_while_two_revisions_get_traffic_both_their_names_are_in_use(weights: tuple[int, int], first: str) -> None:
    service = Service(KEY, "new/M", traffic=shares(("r1", weights[0]), ("r2", weights[1])))
    routes = routes_of(table_of(service, *RENAMED, replica("a"), replica("b", pool_hash="h2")))
    assert set(routes.by_model) == {"old/M", "new/M", KEY}
    assert list(routes.models) == [first]
    for path in (None, KEY):
        for name in ("old/M", "new/M", KEY):
            assert find_route(routes, path, name, anyone) is routes.by_key[KEY]


@pytest.mark.parametrize("traffic", [(), shares(("r1", 0)), shares(("unknown", 100))])
def test_where_no_revision_is_known_to_get_traffic_the_spec_names_the_model(traffic: tuple[TrafficShare, ...]) -> None:
    routes = routes_of(table_of(Service(KEY, "new/M", traffic=traffic), *RENAMED, replica("a")))
    assert set(routes.by_model) == {"new/M", KEY}
    # What runs is still asked under the name it knows.
    assert routes.by_key[KEY].lanes[0].served["a"] == "old/M"


def test_by_hand_the_names_of_revisions_without_traffic_count() -> None:
    routes = routes_of(table_of(Service(KEY, "new/M", traffic=shares(("r2", 100))), *RENAMED))
    route = routes.by_key[KEY]
    for path in (None, KEY):
        for name in ("old/M", "new/M"):
            assert find_route(routes, path, name, anyone, by_hand=True) is route
        with pytest.raises(Refusal) as refused:
            find_route(routes, path, "none", anyone, by_hand=True)
        assert refused.value.status == 404


def test_a_name_to_come_takes_nothing_from_the_service_that_has_it() -> None:
    renaming = Service("demo/a", "m", ("1", ""), traffic=shares(("a1", 100)))
    owner = Service("demo/b", "m", ("2", ""))
    made = Revision("demo/a1", "a1", "demo/a", "1", {"default": "h1"}, {"default": "before"})
    routes = routes_of(table_of(renaming, owner, made))
    assert routes.by_model["m"].service is owner
    assert routes.by_model["before"].service is renaming


def test_without_traffic_any_ready_replica_serves() -> None:
    table = table_of(Service(KEY, "m"), replica("a"), replica("b", ready=False), replica("c", pool_hash="h2"))
    assert uids(routes_of(table)) == ["a", "c"]
    assert routes_of(table).by_key[KEY].lanes[0].fallback is None


def test_only_replicas_of_the_named_revision_get_new_work() -> None:
    service = Service(KEY, "m", traffic=shares(("r2", 100)))
    revisions = revision("r1", default="h1"), revision("r2", default="h2")
    table = table_of(service, *revisions, replica("old"), replica("new", pool_hash="h2"))
    routes = routes_of(table)
    assert uids(routes) == ["new"]
    assert b"x-paceline-revision: r2" in routes.by_key[KEY].lanes[0].labels["new"]


def test_when_the_named_revision_has_none_ready_others_serve_and_say_so() -> None:
    service = Service(KEY, "m", traffic=shares(("r2", 100)))
    revisions = revision("r1", default="h1"), revision("r2", default="h2")
    routes = routes_of(table_of(service, *revisions, replica("old"), replica("new", ready=False, pool_hash="h2")))
    lane = routes.by_key[KEY].lanes[0]
    assert uids(routes) == ["old"]
    assert "r2" in (lane.fallback or "")
    assert b"x-paceline-revision: r1" in lane.labels["old"]


def test_a_fallback_prefers_revisions_that_get_traffic() -> None:
    service = Service(KEY, "m", traffic=shares(("r1", 50), ("r2", 50)))
    revisions = [revision(name, default=f"h{name[1]}") for name in ("r1", "r2", "r3")]
    routes = routes_of(table_of(service, *revisions, replica("b", pool_hash="h2"), replica("c", pool_hash="h3")))
    assert uids(routes, 0) == uids(routes, 1) == ["b"]


@pytest.mark.parametrize("weights", [(5, 95), (50, 50), (1, 99), (30, 70)])
def test_weights_hold_over_a_hundred_requests(weights: tuple[int, int]) -> None:
    service = Service(KEY, "m", traffic=shares(("r1", weights[0]), ("r2", weights[1])))
    revisions = revision("r1", default="h1"), revision("r2", default="h2")
    routes = routes_of(table_of(service, *revisions, replica("a"), replica("b", pool_hash="h2")))
    route = routes.by_key[KEY]
    chosen = [route.lane(turn).backends[0].replica.uid for turn in range(1000)]
    for start in range(0, 900, 50):
        assert abs(chosen[start : start + 100].count("a") - weights[0]) <= 2


def test_pools_of_one_revision_share_its_requests() -> None:
    service = Service(KEY, "m", traffic=shares(("r1", 100)) + shares(("r1", 100), pool="long"))
    made = revision("r1", default="h1", long="h9")
    table = table_of(service, made, replica("a"), replica("b", pool="long", pool_hash="h9"), replica("c", pool="long"))
    assert uids(routes_of(table)) == ["a", "b"]


def test_a_pool_that_only_one_revision_has_gets_requests_of_that_revision_only() -> None:
    """In a rollout that adds the pool `new` and takes `old` away: neither makes the share of the candidate another."""
    traffic = (
        *shares(("r1", 95), ("r2", 5)),
        *shares(("r1", 95), pool="old"),
        *shares(("r2", 5), pool="new"),
    )
    revisions = revision("r1", default="h1", old="o1"), revision("r2", default="h2", new="n2")
    replicas = (
        replica("a"),
        replica("b", pool_hash="h2"),
        replica("o", pool="old", pool_hash="o1"),
        replica("n", pool="new", pool_hash="n2"),
    )
    route = routes_of(table_of(Service(KEY, "m", traffic=traffic), *revisions, *replicas)).by_key[KEY]
    assert [(lane.until, sorted(lane.groups)) for lane in route.lanes] == [
        (0.95, ["default", "old"]),
        (1.0, ["default", "new"]),
    ]
    assert [[backend.replica.uid for backend in lane.backends] for lane in route.lanes] == [["a", "o"], ["b", "n"]]


def test_a_replica_shows_the_revision_that_gets_traffic_else_the_newest() -> None:
    old, new = revision("r1", "1", default="h1"), revision("r2", "2", default="h1")
    table = table_of(Service(KEY, "m"), old, new, replica("a"))
    assert revision_of(table, table.replicas["a"]) == "r2"
    table = updated(table, [Service(KEY, "m", traffic=shares(("r1", 100)))])
    assert revision_of(table, table.replicas["a"]) == "r1"
    assert revision_of(table, replica("x", pool_hash="unknown")) is None


def test_a_revision_can_be_reached_by_hand() -> None:
    service = Service(KEY, "m", traffic=shares(("r1", 100)))
    revisions = revision("r1", default="h1"), revision("r2", default="h2")
    route = routes_of(table_of(service, *revisions, replica("a"), replica("b", pool_hash="h2"))).by_key[KEY]
    assert [backend.replica.uid for backend in route.revisions["r2"].backends] == ["b"]
    assert set(route.revisions) == {"r1", "r2"}


def test_the_oldest_service_keeps_a_served_name_and_the_next_takes_over() -> None:
    first = Service("a/chat", "acme/m", ("2026-01-01", "9"))
    second = Service("b/chat", "acme/m", ("2026-01-02", "1"))
    for order in ([first, second], [second, first]):
        routes = routes_of(table_of(*order))
        assert routes.by_model["acme/m"].service is first
        assert {name: route.service.key for name, route in routes.models.items()} == {
            "acme/m": "a/chat",
            "b/chat": "b/chat",
        }
    routes = routes_of(updated(table_of(first, second), [Removal(Service, "a/chat")]))
    assert routes.by_model["acme/m"].service is second


def test_the_uid_decides_between_services_of_one_second() -> None:
    services = [Service("a/x", "m", ("t", "2")), Service("b/x", "m", ("t", "1"))]
    assert routes_of(table_of(*services)).by_model["m"].service.key == "b/x"


def test_a_served_name_never_takes_the_address_of_another_service() -> None:
    services = [Service("a/x", "b/y", ("1", "")), Service("b/y", "m", ("2", ""))]
    routes = routes_of(table_of(*services))
    assert routes.by_model["b/y"].service.key == "b/y"
    assert set(routes.models) == {"a/x", "m"}


records = st.one_of(
    st.builds(lambda n, s: Service(f"ns/{n}", s, (n, n)), st.sampled_from("abc"), st.sampled_from(["m", "n", "ns/a"])),
    st.builds(
        lambda n, r, h: replica(n, r, h, service="ns/a"),
        st.sampled_from("xyz"),
        st.booleans(),
        st.sampled_from(["h1", "h2"]),
    ),
    st.builds(lambda n: Removal(Service, f"ns/{n}"), st.sampled_from("abc")),
    st.builds(lambda n: Removal(Replica, n), st.sampled_from("xyz")),
)


@given(st.lists(records, max_size=30), st.integers(0, 30))
def test_changes_in_one_batch_or_in_two_give_the_same_routes(changes: list[Any], cut: int) -> None:
    whole = updated(Table(), changes)
    assert whole == updated(updated(Table(), changes[:cut]), changes[cut:])
    routes = routes_of(whole)
    assert set(routes.by_key) == set(whole.services)
    assert {route.service.key for route in routes.models.values()} == set(whole.services)
    for name, route in routes.models.items():
        assert routes.by_model[name] is route
    for key, route in routes.by_key.items():
        ready = {replica.uid for replica in whole.replicas.values() if replica.ready and replica.service == key}
        assert {backend.replica.uid for lane in route.lanes for backend in lane.backends} == ready


def test_a_replica_keeps_its_load_over_table_changes_and_loses_it_with_its_address() -> None:
    plane = DataPlane(Settings(), now=lambda: 0.0)
    plane.use(table_of(Service(KEY, "m"), replica("a")))
    backend = plane.backends["a"]
    plane.use(table_of(Service(KEY, "m"), replica("a", ready=False), replica("b")))
    assert plane.backends["a"] is backend
    assert not plane.backends["a"].replica.ready
    moved = Replica("a", "a", KEY, "default", "h1", "10.0.0.2", 8000, True, False)
    plane.use(table_of(Service(KEY, "m"), moved))
    assert plane.backends["a"] is not backend
    assert set(plane.backends) == {"a"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["demo/a", "demo/b", "demo/c"]),
            st.integers(0, 5),
            st.booleans(),
            st.sampled_from(["service", "replica", "revision", "gone"]),
        ),
        max_size=12,
    )
)
def test_routes_made_of_changes_are_those_made_anew(steps: list[tuple[str, int, bool, str]]) -> None:
    table, routes = Table(), Routes()
    backends: dict[tuple[str, str], Backend] = {}

    def backend_of(made: Replica) -> Backend:
        return backends.setdefault((made.uid, made.service), Backend(made, 0.0))

    for service, number, ready, what in steps:
        changes: list[Service | Revision | Replica | Removal] = {
            "service": [Service(service, f"m{number % 2}", order=(str(number), service))],
            "replica": [replica(f"r{number}", ready=ready, service=service)],
            "revision": [Revision(f"{service}-{number}", f"v{number}", service, "1", {"default": "h1"})],
            "gone": [Removal(Replica, f"r{number}") if ready else Removal(Service, service)],
        }[what]
        changed = services_of(table, changes)
        table = updated(table, changes)
        routes = compile_routes(table, backend_of, routes, changed)
        anew = compile_routes(table, backend_of)
        assert routes == anew


def test_a_service_that_did_not_change_keeps_its_route() -> None:
    table = table_of(Service(KEY, "m"), Service("demo/other", "n"), replica("a"))
    backends: dict[str, Backend] = {}

    def backend_of(made: Replica) -> Backend:
        return backends.setdefault(made.uid, Backend(made, 0.0))

    before = compile_routes(table, backend_of)
    change = replica("b")
    after = compile_routes(updated(table, [change]), backend_of, before, services_of(table, [change]))
    assert after.by_key["demo/other"] is before.by_key["demo/other"]
    assert uids(after) == ["a", "b"]


def test_sessions_keep_their_version_and_move_only_towards_the_one_that_grows() -> None:
    def lanes_at(weight: int) -> dict[int, str]:
        service = Service(KEY, "m", traffic=shares(("old", 100 - weight), ("new", weight)))
        table = table_of(
            service,
            revision("old", default="h1"),
            revision("new", default="h2"),
            replica("a"),
            replica("b", pool_hash="h2"),
        )
        route = routes_of(table).by_key[KEY]
        return {number: route.lane(number, b"session-%d" % number).backends[0].replica.uid for number in range(1000)}

    at = {weight: lanes_at(weight) for weight in (5, 25, 60)}
    assert at[5] == lanes_at(5)
    for less, more in ((5, 25), (25, 60)):
        assert not [n for n, uid in at[less].items() if uid == "b" and at[more][n] == "a"]
    for weight, found in at.items():
        assert abs(sum(uid == "b" for uid in found.values()) / 1000 - weight / 100) < 0.04


def test_each_pool_of_a_lane_is_a_group_and_default_takes_what_others_cannot() -> None:
    made = Revision("demo/v", "v", KEY, "1", {"default": "h1", "a": "h2"}, limits={"a": Limits(4096, 8)})
    table = table_of(Service(KEY, "m"), made, replica("x", pool="a", pool_hash="h2"), replica("y"))
    lane = routes_of(table).by_key[KEY].lanes[0]
    assert [group.pool for group in lane.order] == ["default", "a"]
    assert (lane.groups["a"].max_model_len, lane.groups["a"].bound) == (4096, 16)
    assert (lane.groups["default"].max_model_len, lane.groups["default"].bound) == (None, None)


@pytest.mark.parametrize(
    ("isolations", "shared"),
    [(["None"], True), (["PerTenant"], False), (["None", "PerTenant"], False), ([None], False)],
)
def test_tenants_share_a_pools_prefixes_where_every_replica_says_so(isolations: list[str | None], shared: bool) -> None:
    records: list[Any] = [Service(KEY, "m")]
    for number, isolation in enumerate(isolations):
        parameters = {} if isolation is None else {"prefixIsolation": isolation}
        pool = {"name": "default", "hash": f"h{number}", "config": {"parameters": parameters}}
        metadata = {"name": f"v{number}", "namespace": "demo", "creationTimestamp": f"{number}"}
        records.append(revision_from_object({"metadata": metadata, "spec": {"service": "chat", "pools": [pool]}}))
        records.append(replica(f"r{number}", pool_hash=f"h{number}"))
    assert routes_of(table_of(*records)).by_key[KEY].lanes[0].groups["default"].shared_prefixes is shared
