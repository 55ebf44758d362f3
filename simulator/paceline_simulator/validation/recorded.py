"""Real runs of vLLM that others recorded: `requests.jsonl` in LLMServingSim's bench folders."""

from __future__ import annotations

import json
from pathlib import Path

from paceline_simulator.engine import Request
from paceline_simulator.trace import TraceError


def read_run(path: Path) -> list[Request]:
    """The requests with the times at which the engine queued them and gave their first and last token.

    Raises:
        TraceError: it cannot be read or has another form.
    """
    made: list[Request] = []
    number = 0
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        start = min(float(entry["queued_ts"]) for entry in entries)
        for number, entry in enumerate(entries):
            queued, first, last = (
                float(entry[name]) - start for name in ("queued_ts", "first_token_ts", "last_token_ts")
            )
            tokens = int(entry["input_toks"]), int(entry["output_toks"])
            made.append(Request(number, queued, *tokens, (), bytes, first_token=first, done=last))
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}, request {number + 1}: not a run in LLMServingSim's form: {error}") from error
    return sorted(made, key=lambda one: one.arrival)
