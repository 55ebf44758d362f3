import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from paceline_operator import __main__ as entry
from paceline_operator.app import Options
from paceline_operator.settings import Settings


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No pod and no kubeconfig around; logging as it was afterwards."""
    for name in (
        "POD_NAMESPACE",
        "POD_NAME",
        "PACELINE_RUNTIME_IMAGE",
        "PACELINE_LOG_LEVEL",
        "KUBERNETES_SERVICE_HOST",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PACELINE_SERVICEACCOUNT_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    loggers = [logging.getLogger(name) for name in ("", "kopf", "kopf._core.reactor.running", "aiohttp.access")]
    thresholds = gc.get_threshold()
    before = [(logger.level, list(logger.handlers), list(logger.filters)) for logger in loggers]
    yield
    gc.set_threshold(*thresholds)
    for logger, (level, handlers, filters) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers, logger.filters = handlers, filters


def call(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(entry.app, arguments, env=environment)


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        ([], {"PACELINE_RUNTIME_IMAGE": "x"}, "Set POD_NAMESPACE or --own-namespace"),
        ([], {"POD_NAMESPACE": "home"}, "Set PACELINE_RUNTIME_IMAGE or --runtime-image"),
        ([], {"POD_NAMESPACE": "home", "PACELINE_RUNTIME_IMAGE": "x"}, "no kubeconfig at"),
        ([], {"PACELINE_LOG_LEVEL": "loud"}, "use DEBUG, INFO, WARNING or ERROR"),
        (["--workers", "0"], {}, "--workers"),
        (["--prometheus-url", "prom:9090"], {"POD_NAMESPACE": "home", "PACELINE_RUNTIME_IMAGE": "x"}, "with http://"),
    ],
)
def test_wrong_use_ends_with_2_and_says_what_to_write(
    arguments: list[str], environment: dict[str, str], words: str
) -> None:
    result = call(*arguments, **environment)
    assert result.exit_code == 2
    assert words in result.output


def test_flags_and_environment_reach_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def run(kubeconfig: Path | None, settings: Settings, options: Options) -> None:
        assert gc.get_threshold() == entry.COLLECT_AFTER
        seen.extend((kubeconfig, settings, options))

    monkeypatch.setattr(entry, "_run", run)
    result = call(
        *("-n", "a", "-n", "b", "--workers", "7", "--no-room-seconds", "60"),
        POD_NAME="op-1",
        POD_NAMESPACE="home",
        PACELINE_RUNTIME_IMAGE="paceline.io/runtime:1",
        PACELINE_PUBLIC_URL="http://router/",
        PACELINE_BIND_HOST="127.0.0.9",
    )
    assert result.exit_code == 0, result.output
    kubeconfig, settings, options = seen
    assert kubeconfig is None
    assert (settings.namespace, settings.runtime_image) == ("home", "paceline.io/runtime:1")
    assert settings.public_router_url == "http://router"
    assert settings.no_room_seconds == 60.0
    assert (options.namespaces, options.workers, options.bind_host) == (("a", "b"), 7, "127.0.0.9")
    assert (options.health_port, options.metrics_port) == (8080, 9090)
    assert options.identity.startswith("op-1_")
    assert options.instance == "op-1"


def test_a_broken_part_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: Any) -> None:
        raise RuntimeError("election ended by itself")

    monkeypatch.setattr(entry, "_run", run)
    result = call(POD_NAMESPACE="home", PACELINE_RUNTIME_IMAGE="x")
    assert result.exit_code == 1


def test_two_starts_in_one_pod_are_two_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    identities: set[str] = set()

    async def run(_: Any, __: Any, options: Options) -> None:
        identities.add(options.identity)

    monkeypatch.setattr(entry, "_run", run)
    for _ in range(2):
        call(POD_NAME="op-1", POD_NAMESPACE="home", PACELINE_RUNTIME_IMAGE="x")
    assert len(identities) == 2
