"""Whatever clients call themselves, their prompts and their models: series stay few, and the pages stay readable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from finished_exchange import Over
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from paceline_router.flow.dataplane import DataPlane
from paceline_router.report.admin import metrics_page
from paceline_router.report.service import MAX_KEYS, SHAPE_LABELS
from paceline_router.report.text import exposition
from paceline_router.settings import Settings
from paceline_router.tenancy.labels import SEATS
from paceline_router.tenancy.tenants import Tenants
from paceline_router.wire.answers import Refusal
from paceline_runtime.server.metrics import FORGET_SECONDS, MOST_NAMES, Ended, FewNames, FirstToken, Metrics

HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.sampled_from(["_other", "_none", '"', "\\", "\n", '",tenant="x"} 1\n', "{}", "é", "\u202e", "a" * 128, " "]),
    st.integers(0, 10**9).map("tenant-{}".format),
)
# Pages of eighty names are slow to shrink, and as they are they tell enough.
FUZZ = settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.generate))
NAMES = st.lists(st.tuples(HOSTILE, HOSTILE), min_size=1, max_size=80)
BOUND = MOST_NAMES + 2
"""Twenty by name, `_other`, `_none`."""


def values(families: Iterable[Any], label: str) -> set[str]:
    return {sample.labels[label] for family in families for sample in family.samples if label in sample.labels}


@FUZZ
@given(NAMES)
def test_a_replica_shows_few_tenants_and_prompt_versions(names: list[tuple[str, str]]) -> None:
    metrics = Metrics("smollm2")
    for tenant, version in names:
        metrics.first_token(FirstToken(tenant, version, 10, 4, 0.1, 0.01, 0.09, "req-1"))
        metrics.finished(Ended("stop", (5,), 0.5, 0.1, 0.01, tenant=tenant, request_id="req-1"))
    for accept, parse in (("", text_families), ("application/openmetrics-text", openmetrics_families)):
        families = list(parse(metrics.render(accept)[0].decode()))
        for label in ("tenant", "prompt_version"):
            assert 0 < len(values(families, label)) <= BOUND
        counted = {family.name: family for family in families}["paceline_tenant_requests"]
        assert sum(sample.value for sample in counted.samples) == len(names)


@FUZZ
@given(NAMES)
def test_a_router_shows_few_tenants_prompt_versions_pools_and_revisions(names: list[tuple[str, str]]) -> None:
    plane = DataPlane(Settings())
    metrics = plane.metrics.service("demo/chat")
    tenants = Tenants()
    tenants.use(None)
    for number, (tenant, version) in enumerate(names):
        try:
            label = tenants.identify({"x-paceline-tenant": tenant.encode()}).label
        except Refusal:
            label = "_none"
        shape = number % len(SHAPE_LABELS)
        over = Over(metrics=metrics, tenant_label=label, prompt_version=version, shape=shape, request_id=b"r-1")
        over.pool, over.revision = f"pool-{number}", f"chat-{number}"
        metrics.in_flight += 1
        plane.observer.finished(over)
    source = Source()
    for openmetrics, parse in ((False, text_families), (True, openmetrics_families)):
        families = list(parse(metrics_page(plane, source, openmetrics)))
        shown = {label: values(families, label) for label in ("tenant", "prompt_version", "pool", "revision", "shape")}
        assert len(shown["tenant"]) <= SEATS + 2
        assert len(shown["prompt_version"]) <= BOUND
        assert len(shown["revision"]) <= MAX_KEYS + 1
        assert shown["shape"] <= set(SHAPE_LABELS)
    text = exposition(tenants.samples((("namespace", "demo"), ("service", "chat"))))
    assert len(values(text_families(text), "tenant")) <= SEATS + 2


class Source:
    error: str | None = None

    def age(self) -> float | None:
        return None


def test_a_name_that_nobody_uses_gives_its_place_up_after_an_hour() -> None:
    now, gone = [0.0], list[str]()
    names = FewNames(gone.append, lambda: now[0])
    assert [names.label(f"scanner-{number}") for number in range(MOST_NAMES)][-1] == f"scanner-{MOST_NAMES - 1}"
    assert names.label("blue") == "_other"
    now[0] = FORGET_SECONDS - 1.0
    assert names.label("scanner-0") == "scanner-0"
    assert names.label("blue") == "_other"
    now[0] = FORGET_SECONDS
    assert names.label("blue") == "blue"
    assert gone == ["scanner-1"]
    assert names.label("scanner-0") == "scanner-0"


def test_what_looks_like_one_of_our_own_words_takes_no_place() -> None:
    names = FewNames(lambda _: None, lambda: 0.0)
    assert [names.label(name) for name in ("_none", "_other", "_x", "")] == ["_other", "_other", "_other", "_none"]


def test_the_series_of_a_name_that_gave_its_place_up_are_gone() -> None:
    now = [0.0]
    metrics = Metrics("smollm2", lambda: now[0])

    def ask(name: str) -> None:
        metrics.first_token(FirstToken(name, name, 10, 4, 0.1, 0.01, 0.09))
        metrics.finished(Ended("stop", (5,), 0.5, 0.1, 0.01, tenant=name))

    for number in range(MOST_NAMES):
        ask(f"scanner-{number}")
    now[0] = FORGET_SECONDS + 1.0
    for _ in range(2):
        ask("blue")
    page = metrics.render()[0].decode()
    assert "scanner-0" not in page
    assert "scanner-1" in page
    assert 'paceline_tenant_requests_total{model_name="smollm2",tenant="blue"} 2.0' in page
