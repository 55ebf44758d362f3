"""Which requests are to be copied, as the status of a service or a routes file says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline_router.table.file import RoutesFileError, read_table
from paceline_router.table.records import Shadow, service_from_object

SHADOW = {
    "revision": "chat-2",
    "percent": 10,
    "optOutTenants": ["acme"],
    "shapes": ["VeryLong"],
    "recorder": "http://r",
}


def shadow_of(value: Any) -> Shadow | None:
    traffic = {"generation": 4, "entries": [], "shadow": value}
    return service_from_object({"metadata": {"name": "chat"}, "status": {"traffic": traffic}}).shadow


def test_a_shadow_is_read_from_the_status() -> None:
    assert shadow_of(SHADOW) == Shadow(
        "chat-2", 10, frozenset(["VeryLong"]), opt_out_tenants=frozenset(["acme"]), recorder="http://r"
    )
    assert shadow_of(None) is None


@pytest.mark.parametrize(
    "change",
    [{"percent": 0}, {"percent": "10"}, {"revision": None}, {"shapes": ["Odd"]}, {"newer": True}, {"percent": 101}],
)
def test_a_shadow_that_cannot_be_read_in_full_copies_nothing(change: dict[str, Any]) -> None:
    assert shadow_of({**SHADOW, **change}) is None


ROUTES = """
services:
- name: demo/chat
  replicas:
  - {url: "http://127.0.0.1:1", revision: old}
  - {url: "http://127.0.0.1:2", revision: new}
  traffic:
    entries: [{revision: old, weight: 100}]
    shadow: {revision: %s, percent: 25, maxConcurrent: 3}
"""


def test_a_routes_file_says_it_as_the_status_does(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(ROUTES % "new")
    assert read_table(path).services["demo/chat"].shadow == Shadow("new", 25, max_concurrent=3)


def test_a_shadow_that_no_replica_runs_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(ROUTES % "newer")
    with pytest.raises(RoutesFileError, match=r"traffic\.shadow: no replica has the revision newer"):
        read_table(path)
