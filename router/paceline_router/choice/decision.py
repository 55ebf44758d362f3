"""Why a replica was chosen: a code and numbers while requests run, words when somebody asks."""

from __future__ import annotations

from typing import Final, TypeAlias

from .load import ReplicaLoad

LEAST, ONLY, PREFIX, SESSION, HOME, SPREAD, BOUND, LAST_RESORT, NONE, POLICY = range(10)
CODES: Final = ("least", "only", "prefix", "session", "home", "spread", "bound", "last-resort", "none", "policy")
"""For metrics: a closed set of label values."""

Decision: TypeAlias = tuple[int, int, int, float, float]
"""Code; replicas there were to choose from; prompt tokens that lie there already; its work before this request; the
least work that was seen. Tokens, see `load.py`."""

UNDECIDED: Final[Decision] = (NONE, 0, 0, 0.0, 0.0)

_SENTENCES: Final = {
    LEAST: "least work of {count} replicas",
    ONLY: "the only replica that could take it",
    PREFIX: "has {saved} of the prompt's tokens already",
    SESSION: "the session's last replica, which has about {saved} of the prompt's tokens",
    HOME: "where this conversation belongs among {count} replicas",
    SPREAD: "least work of {count} replicas: so many requests share this beginning that one more replica is to hold it",
    BOUND: "least work of {count} replicas: those that hold the prompt's beginning have too much to do",
    LAST_RESORT: "none of {count} replicas is free, heard of lately and in order; this one is the best of them",
    NONE: "none of {count} replicas could take it",
    POLICY: "by policy, of {count} replicas",
}


def words(decision: Decision) -> str:
    """The decision as a sentence."""
    code, count, saved, work, least = decision
    sentence = _SENTENCES[code].format(count=count, saved=saved)
    if code in (ONLY, LAST_RESORT, NONE, POLICY):
        return sentence
    return f"{sentence}; work ahead there {work:.0f} tokens, least seen {least:.0f}"


def fields(decision: Decision, load: ReplicaLoad) -> dict[str, object]:
    """The decision for a log."""
    code, count, saved, work, least = decision
    return {
        "code": CODES[code],
        "candidates": count,
        "cached_tokens": saved,
        "work_tokens": round(work),
        "least_work_tokens": round(least),
        "kv_percent": load.kv_percent,
    }
