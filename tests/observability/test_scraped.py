"""The pages of replica, router and operator as a real Prometheus keeps them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from finished_exchange import Over
from prometheus_client import generate_latest
from scraped import Prometheus, Served, pod, prometheus
from vllm_dashboard import PANELS, queries

from paceline_crds.routing import ObjectiveSpec, RoutingSpec, SLOSpec
from paceline_local.build import prometheus_binary
from paceline_observability.catalogue import BY_NAME, BY_SERIES, stored_labels
from paceline_operator.metrics import Metrics as OperatorMetrics
from paceline_router.flow.dataplane import DataPlane
from paceline_router.report.admin import metrics_page
from paceline_router.report.text import OPENMETRICS, TEXT, accepts_openmetrics
from paceline_router.settings import Settings
from paceline_router.table.policy import make_policy
from paceline_runtime.messages import EngineStats, Preemptions
from paceline_runtime.server.metrics import Ended, FirstToken, Metrics

BINARY = prometheus_binary()
MODEL = "smollm2"

pytestmark = pytest.mark.skipif(
    BINARY is None, reason="Prometheus is built on first use by `paceline local build --prometheus`"
)


class Replica:
    """Has answered ten more requests each time it is asked."""

    def __init__(self) -> None:
        self.metrics = Metrics(MODEL)
        self.metrics.configured("hash1", "hash2")
        self.requests = 0

    def page(self, accept: str) -> tuple[bytes, str]:
        for _ in range(10):
            self._answer()
        return self.metrics.render(accept)

    def _answer(self) -> None:
        metrics, self.requests = self.metrics, self.requests + 1
        number = self.requests
        who = f"req-{number}"
        metrics.received("chat_completions")
        metrics.submitted(n=1, max_tokens=64)
        metrics.engine_stats(
            EngineStats(
                sequence=number,
                step=number,
                running=3,
                waiting=1,
                kv_blocks_used=30,
                kv_blocks_total=100,
                kv_blocks_cached=50,
                prefill_tokens=5,
                decode_tokens=7,
                preemptions_total=number,
                prefix_query_tokens_total=100 * number,
                prefix_hit_tokens_total=40 * number,
                prompt_tokens_total=60 * number,
                generation_tokens_total=20 * number,
                preemptions=[Preemptions("NoBlocks", "recompute", "normal", number)],
                waiting_by_reason={"NoBlocks": 1},
                batch_tokens=32,
                batch_seqs=4,
            )
        )
        metrics.first_token(FirstToken("blue", "v7", 100, 40, 0.2, 0.05, 0.15, who))
        metrics.token_gap(0.02)
        reason = "length" if number % 5 == 0 else "stop"
        metrics.finished(Ended(reason, (20,), 0.6, 0.2, 0.05, tenant="blue", request_id=who))


class Router:
    """Has passed on ten more requests each time it is asked."""

    error: str | None = None

    def __init__(self) -> None:
        self.plane = DataPlane(Settings())
        self.requests = 0
        self.metrics = self.plane.metrics.service("demo/chat")
        slo = SLOSpec(ttft=ObjectiveSpec(p90="800ms"))
        self.metrics.use(make_policy(RoutingSpec(), slo=slo))

    def age(self) -> float | None:
        return 1.5

    def page(self, accept: str) -> tuple[bytes, str]:
        for _ in range(10):
            self.requests += 1
            self.metrics.in_flight += 1
            self.plane.observer.finished(Over(metrics=self.metrics, request_id=b"r-%x" % self.requests))
        wanted = accepts_openmetrics(accept)
        return metrics_page(self.plane, self, wanted).encode(), OPENMETRICS if wanted else TEXT


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    operator = OperatorMetrics()
    pages = [
        Served(Replica().page),
        Served(Router().page),
        Served(lambda _: (generate_latest(operator.registry), TEXT)),
    ]
    replica, router, operators = (page.address for page in pages)
    system = "paceline-system"
    labels = {"paceline_io_service": "chat", "paceline_io_pool": "default", "paceline_io_pool_hash": "5d41402a"}
    targets = [
        pod("demo", "chat-default-0", replica, **labels),
        pod(system, "paceline-router-0", router, app_kubernetes_io_component="router"),
        pod(system, "paceline-operator-0", operators, app_kubernetes_io_component="operator"),
        pod("demo", "chat-default-0", replica, port="other"),
    ]
    folder = tmp_path_factory.mktemp("prometheus")
    assert BINARY is not None
    try:
        with prometheus(BINARY, folder, targets) as found:
            found.wait(lambda: _thrice(found), "three scrapes of every target", 120.0)
            # Whoever negotiates takes OpenMetrics: else there would be no exemplars.
            assert all("application/openmetrics-text" in page.accept for page in pages)
            yield found
    finally:
        for page in pages:
            page.close()


def _thrice(found: Prometheus) -> bool:
    """On a busy machine a scrape may take too long now and then."""
    counts = [float(one["value"][1]) for one in found.query("sum_over_time(up[2m])")]
    return len(counts) == 3 and min(counts) >= 3


def test_only_ports_named_metrics_are_scraped_and_all_are_up(running: Prometheus) -> None:
    found = {(one["metric"]["namespace"], one["metric"]["pod"]) for one in running.query("max_over_time(up[2m]) == 1")}
    assert found == {
        ("demo", "chat-default-0"),
        ("paceline-system", "paceline-router-0"),
        ("paceline-system", "paceline-operator-0"),
    }
    assert len(running.query("up")) == len(found)


def test_scraping_says_whose_a_replicas_series_are(running: Prometheus) -> None:
    (found,) = running.query("vllm:num_requests_running")
    own = {name: value for name, value in found["metric"].items() if name not in ("instance", "__name__")}
    assert own == {
        "job": "pods",
        "namespace": "demo",
        "service": "chat",
        "pool": "default",
        "revision": "5d41402a",
        "pod": "chat-default-0",
        "model_name": MODEL,
    }


def test_a_routers_own_labels_win_over_what_it_is_scraped_as(running: Prometheus) -> None:
    found = running.query("sum by (namespace, service, pool, revision, pod) (paceline_router_placed_requests_total)")
    assert [one["metric"] for one in found] == [
        {
            "namespace": "demo",
            "service": "chat",
            "pool": "default",
            "revision": "chat-1",
            "pod": "paceline-router-0",
        }
    ]


def test_every_series_is_in_the_catalogue_with_its_labels_and_type(running: Prometheus) -> None:
    own = '{job="pods",__name__!~"up|scrape_.+"}'
    series = running.get("series", **{"match[]": own})
    assert {one["__name__"] for one in series} <= BY_SERIES.keys()
    for one in series:
        assert one.keys() - {"__name__"} <= stored_labels(one["__name__"]), one
    for name, (said, *_) in running.get("metadata").items():
        metric = BY_NAME.get(name) or BY_NAME.get(f"{name}_total")
        if metric is not None:
            assert (said["type"], said["help"]) == (metric.kind, metric.help), name
    seen = {BY_SERIES[one["__name__"]].made_by for one in series}
    assert seen == {"runtime", "router", "operator"}


@pytest.mark.parametrize(("panel", "promql"), list(queries(MODEL, "2m")))
def test_vllms_dashboard_is_answered(running: Prometheus, panel: str, promql: str) -> None:
    found = running.query(promql)
    assert found, panel
    values = [float(one["value"][1]) for one in found]
    assert all(math.isfinite(value) and value >= 0.0 for value in values), panel
    assert any(value > 0.0 for value in values), panel


def test_vllms_dashboard_finds_the_model_by_its_label(running: Prometheus) -> None:
    assert running.get("label/model_name/values") == [MODEL]
    assert len({panel.title for panel in PANELS}) == 12


def test_exemplars_lead_from_a_bucket_to_a_request(running: Prometheus) -> None:
    for name, prefix in (
        ("vllm:time_to_first_token_seconds_bucket", "req-"),
        ("paceline_router_ttft_seconds_bucket", "r-"),
    ):
        found = running.get("query_exemplars", query=name, start="0", end="9999999999")
        ids = {one["labels"]["request_id"] for series in found for one in series["exemplars"]}
        assert ids, name
        assert all(who.startswith(prefix) for who in ids)


def test_goodput_is_one_division(running: Prometheus) -> None:
    kept = 'sum(increase(paceline_slo_requests_total{slo="goodput",result="met"}[2m]))'
    all_of_them = 'sum(increase(paceline_slo_requests_total{slo="goodput"}[2m]))'
    (found,) = running.query(f"{kept} / {all_of_them}")
    assert float(found["value"][1]) == pytest.approx(1.0)
