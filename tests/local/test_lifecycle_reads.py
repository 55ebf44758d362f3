"""What bringing an instance up reads from an API server that has only just come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline_local import lifecycle
from paceline_local.errors import UnreachableError
from paceline_local.lifecycle import Lifecycle
from paceline_local.state import Instance


def _server(monkeypatch: pytest.MonkeyPatch, silent: int) -> list[str]:
    """Replace the HTTP call by one that stays without an answer `silent` times; returns what was asked."""
    urls: list[str] = []

    def asked(_: object, url: str) -> tuple[Any, str | None]:
        urls.append(url)
        return ({"items": []}, None) if len(urls) > silent else (None, f"{url} does not answer: timed out")

    monkeypatch.setattr(lifecycle, "asked", asked)
    monkeypatch.setattr(lifecycle, "clients", lambda _: (None, None))
    return urls


def test_a_read_that_an_api_server_leaves_unanswered_after_etcd_came_back_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    urls = _server(monkeypatch, silent=3)
    assert Lifecycle(Instance(tmp_path))._listed("https://127.0.0.1:1/api/v1/nodes") == {"items": []}
    assert len(urls) == 4


def test_a_read_that_stays_unanswered_ends_with_the_last_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _server(monkeypatch, silent=10**9)
    monkeypatch.setattr(lifecycle, "READY_TIMEOUT", 0.3)
    with pytest.raises(UnreachableError, match=r"nodes does not answer: timed out"):
        Lifecycle(Instance(tmp_path))._listed("https://127.0.0.1:1/api/v1/nodes")
