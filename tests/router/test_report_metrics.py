"""The text that Prometheus reads: complete, correct, and bounded whatever clients write."""

from __future__ import annotations

import json
import re
import subprocess
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from finished_exchange import Over
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from paceline_crds import metrics as catalogue
from paceline_crds.routing import ObjectiveSpec, RoutingSpec, SLOSpec
from paceline_crds.sketch import EDGES
from paceline_router.choice.decision import CODES
from paceline_router.flow.dataplane import DataPlane
from paceline_router.report import histogram
from paceline_router.report.admin import make_app, metrics_page
from paceline_router.report.histogram import FineHistogram, Histogram, bucket_of
from paceline_router.report.imbalance import SECONDS, Imbalance
from paceline_router.report.labels import MOST, BoundedCounters
from paceline_router.report.metrics import Metrics
from paceline_router.report.observer import Observer
from paceline_router.report.service import MAX_KEYS, REFUSALS
from paceline_router.report.text import exposition, sample, service_labels
from paceline_router.report.tokens import AdminToken
from paceline_router.report.tracing import Tracer
from paceline_router.settings import Settings
from paceline_router.shadow.counts import Counts
from paceline_router.shape.asked import COMPLETIONS, text_of
from paceline_router.table.policy import make_policy
from paceline_router.wire.requests import parse_body

SLO = SLOSpec(ttft=ObjectiveSpec(p90="150ms"), tpot=ObjectiveSpec(p90="25ms"))
PROMTOOL = next(Path.home().glob(".cache/paceline/bin/prometheus-*/promtool"), None)


class Source:
    error: str | None = None

    def age(self) -> float | None:
        return 12.5


@pytest.fixture
def plane(helpers: Any) -> DataPlane:
    made = DataPlane(Settings())
    made.use(helpers.table_of(1, 2))
    return made


@pytest.fixture
def busy(plane: DataPlane) -> DataPlane:
    """One that has had a request of every kind, so that no family is without a series."""
    metrics = plane.metrics.service("demo/chat")
    metrics.use(make_policy(RoutingSpec(), slo=SLO))
    metrics.spilled("long", "down")
    living = plane.living["demo/chat"]
    plane.taps.counts["demo/chat"] = Counts()
    living.tenants.identify({}).counts.waited(1.0)
    body = parse_body(json.dumps({"prompt": "What is a fine day? " * 200}).encode())
    shaped = living.shaper.shape(body, text_of(body, COMPLETIONS), "_none", COMPLETIONS, None)
    for _ in range(2000):
        living.shaper.learn(shaped, shaped.prompt_tokens, 10)
    plane.observer.finished(Over(metrics=metrics))
    metrics.in_flight = 0
    for second in range(12):
        work = [(("demo/chat", "default"), "r0", 3.0), (("demo/chat", "default"), "r1", 1.0)]
        plane.metrics.imbalance.look(work, 50.0 + second)
        plane.metrics.work_imbalance.look(work, 50.0 + second)
    return plane


@pytest.fixture
def admin(plane: DataPlane) -> Iterator[TestClient]:
    with TestClient(make_app(plane, Source(), AdminToken(value="secret"))) as client:
        yield client


def test_metrics_are_prometheus_text_and_start_at_zero(admin: TestClient) -> None:
    answer = admin.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.text
    labels = 'namespace="demo",service="chat"'
    assert f'paceline_router_requests_total{{{labels},outcome="broken_stream"}} 0\n' in text
    assert f'paceline_router_replicas{{{labels},state="ready"}} 2\n' in text
    assert "paceline_router_table_age_seconds 12.5\n" in text
    assert f"paceline_router_requests_held{{{labels}}} 0\n" in text
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .+|[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+', line), line


def test_metrics_are_exactly_those_of_the_catalogue(busy: DataPlane) -> None:
    shown = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            family.documentation,
            {frozenset(sample.labels) - {"le"} for sample in family.samples},
        )
        for family in text_string_to_metric_families(metrics_page(busy, Source()))
    }
    assert shown == {m.name: (m.kind, m.help, {frozenset(m.labels)}) for m in catalogue.ROUTER}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is built on first use by `paceline local build --prometheus`")
