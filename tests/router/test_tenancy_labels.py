"""Labels of tenants in metrics: few, and not changing back and forth."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from paceline_crds import metrics as catalogue
from paceline_crds.tenancy import TenancySpec
from paceline_router.tenancy.labels import KEPT_SECONDS, NONE, OTHER, TenantLabels
from paceline_router.tenancy.series import IDENTITY_REASONS, REJECTION_REASONS
from paceline_router.tenancy.tenants import Tenants

SERVICE = (("namespace", "demo"), ("service", "chat"))


def test_named_tenants_always_have_their_label_and_others_while_there_are_seats() -> None:
    labels = TenantLabels(seats=2)
    labels.use(["chat"])
    assert [labels.label(name) for name in ("a", "b", "c", "chat", "a", "")] == ["a", "b", OTHER, "chat", "a", NONE]
    labels.use(["chat", "c"])
    assert labels.label("c") == "c"
    # Being named frees the seat one had.
    labels.use(["a"])
    assert labels.label("d") == "d"


def test_what_begins_like_our_own_words_is_never_a_label() -> None:
    labels = TenantLabels()
    assert {labels.label(name) for name in ("_other", "_none", "_x")} == {OTHER}


def test_a_seat_goes_to_who_uses_clearly_more_and_at_most_one_in_ten_minutes() -> None:
    labels = TenantLabels(seats=2)
    assert [labels.label(name) for name in "abcd"] == ["a", "b", OTHER, OTHER]
    use = {"a": 100.0, "b": 10.0, "c": 15.0, "d": 12.0}
    assert not labels.refresh(use, 1.0)
    assert not labels.refresh(use, 1.0 + KEPT_SECONDS)
    use = {"a": 100.0, "b": 10.0, "c": 21.0, "d": 500.0}
    assert not labels.refresh(use, 2.0 + KEPT_SECONDS)
    assert labels.refresh(use, 1.0 + 2 * KEPT_SECONDS)
    assert [labels.label(name) for name in "abcd"] == ["a", OTHER, OTHER, "d"]
    assert not labels.refresh(use, 2.0 + 2 * KEPT_SECONDS)
    assert not labels.refresh(use, 1.0 + 3 * KEPT_SECONDS)


@given(
    st.lists(
        st.tuples(st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.floats(0, 100)), st.floats(0, 700)),
        max_size=50,
    )
)
def test_there_are_never_more_labels_than_seats_names_and_our_two(
    steps: list[tuple[str, dict[str, float], float]],
) -> None:
    labels = TenantLabels(seats=3)
    labels.use(["chat"])
    now = 0.0
    seen = {""}
    changes = 0
    for name, use, step in steps:
        now += step
        seen |= {name, *use}
        labels.label(name)
        changes += labels.refresh(use, now)
        shown = {each for each in seen if labels.shows(each) and each not in (NONE, OTHER)}
        assert len(shown) <= 4
    assert changes <= now / KEPT_SECONDS


def used(made: Tenants, name: str, tokens: int) -> None:
    tenant = made.identify({"x-paceline-tenant": name.encode()})
    made.settle(tenant, 0, tokens, 0, 1.0)


def series(made: Tenants, wanted: str) -> dict[str, float]:
    return {dict(labels)["tenant"]: value for name, labels, value in made.samples(SERVICE) if name == wanted and value}


def test_counts_stay_with_the_label_that_they_were_counted_under() -> None:
    made = Tenants(TenantLabels(seats=1))
    made.use(TenancySpec.model_validate_json(json.dumps({"tenants": [{"name": "chat"}]})))
    made.tidy(1.0)
    for name, tokens in (("small", 1), ("large", 1000), ("chat", 5), ("other", 7)):
        used(made, name, tokens)
    tokens_of = "paceline_router_tenant_tokens_total"
    assert series(made, tokens_of) == {"small": 1, "_other": 1007, "chat": 5}
    made.tidy(2.0 + KEPT_SECONDS)
    # What was counted as others' stays there: a counter never falls.
    assert series(made, tokens_of) == {"_other": 1007, "chat": 5}
    used(made, "large", 10)
    used(made, "small", 3)
    assert series(made, tokens_of) == {"large": 10, "_other": 1010, "chat": 5}


def test_every_series_is_in_the_catalogue_with_its_labels() -> None:
    made = Tenants()
    made.use(None)
    made.identify({}).counts.waited(1.0)
    families = {metric.name: metric for metric in catalogue.ROUTER}
    seen = set()
    for name, labels, _ in made.samples(SERVICE):
        base = name if name in families else name.rsplit("_", 1)[0]
        assert tuple(label for label, _ in labels if label != "le") == families[base].labels
        seen.add(base)
    assert len(seen) == 7


def test_reasons_exist_from_the_start() -> None:
    made = Tenants()
    made.use(None)
    samples = list(made.samples(SERVICE))
    reasons = [dict(labels)["reason"] for name, labels, _ in samples if name.endswith("_rejected_total")]
    assert sorted(reasons) == sorted([*REJECTION_REASONS, *IDENTITY_REASONS])
