"""From a spec to what the data path acts on."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline_crds.durations import parse_duration
from paceline_crds.routing import Shape, Stickiness
from paceline_router.table.file import RoutesFileError, read_table
from paceline_router.table.policy import SHAPES, Policy, policy_from_spec
from paceline_router.table.records import Limits


def pool_of(policy: Policy, shape: Shape) -> str:
    return policy.pool_of_shape[SHAPES.index(shape)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("800ms", 0.8), ("1m30s", 90.0), ("2h", 7200.0), ("0s", 0.0), ("1.5s", 1.5), ("250us", 0.00025)],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "1 s", "-1s", "s", "1d", "1m 30s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example"):
        parse_duration(text)


def test_an_empty_spec_has_the_defaults() -> None:
    policy = policy_from_spec({})
    assert policy == Policy()
    assert set(policy.pool_of_shape) == {"default"}
    assert policy.hold_at_zero is None


def test_the_numbers_of_a_spec_are_resolved() -> None:
    policy = policy_from_spec(
        {
            "routing": {
                "holdRequestsFor": "1m",
                "retryBudgetPercent": 0,
                "maxRequestDuration": "2m",
                "versionStickiness": "Tenant",
                "slowRequestThreshold": "750ms",
            },
            "scaling": {"scaleToZero": {"holdRequestsFor": "90s"}},
            "slo": {"ttft": {"p90": "800ms"}},
            "pools": [
                {"name": "long", "shapes": ["VeryLong", "LongInputShortOutput"], "slo": {"ttft": {"p90": "3s"}}},
                {"name": "more"},
            ],
        }
    )
    assert (policy.hold, policy.hold_at_zero, policy.max_request, policy.slow) == (60.0, 90.0, 120.0, 0.75)
    assert policy.retry_percent == 0
    assert policy.stickiness is Stickiness.TENANT
    assert pool_of(policy, Shape.VERY_LONG) == pool_of(policy, Shape.LONG_INPUT_SHORT_OUTPUT) == "long"
    assert pool_of(policy, Shape.SHORT_INPUT_SHORT_OUTPUT) == "default"
    assert (found := policy.slo_of("long")) is not None
    assert found.ttft is not None
    assert found.ttft.p90 == "3s"
    assert policy.slo_of("more") == policy.slo_of("default") is not None


def test_a_part_that_cannot_be_read_has_its_default_and_is_named() -> None:
    policy = policy_from_spec(
        {"routing": {"retryBudgetPercent": "many"}, "slo": {"ttft": {"p90": "1s", "p50": "later field"}}, "pools": "x"}
    )
    assert policy.retry_percent == Policy().retry_percent
    assert policy.slo is not None, "a field of a newer release is passed over"
    [problem] = policy.problems
    assert problem.startswith("spec.routing cannot be read")


FILE = """
services:
- name: demo/chat
  pools:
  - {name: long, shapes: [VeryLong], maxModelLen: 32768, maxNumSeqs: 8}
  routing: {holdRequestsFor: 3s, overLong: {action: Cut}}
  tenancy: {default: {requestsPerMinute: 60}, tenants: [{name: a, weight: 2}]}
  slo: {tpot: {p99: 120ms}}
  replicas:
  - {url: "http://127.0.0.1:8000"}
  - {url: "http://127.0.0.1:8001", pool: long}
"""


def test_a_routes_file_says_what_a_spec_says(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(FILE)
    table = read_table(path)
    policy = table.services["demo/chat"].policy
    assert policy.hold == 3.0
    assert pool_of(policy, Shape.VERY_LONG) == "long"
    assert policy.tenancy is not None
    assert policy.tenancy.tenants is not None
    assert policy.tenancy.tenants[0].weight == 2
    limits = {replica.pool: replica.limits for replica in table.replicas.values()}
    assert limits == {"default": Limits(), "long": Limits(32768, 8)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("holdRequestsFor: 3s", "holdRequestsFor: 3"), "holdRequestsFor"),
        (("shapes: [VeryLong]", "shapes: [Huge]"), "shapes"),
        (
            ("  pools:\n", "  pools:\n  - {name: other, shapes: [VeryLong]}\n"),
            "each shape belongs to one pool",
        ),
    ],
)
def test_a_wrong_policy_in_a_file_is_refused_with_the_place(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(FILE.replace(*change))
    with pytest.raises(RoutesFileError, match=words):
        read_table(path)


@pytest.mark.parametrize(
    "text",
    [
        FILE.replace("http://127.0.0.1:8000", "http://[::1"),
        FILE.replace("http://127.0.0.1:8000", "http://[zz]:80"),
        FILE.replace("http://127.0.0.1:8000", "http://127.0.0.1:99999"),
        "services: []\nx: 2024-13-45",
        "services: &a [*a]",
        "services: []\n2024-01-01: x",
        "services: " + "[" * 3000,
        "services: []\nx: " + "9" * 5000,
        "services: [!!python/object:os.system {}]",
        "\x00",
    ],
    ids=["bracket", "no address", "port", "no date", "itself", "date as key", "deep", "long number", "tag", "control"],
)
def test_whatever_a_file_holds_it_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(text)
    with pytest.raises(RoutesFileError):
        read_table(path)
