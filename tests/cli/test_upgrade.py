"""`paceline upgrade` where there is nothing to do, where it cannot tell, and where it is not allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline_crds.service import InferenceService
from paceline_kube.testing import FakeApiServer
from paceline_operator import children
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, render

REVISIONS = "/apis/paceline.io/v1alpha1/inferencerevisions"
SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"


@pytest.fixture
def offered(server: FakeApiServer, stored: Any) -> Any:
    """A service that could take something over."""

    async def make(name: str = "chat", hash_version: int = 1, created: str = "", **spec: Any) -> dict[str, Any]:
        service = stored(name)
        service["spec"] |= spec
        service = await server.put(SERVICES, service)
        desired = render(InferenceService.from_object(service), Carried(), "paceline.io/runtime:1")
        revision = children.revision(Observed("demo", name, service["metadata"]["uid"], 1), desired)
        revision["metadata"]["creationTimestamp"] = created or "2026-01-01T00:00:00Z"
        await server.put(REVISIONS, revision)
        service["status"] |= {
            "updatedRevision": desired.revision,
            "upgrade": {"image": "paceline.io/runtime:2", "hashVersion": hash_version},
        }
        return await server.put(SERVICES, service)

    return make


def order_in(server: FakeApiServer, name: str = "chat") -> dict[str, Any] | None:
    service = server.objects[SERVICES, "demo", name]
    text = (service["metadata"].get("annotations") or {}).get("paceline.io/upgrade")
    return None if text is None else json.loads(text)


@pytest.mark.parametrize("arguments", [[], ["chat", "--all"]])
async def test_one_or_all_has_to_be_said(paceline: Any, arguments: list[str]) -> None:
    done = await paceline("upgrade", *arguments)
    assert done.exit_code == 2
    assert "--all" in done.stderr


async def test_nothing_to_take_over_is_good(server: FakeApiServer, paceline: Any, stored: Any) -> None:
    await server.put(SERVICES, stored())
    done = await paceline("upgrade", "chat")
    assert (done.exit_code, done.stdout) == (0, "demo/chat: nothing to take over\n")
    assert order_in(server) is None


async def test_the_order_has_what_the_status_offers(server: FakeApiServer, paceline: Any, offered: Any) -> None:
    await offered()
    done = await paceline("upgrade", "chat", "--reason", "a fix")
    assert done.exit_code == 0, done.output
    assert "image paceline.io/runtime:1 → paceline.io/runtime:2" in done.stdout
    order = order_in(server)
    assert order is not None
    assert (order["image"], order["hashVersion"]) == ("paceline.io/runtime:2", 1)
    assert order["at"].endswith("Z")
    assert order["why"] == "a fix"


async def test_an_order_is_later_than_the_newest_revision_even_by_a_server_whose_clock_is_ahead(
    server: FakeApiServer, paceline: Any, offered: Any
) -> None:
    await offered(created="2999-01-01T00:00:00Z")
    assert (await paceline("upgrade", "chat")).exit_code == 0
    order = order_in(server)
    assert order is not None
    assert order["at"] == "2999-01-01T00:00:01Z"


async def test_defaults_that_this_command_does_not_have_are_not_known(
    server: FakeApiServer, paceline: Any, offered: Any
) -> None:
    await offered(hash_version=99)
    done = await paceline("upgrade", "chat", "--dry-run", "-o", "json")
    [found] = json.loads(done.stdout)
    assert found["changes"] is None
    assert "does not have the defaults of version 99" in found["words"]
    assert order_in(server) is None


async def test_one_that_is_refused_does_not_stop_the_others(server: FakeApiServer, paceline: Any, offered: Any) -> None:
    await offered("first", suspend=True)
    await offered("second", rollout={"order": {"revision": "second-a", "action": "Pin"}})
    await offered("third")
    done = await paceline("upgrade", "--all")
    assert done.exit_code == 1
    assert "demo/first: spec.suspend is true" in done.stderr
    assert "demo/second: it is pinned to second-a" in done.stderr
    assert "demo/third: ordered" in done.stdout
    assert [order_in(server, name) is None for name in ("first", "second", "third")] == [True, True, False]
