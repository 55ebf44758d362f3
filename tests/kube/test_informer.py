import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_kube import PODS, Change, Informer, Timing, by_label, drop_managed_fields
from paceline_kube.testing import FakeApiServer, Refusal

PATH = "/api/v1/pods"
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


def pod(name: str, namespace: str = "demo", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


def names(informer: Informer) -> set[str]:
    return {obj["metadata"]["name"] for obj in informer.store}


def kinds(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.type, change.key[1]) for change in changes]


async def test_it_lists_then_follows(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    changes: list[Change] = []
    await server.put(PATH, pod("a"))
    informer = start_informer(PODS, on_change=changes.append)
    assert informer.age() is None
    await informer.synced.wait()
    assert names(informer) == {"a"}
    await server.put(PATH, pod("b"))
    await server.put(PATH, pod("a", app="x"))
    await server.remove(PATH, "demo", "b")
    await eventually(lambda: len(changes) == 4)
    assert kinds(changes) == [("added", "a"), ("added", "b"), ("modified", "a"), ("deleted", "b")]
    assert changes[2].old is not None
    assert changes[2].old["metadata"]["labels"] == {}
    assert informer.relists == 1


async def test_it_is_synced_even_when_there_is_nothing(start_informer: Callable[..., Informer]) -> None:
    informer = start_informer(PODS)
    await asyncio.wait_for(informer.synced.wait(), 5)
    assert len(informer.store) == 0


async def test_an_object_that_leaves_the_selector_is_deleted(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    await server.put(PATH, pod("a", app="x"))
    await server.put(PATH, pod("b", app="y"))
    informer = start_informer(PODS, label_selector="app=x")
    await informer.synced.wait()
    assert names(informer) == {"a"}
    await server.put(PATH, pod("a", app="y"))
    await eventually(lambda: names(informer) == set())


async def test_only_its_namespace_is_seen(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    informer = start_informer(PODS, namespace="demo")
    await informer.synced.wait()
    await server.put(PATH, pod("other", "elsewhere"))
    await server.put(PATH, pod("mine"))
    await eventually(lambda: names(informer) == {"mine"})


async def test_a_cut_watch_resumes_without_a_list(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    changes: list[Change] = []
    await server.put(PATH, pod("a"))
    informer = start_informer(PODS, on_change=changes.append)
    await eventually(lambda: len(server._watches) == 1)
    await server.cut()
    await server.put(PATH, pod("b"))
    await server.remove(PATH, "demo", "a")
    await eventually(lambda: names(informer) == {"b"})
    assert informer.relists == 1
    assert kinds(changes) == [("added", "a"), ("added", "b"), ("deleted", "a")]


@pytest.mark.parametrize("as_status", [False, True], ids=["in the stream", "as HTTP status"])
async def test_deletions_missed_while_history_expired_are_found_by_the_list(
    server: FakeApiServer,
    start_informer: Callable[..., Informer],
    eventually: Eventually,
    as_status: bool,
) -> None:
    changes: list[Change] = []
    for name in "abc":
        await server.put(PATH, pod(name))
    informer = start_informer(PODS, on_change=changes.append)
    await eventually(lambda: len(server._watches) == 1)
    server.silence()
    await server.remove(PATH, "demo", "b")
    await server.put(PATH, pod("d"))
    await server.forget_history()
    if as_status:
        server.refuse(Refusal(410, "Expired", "too old"), watch=True)
    await server.cut()
    await server.resume()
    await eventually(lambda: names(informer) == {"a", "c", "d"})
    assert [(c.type, c.key[1], c.relisted) for c in changes[3:]] == [
        ("deleted", "b", True),
        ("added", "d", True),
    ]
    assert informer.relists == 2


async def test_a_recreated_object_missed_by_the_watch_is_seen_as_another(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    changes: list[Change] = []
    await server.put(PATH, pod("a"))
    informer = start_informer(PODS, on_change=changes.append)
    await eventually(lambda: len(server._watches) == 1)
    first = informer.store.list()[0]["metadata"]["uid"]
    server.silence()
    await server.remove(PATH, "demo", "a")
    await server.put(PATH, pod("a"))
    await server.forget_history()
    await server.cut()
    await server.resume()
    await eventually(lambda: len(changes) == 3)
    assert kinds(changes) == [("added", "a"), ("deleted", "a"), ("added", "a")]
    assert informer.store.by_uid(first) is None


async def test_the_copy_is_kept_while_the_server_refuses(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    await server.put(PATH, pod("a"))
    informer = start_informer(PODS)
    await eventually(lambda: len(server._watches) == 1)
    # A starting API server says 404 for custom kinds that exist; an overloaded one 429; etcd's trouble is a 500.
    for status in (404, 403, 429, 500):
        server.refuse(Refusal(status, times=2))
    await server.cut()
    asked = len(server.requests)
    await eventually(lambda: len(server.requests) >= asked + 9)
    assert names(informer) == {"a"}
    await server.put(PATH, pod("b"))
    await eventually(lambda: names(informer) == {"a", "b"})
    assert informer.last_error is None


async def test_an_error_in_the_stream_other_than_410_resumes_without_a_list(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    await server.put(PATH, pod("a"))
    informer = start_informer(PODS)
    await eventually(lambda: len(server._watches) == 1)
    await server.fail_watches(500, "InternalError")
    await eventually(lambda: informer.last_error is not None)
    await server.put(PATH, pod("b"))
    await eventually(lambda: names(informer) == {"a", "b"})
    assert informer.relists == 1


async def test_a_bug_below_does_not_end_it(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    client = server.client()
    genuine = client.watch
    broken = True

    def watch(*args: Any, **kwargs: Any) -> Any:
        nonlocal broken
        if broken:
            broken = False
            raise RuntimeError("a bug nobody thought of")
        return genuine(*args, **kwargs)

    client.watch = watch  # type: ignore[method-assign]
    informer = start_informer(PODS, client=client)
    await eventually(lambda: len(server._watches) == 1)
    await server.put(PATH, pod("a"))
    await eventually(lambda: names(informer) == {"a"})


async def test_silence_is_noticed_and_ends_in_a_new_connection(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    informer = start_informer(PODS, timing=Timing(inactivity=0.2, backoff_first=0.01))
    await eventually(lambda: len(server._watches) == 1)
    server.silence()
    watches = len([request for request in server.requests if "watch" in request])
    await eventually(lambda: len([r for r in server.requests if "watch" in r]) >= watches + 2)
    await server.put(PATH, pod("a"))
    await server.resume()
    await eventually(lambda: names(informer) == {"a"})
    assert informer.relists == 1


async def test_its_age_grows_while_the_server_is_silent_and_shrinks_with_bookmarks(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    now = 100.0
    informer = start_informer(PODS, clock=lambda: now, timing=Timing(inactivity=30))
    await informer.synced.wait()
    await eventually(lambda: len(server._watches) == 1)
    server.silence()
    now = 160.0
    assert informer.age() == 60.0
    await server.resume()
    await eventually(lambda: informer.age() == 0.0)


async def test_bookmarks_save_a_quiet_watch_from_expiring(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    informer = start_informer(PODS)
    await eventually(lambda: len(server._watches) == 1)
    for i in range(5):
        await server.put("/api/v1/configmaps", {"metadata": {"name": f"c{i}", "namespace": "demo"}})
    await eventually(lambda: informer.resource_version == str(server.version))
    assert informer.relists == 1


async def test_a_failing_handler_is_logged_and_stops_nobody(
    server: FakeApiServer,
    start_informer: Callable[..., Informer],
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Change] = []

    def bad(_: Change) -> None:
        raise RuntimeError("broken handler")

    informer = start_informer(PODS, on_change=bad)
    informer.add_handler(seen.append)
    with caplog.at_level(logging.ERROR):
        await server.put(PATH, pod("a"))
        await server.put(PATH, pod("b"))
        await eventually(lambda: len(seen) == 2)
    assert informer.handler_errors == 2
    assert "a handler failed on demo/a" in caplog.text


async def test_objects_are_trimmed_before_they_are_kept(
    server: FakeApiServer, start_informer: Callable[..., Informer], eventually: Eventually
) -> None:
    full = pod("a", app="x")
    full["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    await server.put(PATH, full)
    informer = start_informer(PODS, transform=drop_managed_fields, indexes={"app": by_label("app")})
    await informer.synced.wait()
    (kept,) = informer.store.by_index("app", "x")
    assert "managedFields" not in kept["metadata"]


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered(
    server: FakeApiServer, start_informer: Callable[..., Informer]
) -> None:
    server.bookmark_seconds = None
    informer = start_informer(PODS, timing=Timing(watch=1, backoff_first=0.2, inactivity=5))

    async def end_at_once(request: Any) -> Any:
        from aiohttp import web

        return web.Response(text="", content_type="application/json")

    server._watch = end_at_once  # type: ignore[method-assign]
    await informer.synced.wait()
    server.requests.clear()
    await asyncio.sleep(0.7)
    assert 1 <= len(server.requests) <= 5


async def test_the_wait_grows_and_is_bounded_and_honours_the_servers_wish(server: FakeApiServer) -> None:
    from paceline_kube import TooManyRequests

    informer = Informer(server.client(), PODS, timing=Timing(backoff_first=1, backoff_most=8), rng=random.Random(1))
    bounds = [(0.5, 1), (1, 2), (2, 4), (4, 8), (4, 8)]
    for failures, (low, high) in enumerate(bounds, start=1):
        informer._failures = failures
        assert low <= informer._backoff() <= high
    informer._failures = 1
    assert informer._backoff(TooManyRequests(429, retry_after=5)) == 5
    assert informer._backoff(TooManyRequests(429, retry_after=500)) == 8


action = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abcd"), st.sampled_from(["x", "y"])),
    st.tuples(st.sampled_from(["remove", "remove unseen"]), st.sampled_from("abcd"), st.just("")),
    st.tuples(st.sampled_from(["cut", "forget", "silence", "resume", "refuse", "pause"]), st.just(""), st.just("")),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(action, max_size=18))
def test_the_store_ends_equal_to_the_server_whatever_happens(script: list[tuple[str, str, str]]) -> None:
    asyncio.run(_play(script))


async def _play(script: list[tuple[str, str, str]]) -> None:
    seen: dict[tuple[str, str], str] = {}

    def follow(change: Change) -> None:
        # A reader that only follows the changes must end with the same picture.
        if change.type == "deleted":
            del seen[change.key]
        else:
            assert (change.type == "added") is (change.key not in seen)
            seen[change.key] = change.object["metadata"]["uid"]

    async with FakeApiServer(bookmark_seconds=0.02) as server:
        timing = Timing(backoff_first=0.001, backoff_most=0.01, inactivity=0.3)
        informer = Informer(
            server.client(),
            PODS,
            label_selector="app=x",
            on_change=follow,
            timing=timing,
            indexes={"app": by_label("app")},
        )

        def expected() -> dict[tuple[str, str], str]:
            return {
                (namespace, name): obj["metadata"]["uid"]
                for (_, namespace, name), obj in server.objects.items()
                if obj["metadata"]["labels"].get("app") == "x"
            }

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(10):
                while not condition():
                    await asyncio.sleep(0.005)

        task = asyncio.create_task(informer.run())
        for verb, name, label in script:
            if verb == "put":
                await server.put(PATH, pod(name, app=label))
            elif verb.startswith("remove") and (PATH, "demo", name) in server.objects:
                if verb == "remove unseen":
                    await server.resume()
                    await until(lambda: bool(server._watches) and seen == expected())
                    server.silence()
                await server.remove(PATH, "demo", name)
                if verb == "remove unseen":
                    await server.forget_history()
                    await server.cut()
            elif verb == "cut":
                await server.cut()
            elif verb == "forget":
                await server.forget_history()
            elif verb == "silence":
                server.silence()
            elif verb == "resume":
                await server.resume()
            elif verb == "refuse":
                server.refuse(Refusal(500, times=2))
            elif verb == "pause":
                await asyncio.sleep(0.01)
        await server.resume()

        try:
            await until(lambda: informer.synced.is_set() and seen == expected())
            assert {key: informer.store.get(*key)["metadata"]["uid"] for key in seen} == seen
            assert len(informer.store) == len(seen)
            assert informer.handler_errors == 0
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
