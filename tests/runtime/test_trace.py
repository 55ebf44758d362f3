"""The trace of steps is what Chrome reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline_runtime.config import resolve
from paceline_runtime.engine.llm import LLMEngine
from paceline_runtime.engine.trace import StepTrace
from paceline_runtime.messages import SamplingParams


def events_of(path: Path) -> list[dict[str, Any]]:
    """As the viewers do: the array may lack its end."""
    text = path.read_text().rstrip().rstrip(",")
    return json.loads(text + "]")  # type: ignore[no-any-return]


def test_a_trace_shows_what_each_step_was_made_of(tmp_path: Path, tiny_model_source: str, run_engine: Any) -> None:
    path = tmp_path / "trace.json"
    engine = LLMEngine(
        resolve(
            source=tiny_model_source,
            flags={"max_model_len": 64, "prefill_chunk_tokens": 16, "kv_cache_memory": "4Mi"},
            environ={},
        ),
        trace=(trace := StepTrace(path)),
    )
    greedy = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    run_engine(engine, {"long": (list(range(1, 41)), greedy), "short": ([1, 2, 3], greedy)})
    events = events_of(path)
    trace.close()
    assert json.loads(path.read_text())[:-1] == events
    steps = [event for event in events if event["ph"] == "X" and event["tid"] == 1]
    assert steps
    assert sum(step["args"]["tokens"] for step in steps) == (40 + 3) + (3 + 3)
    first = steps[0]["args"]["batch"]
    assert {entry["id"] for entry in first} <= {"long", "short"}
    decode = steps[-1]["args"]
    assert decode["decodes"] == decode["sequences"]
    phases = [event for event in events if event["ph"] == "X" and event["tid"] == 2]
    assert {"prepare", "forward", "sample", "update"} <= {event["name"] for event in phases}
    # The phases of a step lie within it, one after the other.
    for step in steps:
        inside = [p for p in phases if step["ts"] <= p["ts"] < step["ts"] + max(step["dur"], 1)]
        assert inside
        assert all(p["ts"] + p["dur"] <= step["ts"] + step["dur"] + 5 for p in inside)


def test_a_trace_that_has_its_largest_size_stops_and_the_engine_does_not(tmp_path: Path) -> None:
    trace = StepTrace(tmp_path / "trace.json", max_bytes=200)
    for _ in range(50):
        trace._event({"ph": "C", "name": "n", "args": {"x": 1}})
    assert (tmp_path / "trace.json").stat().st_size < 400
