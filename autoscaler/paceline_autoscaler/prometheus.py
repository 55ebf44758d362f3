"""Signals from Prometheus, through `prometheus-api-client`, in a thread of their own.

The client is synchronous: the event loop never waits for it. A Prometheus that is down, slow or refuses makes every
signal absent with that reason, which freezes what would have been decided from it.
"""

from __future__ import annotations

import ast
import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from paceline_crds import metrics

from . import queries
from .observed import Signals
from .samples import Absent, NotANumber, Sample, exactly
from .series import Asked, Series, gauge, highest, rate, to_number
from .source import Pool

LONGEST_REASON = 200

LOOKBACK = 4.0
"""Scrape intervals after which a series is not in the answer to an expression; Prometheus' own five minutes would let
what is long gone look new."""

Read = TypeVar("Read")


@dataclass(frozen=True)
class Access:
    """Where Prometheus is and how it is asked; files are read again at every question, since secrets are rotated.

    Attributes:
        url: without `/api/v1`.
        token_file: of a bearer token.
        user, password_file: for basic authentication.
        ca_file: of the authority that its certificate is from; None for the system's.
        cert_file, key_file: ours, for mutual TLS.
        headers: further ones, as a tenant's `X-Scope-OrgID`.
        timeout: seconds for one query.
    """

    url: str
    token_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 5.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"Prometheus' address begins with http:// or https://, not as {self.url!r}")
        if self.token_file is not None and self.user is not None:
            raise ValueError("give a bearer token or a user for Prometheus, not both")
        if (self.user is None) != (self.password_file is None):
            raise ValueError("a user for Prometheus needs a file with the password, and the other way round")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("a client certificate for Prometheus needs its key, and the other way round")


def refusal(text: str) -> str:
    """An answer other than 200 in Prometheus' own words, as far as it has any: those of a query that it cannot read.

    Args:
        text: of the client's exception, `HTTP Status Code 400 (b'{"status":"error",…}')`.
    """
    found = re.fullmatch(r"HTTP Status Code (\d+) \((b.*)\)", text, re.DOTALL)
    if found is None:
        return f"Prometheus refuses: {' '.join(text.split())[:LONGEST_REASON]}"
    try:
        words = str(json.loads(ast.literal_eval(found[2]))["error"])
    except (ValueError, SyntaxError, LookupError, TypeError):
        words = "without a reason that can be read"  # of a proxy before it
    return f"Prometheus answers {found[1]}: {' '.join(words.split())[:LONGEST_REASON]}"