def test_promtool_finds_nothing_to_say(busy: DataPlane) -> None:
    text = metrics_page(busy, Source())
    command = [str(PROMTOOL), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    # The imbalance is a ratio with a name that says so; nothing else may be found either.
    assert (done.returncode, done.stderr.strip()) == (0, ""), done.stderr


def test_who_accepts_openmetrics_gets_it_with_the_requests_to_look_at(busy: DataPlane) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    with TestClient(make_app(busy, Source(), AdminToken(value="secret"))) as client:
        answer = client.get("/metrics", headers={"accept": accept})
        plain = client.get("/metrics", headers={"accept": "*/*"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# {" not in plain.text
    families = {family.name: family for family in openmetrics_families(answer.text)}
    text_families = {family.name: family for family in text_string_to_metric_families(plain.text)}
    assert families.keys() == text_families.keys()
    for name, family in families.items():
        assert (family.type, family.documentation) == (text_families[name].type, text_families[name].documentation)
    pointed = {
        name: found.exemplar
        for name, family in families.items()
        for found in family.samples
        if found.exemplar is not None
    }
    assert {name: found.value for name, found in pointed.items()} == {
        "paceline_router_ttft_seconds": pytest.approx(0.1),
        "paceline_router_tpot_seconds": pytest.approx(0.02),
        "paceline_router_request_duration_seconds": pytest.approx(0.3),
    }
    assert all(found.labels == {"request_id": "req-1"} for found in pointed.values())


@pytest.mark.parametrize("edges", [histogram.TTFT, histogram.TPOT, histogram.DURATION])
@given(values=st.lists(st.floats(0.0, 2000.0), max_size=40))
def test_an_exemplar_lies_in_its_bucket_and_is_the_last_that_fell_into_it(
    edges: tuple[float, ...], values: list[float]
) -> None:
    made = FineHistogram(edges)
    for number, value in enumerate(values):
        made.observe(value, b"r%d" % number)
    bounds = [*edges, float("inf")]
    last = {bounds[bisect_left(bounds, value)]: (f"r{number}", value) for number, value in enumerate(values)}
    assert {float(dict(labels)["le"]): who for (_, labels), who in made.pointed("x", ())} == last


def test_a_metric_that_is_not_in_the_catalogue_cannot_be_shown() -> None:
    with pytest.raises(KeyError, match="paceline_router_made"):
        exposition([("paceline_router_made_up", (), 1)])


def test_large_counters_keep_all_their_digits() -> None:
    assert "paceline_router_retries_refused_total 123456789\n" in exposition(
        [("paceline_router_retries_refused_total", (), 123_456_789)]
    )


def test_labels_are_escaped() -> None:
    text = exposition([("paceline_router_services", (("a", 'x"\\\n'),), 1)])
    assert 'a="x\\"\\\\\\n"' in text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=5, unique=True))
def test_whatever_a_label_says_is_read_back_as_it_was(values: list[str]) -> None:
    metric = catalogue.ROUTER_TENANT_ADMITTED
    labels = service_labels("demo/chat")
    text = exposition(sample(metric, labels, value, value=number) for number, value in enumerate(values))
    [family] = text_string_to_metric_families(text)
    assert [found.labels["tenant"] for found in family.samples] == values


# Histograms


@pytest.mark.parametrize("edges", [histogram.SHORT, histogram.LONG])
def test_a_histogram_is_cumulative(edges: tuple[float, ...]) -> None:
    made = Histogram(edges)
    for value in (edges[0] / 2, edges[0], 0.3, 1e9):
        made.observe(value)
    samples = list(made.samples("x", (), zeros=5))
    counts = [value for name, _, value in samples if name == "x_bucket"]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (7, 9)
    assert samples[-1] == ("x_count", (), 9)


@pytest.mark.parametrize("edges", [histogram.TTFT, histogram.TPOT, histogram.DURATION])
@given(values=st.lists(st.floats(0.0, 2000.0), max_size=40))
def test_buckets_that_are_shown_have_exactly_what_belongs_in_them(
    edges: tuple[float, ...], values: list[float]
) -> None:
    assert set(edges) <= set(EDGES)
    made = FineHistogram(edges)
    for value in values:
        made.observe(value)
    samples = list(made.samples("x", ()))
    counts = [value for name, _, value in samples if name == "x_bucket"]
    assert counts == [*(sum(value <= edge for value in values) for edge in edges), len(values)]
    assert samples[-2][2] == pytest.approx(sum(values))


def test_buckets_resolve_what_services_promise() -> None:
    # The promises of the API's example, and round ones that services often make, have a bucket that ends there.
    assert {0.1, 0.2, 0.25, 0.3, 0.5, 0.8, 1.0, 2.0, 5.0, 10.0} <= set(histogram.TTFT)
    assert {0.02, 0.03, 0.04, 0.05, 0.06, 0.1, 0.12, 0.2} <= set(histogram.TPOT)
    # Any other one lies in a bucket that is at most twice as wide as its lower end.
    for edges, low in ((histogram.TTFT, 0.05), (histogram.TPOT, 0.01)):
        assert all(above / below <= 2.01 for below, above in pairwise(edges) if below >= low)


def test_one_bound_has_one_spelling() -> None:
    for edges in (histogram.SHORT, histogram.LONG, histogram.TTFT, histogram.TPOT, histogram.DURATION):
        spelled = [dict(labels)["le"] for name, labels, _ in Histogram(edges).samples("x", ()) if name == "x_bucket"]
        assert [float(text) for text in spelled] == [*edges, float("inf")]
        assert not [text for text in spelled[:-1] if "e" in text]


@given(
    st.lists(st.floats(0.0, 2000.0), unique=True).map(lambda edges: tuple(sorted(edges))) | st.just(EDGES),
    st.floats(-1.0, 2000.0) | st.sampled_from(EDGES),
)
def test_a_value_falls_into_the_first_bucket_that_reaches_up_to_it(edges: tuple[float, ...], value: float) -> None:
    assert bucket_of(edges, value) == bisect_left(edges, value)


# Bounds


@given(st.lists(st.text(max_size=8), max_size=200))
def test_however_many_prompt_versions_are_sent_few_are_shown(versions: list[str]) -> None:
    counters = BoundedCounters(1)
    for version in versions:
        counters.row(version)[0] += 1
    assert len(counters.rows) <= MOST + 2
    assert sum(row[0] for row in counters.rows.values()) == len(versions)
    named = dict.fromkeys(version for version in versions if version)
    assert set(list(named)[:MOST]) <= counters.rows.keys()


def test_a_value_keeps_its_place_while_it_is_used_and_loses_it_afterwards() -> None:
    counters = BoundedCounters(1)
    for number in range(MOST + 5):
        counters.row(f"v{number}")[0] += 1
    counters.forget_unused()
    counters.row("v0")[0] += 1
    counters.row("v23")[0] += 1
    assert "v23" not in counters.rows
    counters.forget_unused()
    assert counters.rows.keys() == {"v0", "_other"}
    counters.row("v23")[0] += 1
    assert counters.rows["v23"] == [1]
    assert counters.rows["v0"] == [2]


async def test_client_chosen_names_never_become_series(router: Any, peer: Any) -> None:
    service = await router(await peer())

    def series() -> int:
        return len(metrics_page(service.plane, Source()).splitlines())

    async def post(model: str, extra: str = "") -> None:
        body = json.dumps({"model": model, "prompt": "x"}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{extra}"
        await service.raw(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    await post("smollm2")
    before = series()
    for number in range(30):
        await post(f"model-{number}")
        await post(f"demo/none-{number}")
        await service.raw(f"GET /x/{number} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    assert list(service.plane.metrics.services) == ["demo/chat"]
    assert series() == before
    assert service.plane.metrics.rejected[404] == 90
    names = ("x-paceline-tenant", "x-paceline-session", "x-paceline-prompt-version", "traceparent")
    for number in range(60):
        await post("smollm2", "".join(f"{name}: n{number}\r\n" for name in names))
    many = series()
    for number in range(60, 120):
        await post("smollm2", "".join(f"{name}: n{number}\r\n" for name in names))
    assert series() == many
    assert service.outcomes() == {"2xx": 121}


def test_revisions_beyond_a_number_are_counted_together() -> None:
    metrics = Metrics().service("a/b")
    for number in range(MAX_KEYS + 50):
        Observer(Tracer()).finished(Over(metrics=metrics, revision=f"r{number}"))
    assert len(metrics.cells) == MAX_KEYS + 1
    assert sum(metrics.cells["_other", "_other"][0].outcomes) == 50


def test_a_reason_that_is_not_listed_has_no_label_of_its_own() -> None:
    metrics = Metrics().service("a/b")
    metrics.refused("over_long")
    metrics.refused("a word that somebody made up")
    assert metrics.refusals == {**dict.fromkeys(REFUSALS, 0), "over_long": 1, "_other": 1}


def test_series_of_a_service_that_is_gone_are_dropped_once_nothing_runs() -> None:
    metrics = Metrics()
    metrics.service("a/b").in_flight = 1
    metrics.service("c/d")
    metrics.keep_only([])
    assert list(metrics.services) == ["a/b"]
    metrics.services["a/b"].in_flight = 0
    metrics.keep_only([])
    assert metrics.services == {}


# Over time


def test_imbalance_is_of_many_looks_and_only_where_there_is_something_to_compare() -> None:
    imbalance = Imbalance()
    pool, single, idle = ("a/b", "default"), ("a/b", "one"), ("a/b", "idle")
    for second in range(int(SECONDS) + 1):
        even = second % 2
        imbalance.look(
            [
                (pool, "r0", 4.0 * even),
                (pool, "r1", 4.0 * (1 - even)),
                (single, "r2", 9.0),
                (idle, "r3", 0.0),
                (idle, "r4", 0.0),
            ],
            100.0 + second,
        )
    assert imbalance.ratios == {pool: pytest.approx(1.0, abs=0.1)}
    for second in range(int(SECONDS) + 1):
        imbalance.look([(pool, "r0", 3.0), (pool, "r1", 1.0), (pool, "r2", 0.0)], 120.0 + second)
    assert imbalance.ratios == {pool: pytest.approx(2.25)}


def test_requests_and_work_are_looked_at_apart(helpers: Any) -> None:
    plane = DataPlane(Settings())
    plane.use(helpers.table_of(1, 2))
    first, second = plane.living[helpers.KEY].backends
    first.begin(3000, 100, 0)
    second.begin(100, 100, 0)
    for passed in range(int(SECONDS) + 2):
        plane.metrics.tick(100.0 + passed, 1_000_000.0, 1.0, plane.table, plane.backends.values())
    assert plane.metrics.imbalance.ratios == {(helpers.KEY, "default"): pytest.approx(1.0)}
    assert plane.metrics.work_imbalance.ratios[helpers.KEY, "default"] > 1.2


async def test_choices_are_counted_by_reason_and_their_tokens_by_where_they_lie(router: Any, peer: Any) -> None:
    service = await router(await peer(), await peer())
    long = {"model": "smollm2", "messages": [{"role": "user", "content": "the same beginning " * 200}]}
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        for _ in range(3):
            assert (await client.post("/v1/chat/completions", json=long)).status_code == 200
    lines = metrics_page(service.plane, Source()).splitlines()

    def value(name: str, label: str) -> int:
        (found,) = [line for line in lines if line.startswith(name + "{") and label in line]
        return int(found.rpartition(" ")[2])

    reasons = {reason: value("paceline_router_choices_total", f'reason="{reason}"') for reason in CODES}
    assert sum(reasons.values()) == 3
    assert reasons["prefix"] == 2
    cached, new = (value("paceline_router_choice_prompt_tokens_total", f'kind="{kind}"') for kind in ("cached", "new"))
    assert cached > new > 0


def test_ticks_close_slots_and_tell_how_late_they_came(plane: DataPlane) -> None:
    metrics = plane.metrics

    def tick(now: float) -> None:
        metrics.tick(now, 1_000_000.0 + now, 0.25, plane.table, plane.backends.values())

    for quarter in range(8):
        tick(100.0 + quarter / 4)
    assert metrics.lag == 0.0
    tick(102.75)
    assert metrics.lag == pytest.approx(0.75)
    for quarter in range(60):
        tick(103.0 + quarter / 4)
    assert metrics.lag == pytest.approx(0.75)
    for quarter in range(60):
        tick(118.0 + quarter / 4)
    assert metrics.lag == 0.0
    slots = metrics.services["demo/chat"].windows._state.recent
    assert len(slots) == 3
    assert all(earlier.end == later.begin for earlier, later in pairwise(slots))


def test_replicas_that_are_gone_are_forgotten_an_hour_later(plane: DataPlane) -> None:
    metrics = plane.metrics
    service = metrics.services["demo/chat"]
    plane.observer.finished(Over(metrics=service, revision="gone"))
    plane.observer.finished(Over(metrics=service, revision=""))
    for now in (10.0, 3611.0, 7212.0):
        metrics.tick(now, now, 0.25, plane.table, plane.backends.values())
    # The replicas of this table have no revision.
    assert set(service.cells) == {("default", "")}
