"""What is kept of comparisons, and for how long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline_shadow_traffic.answers import Answer, Asked, Mode
from paceline_shadow_traffic.both import Both
from paceline_shadow_traffic.compare import compare
from paceline_shadow_traffic.reading import Times
from paceline_shadow_traffic.recorder import records
from paceline_shadow_traffic.recorder.records import Kind, Place, Record, rows_of
from paceline_shadow_traffic.recorder.store import Limits, Store, open_store

PLACE = Place("demo/chat", "old", "new", "default", "ShortInputShortOutput")
ASKED = Asked(Mode.REPLAYED, wants_json=True)


def record(number: int, at: float = 100.0, **fields: Any) -> Record:
    comparison = compare(ASKED, Answer("{}", finish_reason="stop"), Answer("no", finish_reason="length"))
    values: dict[str, Any] = {
        "comparison": comparison,
        "times": Both(Times(0.1, 0.02, 5), None),
        "scores": {"mine": 0.25},
        "hashes": Both("aa", "bb"),
    }
    return Record(f"req-{number}", Kind.PAIR, at, PLACE, **{**values, **fields})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", Limits(raw_age=60.0))
    one = record(1, raw=b'{"a": 1}')
    assert store.add([one], now=100.0) == 1
    assert store.of_request("req-1") == [one]


def test_a_request_is_kept_once_however_often_it_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", Limits())
    assert store.add([record(1)], now=100.0) == 1
    assert store.add([record(1, at=105.0)], now=105.0) == 0
    assert store.add([Record("req-1", Kind.ITSELF, 100.0, PLACE)], now=105.0) == 1


def test_a_stretch_of_time_has_its_beginning_and_not_its_end(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", Limits())
    store.add([record(number, at=float(number)) for number in range(10)], now=10.0)
    found = list(store.between(3.0, 6.0))
    assert {one.place for one in found} == {PLACE}
    assert sorted(one.at for one in found) == [3.0, 4.0, 5.0]
    assert list(store.between(0.0, 10.0, "demo/other")) == []


def test_old_records_go_and_the_process_may_end_in_between(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", Limits(max_age=50.0))
    store.add([record(1, at=100.0), record(2, at=140.0)], now=140.0)
    store.close()
    store = Store(tmp_path / "s", Limits(max_age=50.0))
    store.tidy(now=160.0)
    assert [one.id for one in store.between(0.0, 1000.0)] == ["req-2"]


def test_the_oldest_go_first_when_there_is_no_room(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", Limits(max_bytes=400_000))
    store.add([record(number, at=float(number)) for number in range(3000)], now=3000.0)
    store.tidy(now=3000.0)
    kept, size = store.size()
    assert size <= 400_000
    assert 0 < kept < 3000
    assert min(one.at for one in store.between(0.0, 1e9)) == 3000.0 - kept
    store.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 500_000


def test_texts_are_not_kept_where_nobody_asked_for_them(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", Limits())
    store.add([record(1, raw=b"CANARY")], now=100.0)
    assert store.of_request("req-1")[0].raw is None


def test_texts_that_have_expired_are_in_no_file_any_more(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", Limits(raw_age=60.0))
    store.add([record(1, raw=b"CANARY" * 2000)], now=100.0)
    assert store.of_request("req-1")[0].raw is not None
    store.tidy(now=161.0)
    assert store.of_request("req-1")[0].raw is None
    assert not any(b"CANARY" in path.read_bytes() for path in tmp_path.iterdir())


def test_equal_texts_have_equal_hashes_and_another_store_has_others(tmp_path: Path) -> None:
    one, other = Store(tmp_path / "one", Limits()), Store(tmp_path / "other", Limits())
    assert one.hash("yes") == one.hash("yes") != one.hash("no")
    assert one.hash("yes") != other.hash("yes")


def test_a_file_that_cannot_be_used_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"this is no database" * 100)
    store = open_store(path, Limits())
    assert store.add([record(1)], now=100.0) == 1
    assert (tmp_path / "s.unusable").read_bytes().startswith(b"this is no database")


@pytest.mark.parametrize("kept", [0.0, 60.0])
def test_the_store_says_how_much_it_has(tmp_path: Path, kept: float) -> None:
    store = Store(tmp_path / "s", Limits(raw_age=kept))
    assert store.size()[0] == 0
    store.add([record(1), record(2)], now=1.0)
    count, size = store.size()
    assert count == 2
    assert size > 0


def test_a_reader_of_many_records_stops_no_writer(tmp_path: Path) -> None:
    store = Store(tmp_path / "s", Limits())
    store.add([record(number) for number in range(50)], now=100.0)
    reading = store.between(0.0, 1000.0)
    next(reading)
    assert store.add([record(number) for number in range(50, 60)], now=100.0) == 10
    assert len(list(reading)) == 49


def test_rows_made_of_a_few_records_at_a_time_are_those_of_all_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [Kind.PAIR, Kind.REPLAY, Kind.ITSELF]
    made = [record(number, scores={f"s{number % 2}": 0.5}) for number in range(10)]
    made = [replace(one, kind=kinds[number % 3]) for number, one in enumerate(made)]
    made.append(Record("req-10", Kind.FAILED, 100.0, PLACE, failure="timeout"))
    together = rows_of(made)
    monkeypatch.setattr(records, "AT_ONCE", 3)
    assert rows_of(made) == together
    assert together[PLACE].pairs == 4
    assert together[PLACE].failed == {"timeout": 1}
