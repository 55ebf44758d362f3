"""Which revision served when, which one a rollback goes to, and what a revision changed."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_cli.connection import Stop
from paceline_cli.revisions import Kept, before, changes, read, states, words_of
from paceline_cli.rollback import choose
from paceline_crds.names import ANNOTATION_CHANGE_CAUSE, ANNOTATION_ORDER_CAUSE
from paceline_crds.service import InferenceService
from paceline_operator.children import revision as revision_object
from paceline_operator.observed import Observed, Traffic
from paceline_operator.render import Carried, render

PARSED: Any = object()


def pools(image: str = "paceline.io/runtime:1", **spec: Any) -> Any:
    """Pools as a spec renders."""
    obj = {
        "metadata": {"name": "chat", "namespace": "demo", "uid": "u", "generation": 1},
        "spec": {"model": {"source": "package://m"}, **spec},
    }
    return render(InferenceService.from_object(obj), Carried(), image).pools


def kept(name: str, generation: int | None, created: str = "2026-01-01T00:00:00Z", parsed: Any = PARSED) -> Kept:
    traffic = None if generation is None else Traffic(generation, name, (), 1000.0 + generation)
    return Kept(name, created, parsed, traffic, "user", "")


def service(current: str | None = "chat-b", asked_for: str | None = "chat-b", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "chat", "namespace": "demo", "uid": "u", "generation": 2},
        "spec": spec,
        "status": {"observedGeneration": 2, "currentRevision": current, "updatedRevision": asked_for},
    }


A, B, C = kept("chat-a", 1), kept("chat-b", 2), kept("chat-c", None)


def order(revision: str) -> dict[str, Any]:
    return {"rollout": {"order": {"revision": revision, "action": "Pin"}}}


def test_what_served_before_goes_by_the_record_of_the_traffic_and_not_by_age() -> None:
    returned = kept("chat-a", 3)
    assert before([C, B, A], "chat-b") == A
    assert before([C, B, returned], "chat-a") == B
    assert before([C, B, returned], "chat-b") is None
    assert before([C], "chat-gone") is None


def test_the_default_is_what_served_before() -> None:
    assert choose(service(), [C, B, A], None) == A


def test_while_a_roll_is_under_way_back_means_what_serves_now() -> None:
    assert choose(service(asked_for="chat-c"), [C, B, A], None) == B


@pytest.mark.parametrize("to", ["chat-a", "a"])
def test_a_revision_is_named_in_full_or_by_its_hash(to: str) -> None:
    assert choose(service(), [C, B, A], to) == A


def test_one_that_never_served_can_be_named() -> None:
    assert choose(service(), [C, B, A], "chat-c") == C


def test_another_one_than_the_pinned_can_be_named() -> None:
    assert choose(service(current="chat-a", asked_for="chat-a", **order("chat-a")), [C, B, A], "chat-b") == B


def test_an_order_that_is_not_carried_out_yet_can_be_given_again_and_waited_for() -> None:
    assert choose(service(asked_for="chat-a", **order("chat-a")), [C, B, A], "chat-a") == A


@pytest.mark.parametrize(
    ("obj", "to", "words"),
    [
        (service(), "chat-x", "chat-x of demo/chat is not kept; kept are: chat-c, chat-b, chat-a"),
        (service(), "chat-b", "serves already"),
        (service(asked_for="chat-c"), "chat-c", "is on its way already"),
        (service(current="chat-a", asked_for="chat-a"), None, "no other revision"),
        (service(current="chat-a", asked_for="chat-a", **order("chat-a")), None, "is pinned to chat-a already"),
        (service(current="chat-a", asked_for="chat-a", **order("chat-a")), "chat-a", "--undo"),
        (service(suspend=True), None, "spec.suspend of demo/chat is true"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(obj: Any, to: str | None, words: str) -> None:
    with pytest.raises(Stop, match=r".") as stop:
        choose(obj, [C, B, A], to)
    assert words in str(stop.value)
    assert stop.value.code == 1


def test_before_anything_has_served_nothing_is_known() -> None:
    with pytest.raises(Stop, match="has served yet") as stop:
        choose(service(current=None, asked_for="chat-a"), [A], None)
    assert stop.value.code == 3


def test_a_status_of_an_earlier_spec_is_no_ground_for_a_default() -> None:
    obj = service()
    obj["metadata"]["generation"] = 3
    with pytest.raises(Stop, match="name the revision with --to") as stop:
        choose(obj, [C, B, A], None)
    assert stop.value.code == 3
    assert choose(obj, [C, B, A], "chat-a") == A


def test_a_revision_of_a_newer_release_cannot_be_brought_back_by_this_one() -> None:
    with pytest.raises(Stop, match="newer release"):
        choose(service(), [B, kept("chat-a", 1, parsed=None)], "chat-a")


def test_states() -> None:
    assert states(B, service()) == ["serving"]
    assert states(C, service(asked_for="chat-c")) == ["asked for"]
    assert states(B, service(asked_for="chat-c")) == ["serving"]
    assert states(A, service(current="chat-a", asked_for="chat-a", **order("chat-a"))) == ["serving", "pinned"]
    assert states(A, service()) == ["kept"]


@pytest.mark.parametrize(
    ("phase", "seen"),
    [
        ("Blocked", ["asked for"]),
        ("Preparing", ["asked for", "taking over"]),
        ("Judging", ["asked for", "taking over"]),
        ("RollingBack", ["asked for", "rejected"]),
        ("Idle", ["asked for", "rejected"]),
    ],
)
def test_a_revision_that_is_rolled_out_by_steps_says_whether_it_takes_over_or_was_rejected(
    phase: str, seen: list[str]
) -> None:
    obj = service(asked_for="chat-c")
    obj["status"]["rollout"] = {"revision": "chat-c", "phase": phase}
    assert states(C, obj) == seen
    assert states(B, obj) == ["serving"]


def test_changed_parameters_are_told_by_their_names_in_the_spec() -> None:
    found = changes(pools(), pools(runtime={"maxNumSeqs": 8}))
    assert words_of(found, 1) == "maxNumSeqs 32 → 8"


def test_an_image_is_told_once_although_the_template_has_it_as_well() -> None:
    found = changes(pools(), pools("paceline.io/runtime:2"))
    assert words_of(found, 1) == "image paceline.io/runtime:1 → paceline.io/runtime:2"


def test_what_only_one_side_has_is_told_either_way() -> None:
    with_variable = pools(pod={"env": [{"name": "OMP_NUM_THREADS", "value": "1"}], "nodeSelector": {"disk": "ssd"}})
    there = words_of(changes(pools(), with_variable), 1)
    assert "env[OMP_NUM_THREADS] absent → 1" in there
    assert "nodeSelector.disk absent → ssd" in there
    assert "env[OMP_NUM_THREADS] 1 → absent" in words_of(changes(with_variable, pools()), 1)


def test_sizes_of_another_spelling_are_no_change() -> None:
    one = pools(pod={"resources": {"requests": {"cpu": "1000m"}}})
    other = pools(pod={"resources": {"requests": {"cpu": "1"}}})
    assert changes(one, other) == []


def test_pools_are_named_where_there_are_several() -> None:
    long = [{"name": "long", "runtime": {"prefillChunkTokens": 256}}]
    longer = [{"name": "long", "runtime": {"prefillChunkTokens": 1024}}]
    assert words_of(changes(pools(pools=long), pools(pools=longer)), 2) == "long: prefillChunkTokens 256 → 1024"
    assert words_of(changes(pools(), pools(pools=long)), 2) == "long: pool absent → added"
    assert words_of(changes(pools(pools=long), pools()), 2) == "long: pool there → removed"


def test_of_many_changes_the_first_are_shown() -> None:
    many = pools(runtime={"maxNumSeqs": 8, "maxModelLen": 512, "blockSize": 32, "dtype": "Float32"})
    assert words_of(changes(pools(), many), 1, 2).endswith("and 2 more")


def test_history_tells_why_a_revision_was_made_and_why_it_was_ordered_back() -> None:
    desired = render(
        InferenceService.from_object({**service(), "spec": {"model": {"source": "package://m"}}}), Carried(), "r"
    )
    obj = service()
    reasons = {ANNOTATION_CHANGE_CAUSE: "shorter answers", ANNOTATION_ORDER_CAUSE: "the next one is wrong"}
    both, ordered = (
        read(obj, [revision_object(Observed("demo", "chat", "u", 1), desired, annotations)])[0].why
        for annotations in (reasons, {ANNOTATION_ORDER_CAUSE: "the next one is wrong"})
    )
    assert both == "shorter answers; ordered back: the next one is wrong"
    assert ordered == "ordered back: the next one is wrong"
