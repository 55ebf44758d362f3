"""What the tests of commands that ask a cluster share: the commands as a user calls them, and servers to ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from operator_world import World, cluster, make_service, world
from typer.testing import CliRunner

from paceline_cli.main import build
from paceline_kube.testing import FakeApiServer

__all__ = ["cluster", "make_service", "world"]

Command = Callable[..., Awaitable[Result]]


def command(kubeconfig: Path) -> Command:
    """`await paceline("status", "chat")`: the command in a thread, since it brings an event loop of its own."""

    async def call(*arguments: str) -> Result:
        return await asyncio.to_thread(
            CliRunner().invoke, build(arguments), list(arguments), env={"KUBECONFIG": str(kubeconfig)}
        )

    return call


def write_kubeconfig(path: Path, server: str, namespace: str = "demo") -> Path:
    """A kubeconfig of one context without credentials."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": namespace}},
            {"name": "elsewhere", "context": {"cluster": "here", "user": "me", "namespace": "other"}},
        ],
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as fake:
        yield fake


@pytest.fixture
def kubeconfig(server: FakeApiServer, tmp_path: Path) -> Path:
    return write_kubeconfig(tmp_path / "kubeconfig", server.url)


@pytest.fixture
def paceline(kubeconfig: Path) -> Command:
    """Commands against the fake server."""
    return command(kubeconfig)


@pytest.fixture
def real(world: World) -> Command:
    """Commands against the real API server, in the namespace of the test."""

    async def call(*arguments: str) -> Result:
        return await command(world.cluster.kubeconfig)(*arguments, "-n", world.namespace)

    return call


@pytest.fixture
def stored(make_service: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A service as the operator leaves it."""

    def make(name: str = "chat", namespace: str = "demo", **status: Any) -> dict[str, Any]:
        obj = make_service(name)
        obj["metadata"] |= {"namespace": namespace, "generation": 1}
        obj["status"] = {
            "observedGeneration": 1,
            "conditions": [
                _condition("Ready", "True", "AsAsked", "chat-aaa serves, 1 of 1 ready"),
                _condition("TrafficReady", "True", "Serving", "1 replica takes requests for chat-aaa"),
                _condition("ConfigInSync", "True", "InSync", "1 replica reports what is recorded"),
            ],
            "replicas": 1,
            "readyReplicas": 1,
            "currentRevision": "chat-aaa",
            "updatedRevision": "chat-aaa",
            "address": {"url": "http://router/demo/chat/v1"},
            "pools": [{"name": "default", "hash": "aaa", "desired": 1, "ready": 1, "draining": 0}],
            "traffic": {"generation": 1, "entries": [{"pool": "default", "revision": "chat-aaa", "weight": 100}]},
            "drift": {"count": 0},
            **status,
        }
        return obj

    return make


def _condition(type: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": type,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }


@pytest.fixture
def condition() -> Callable[..., dict[str, Any]]:
    return _condition