class PrometheusSource:
    """A `MetricsSource`. One question at a time; `close` when done.

    Args:
        access: where and how.
        interval: seconds between scrapes, as configured there.
        window: seconds that rates are over; at least four scrapes.

    Raises:
        ModuleNotFoundError: `prometheus-api-client` is not installed.
    """

    def __init__(self, access: Access, interval: float, window: float) -> None:
        from prometheus_api_client import PrometheusConnect

        self._access = access
        self._interval = interval
        self._window = max(window, 4.0 * interval)
        self._connect: Callable[..., Any] = PrometheusConnect
        self._thread = ThreadPoolExecutor(1, "prometheus")

    def close(self) -> None:
        """Give the thread back once its question is answered."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def signals(self, pool: Pool) -> Signals:
        """The signals of one pool now; all `Absent` where Prometheus cannot be asked."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._ask(lambda client: self._read(client, pool), _all_absent)
        )

    async def value(self, query: str) -> Sample:
        """The one number that an expression gives now; `Absent`, with the reason, where it gives none or several."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._ask(lambda client: self._number(client, query), Absent)
        )

    def _ask(self, read: Callable[[Any], Read], absent: Callable[[str], Read]) -> Read:
        from prometheus_api_client import PrometheusApiClientException
        from requests import RequestException

        try:
            client = self._client()
            try:
                return read(client)
            finally:
                client.close()
        except PrometheusApiClientException as error:
            return absent(refusal(str(error)))
        except (RequestException, OSError, ValueError, LookupError, TypeError) as error:
            # The last ones are answers of a form that is not Prometheus', as a proxy's.
            text = " ".join(str(error).split())[:LONGEST_REASON]
            return absent(f"Prometheus does not answer: {type(error).__name__}: {text}")

    def _client(self) -> Any:
        from requests import Session
        from urllib3.util.retry import Retry

        access = self._access
        session = Session()
        session.trust_env = False  # a .netrc or proxy of the environment is not meant for this
        session.verify = True if access.ca_file is None else str(access.ca_file)
        if access.cert_file is not None:
            session.cert = (str(access.cert_file), str(access.key_file))
        headers = dict(access.headers)
        if access.token_file is not None:
            headers["Authorization"] = f"Bearer {access.token_file.read_text().strip()}"
        auth = None
        if access.user is not None and access.password_file is not None:
            auth = (access.user, access.password_file.read_text().strip())
        # Not tried again: the next decision asks anew, and a late answer is worth less than none.
        return self._connect(
            access.url.rstrip("/"),
            headers=headers,
            auth=auth,
            session=session,
            retry=Retry(total=0),
            timeout=access.timeout,
            method="POST",
        )

    def _number(self, client: Any, query: str) -> Sample:
        found = client.custom_query(query, params={"lookback_delta": f"{LOOKBACK * self._interval:g}s"})
        if len(found) == 2 and not isinstance(found[0], Mapping):
            at, text = found  # a scalar is one point without labels
        elif len(found) != 1:
            several = f"{len(found)} series where one number was asked for: write sum(...) or max(...) around it"
            return Absent(several if found else "no series, or none that was scraped lately")
        else:
            at, text = found[0]["value"]
        number = float(text)
        return exactly(number, float(at)) if math.isfinite(number) else NotANumber(str(text))

    def _read(self, client: Any, pool: Pool) -> Signals:
        now = float(client.custom_query("time()")[1])
        window, interval = self._window, self._interval
        replicas, service = queries.of_pool(pool), queries.of_service(pool)
        asked = Asked(now, interval, pool.pods)

        def points(name: str, labels: str, seconds: float) -> list[Series]:
            found = client.custom_query(queries.raw(name, labels, seconds))
            return [Series(one["metric"], [(float(at), str(value)) for at, value in one["values"]]) for one in found]

        def recent(metric: metrics.Metric, labels: str = replicas) -> list[Series]:
            return points(metric.name, labels, 5.0 * interval)

        def per_second(metric: metrics.Metric) -> Sample:
            return rate(points(metric.name, replicas, window), asked, window)

        most = math.inf if pool.max_running is None else float(pool.max_running)
        return Signals(
            requests=per_second(metrics.RUNTIME_REQUESTS_RECEIVED),
            prefill=per_second(metrics.RUNTIME_PREFILL_TOKENS_COMPUTED),
            decode=per_second(metrics.RUNTIME_GENERATION_TOKENS),
            waiting=gauge(recent(metrics.RUNTIME_REQUESTS_WAITING), asked),
            running=gauge(recent(metrics.RUNTIME_REQUESTS_RUNNING), Asked(now, interval, pool.pods, most)),
            backlog=gauge(recent(metrics.RUNTIME_PREFILL_TOKENS), asked),
            held=gauge(recent(metrics.ROUTER_HELD, service), Asked(now, interval)),
            kv=highest(recent(metrics.RUNTIME_KV_CACHE_USAGE), Asked(now, interval, pool.pods, 1.0)),
            wait_p99=_one(client, queries.quantile(metrics.RUNTIME_QUEUE_TIME.name, replicas, window, 0.99), now),
            attainment=_one(client, queries.attainment(service, window), now),
        )


def _one(client: Any, query: str, now: float) -> Sample:
    """The sample of a query that has to give one series; more than one is a fault of the query (C100)."""
    found = client.custom_query(query)
    if not found:
        return Absent("no series")
    if len(found) > 1:
        return Absent(f"{len(found)} series where one was asked for")
    value = to_number(str(found[0]["value"][1]))
    return value if isinstance(value, NotANumber) else exactly(value, now)


def _all_absent(reason: str) -> Signals:
    absent = Absent(reason)
    return Signals(*[absent] * len(Signals.__dataclass_fields__))
