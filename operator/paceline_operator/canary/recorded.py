"""The answers that were agreed upon, in the status of the revisions: hashes only, written once for a pool hash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paceline_crds.revision import CanaryAnswer
from paceline_kube import Key, KubeClient
from paceline_operator.measured import record, status_of
from paceline_operator.observed import Observed, Ownership
from paceline_operator.written import Written

from .judge import Answer


def recorded(observed: Observed) -> dict[str, Answer]:
    """By pool hash."""
    return {
        pool_hash: Answer(said.prompt, said.answer, said.text)
        for view in observed.revisions
        if view.owner is Ownership.OURS
        for pool_hash, said in view.canaries.items()
    }


def to_record(observed: Observed, answers: Mapping[str, Answer]) -> dict[str, dict[str, Any]]:
    """The statuses to write, by name of the revision: each one with such a pool that says nothing of it yet."""
    found = {}
    for view in observed.revisions:
        new = {
            pool.hash: CanaryAnswer(prompt=one.prompt, answer=one.tokens, text=one.text)
            for pool in view.pools
            if (one := answers.get(pool.hash)) is not None and pool.hash not in view.canaries
        }
        if view.owner is Ownership.OURS and new:
            found[view.name] = status_of(replace(view, canaries={**view.canaries, **new}))
    return found


class CanaryRecords:
    """Reads and writes them, for `CanaryKeeper`."""

    def __init__(self, client: KubeClient, written: Written, observed: Callable[[Key], Observed | None]) -> None:
        """`observed` gives a service as the caches have it; None where it is gone or going."""
        self._client = client
        self._written = written
        self._observed = observed

    def of(self, key: Key) -> Mapping[str, Answer]:
        """Those of one service, by pool hash."""
        observed = self._observed(key)
        return {} if observed is None else recorded(observed)

    async def keep(self, key: Key, answers: Mapping[str, Answer]) -> None:
        """Write them. What cannot be written is let go: it is agreed upon again."""
        observed = self._observed(key)
        if observed is not None:
            await record(self._client, self._written, key, observed, to_record(observed, answers))
