"""Taking the actions of a plan, and what comes of an API server that does not accept one."""

from __future__ import annotations

import logging
import time

from paceline_crds.conditions import Reason
from paceline_crds.revision import RevisionRollout
from paceline_kube import ApiError, Conflict, JsonObject, Key, KubeClient, TooManyRequests

from .actions import Plan, tidies
from .apply import Applier, NameTaken
from .failures import Problem, is_refusal, refusal
from .measured import record
from .observed import Observed
from .recorder import Recorder
from .render import Desired
from .rollout.state import State
from .rollout.told import untold, with_event, with_verdict
from .startups import StartUps, recorded
from .written import Written

log = logging.getLogger(__name__)

LASTING_SECONDS = 30.0
"""For which a write may fail for a reason that mostly passes (a 500, a kind that is not served) before it is told."""


class Actor:
    """Writes the children of services. One instance for the operator's life."""

    def __init__(self, client: KubeClient, recorder: Recorder, written: Written) -> None:
        self._client = client
        self._recorder = recorder
        self._written = written
        self._failing: dict[Key, float] = {}
        self._start_ups = StartUps()

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._failing.pop(key, None)
        self._start_ups.forget(key)

    async def take(self, steps: Plan, service: JsonObject, observed: Observed, desired: Desired) -> Problem | None:
        """Take the actions in order; what the API server does not accept ends the pass, and is told in the status.

        Raises:
            ServiceGone: the service was deleted meanwhile.
            KubeError: a write failed for a reason that mostly passes.
        """
        applier = Applier(self._client, self._recorder, self._written, service, observed, desired)
        for action in steps.actions:
            try:
                await applier.take(action)
            except NameTaken as exc:
                log.warning("%s/%s: %s", observed.namespace, observed.name, exc)
                return Problem(Reason.RESOURCE_CONFLICT, str(exc))
            except ApiError as exc:
                if not is_refusal(exc) and not self._lasts(exc, (observed.namespace, observed.name)):
                    raise
                log.warning("%s/%s: cannot %s: %s", observed.namespace, observed.name, action.sentence, exc)
                problem = refusal(action.sentence, exc.message)
                if not tidies(action):
                    return problem
                # Nothing that was asked for waits for it; it is tried again when the service is looked at next.
                self._recorder.event(service, type="Warning", reason="TidyingRefused", message=problem.sentence)
        if not steps.conflict:
            self._failing.pop((observed.namespace, observed.name), None)
        elif self._has_lasted((observed.namespace, observed.name)):
            # Children of a former service of the name go by themselves; what stays is for somebody to take away.
            return Problem(Reason.RESOURCE_CONFLICT, f"{steps.waiting}; it is not touched")
        return None

    async def put_back(self, lost: JsonObject, service: JsonObject, observed: Observed) -> None:
        """Put the record of the traffic back where somebody took it away; suspended or not, since it says what is.

        Raises:
            ServiceGone: the service was deleted meanwhile.
            KubeError: the write failed for a reason that mostly passes.
        """
        try:
            await Applier(self._client, self._recorder, self._written, service, observed).put_back(lost)
        except (NameTaken, ApiError) as exc:
            if isinstance(exc, ApiError) and not is_refusal(exc):
                raise
            where = (observed.namespace, observed.name)
            log.warning("%s/%s: the record of the traffic cannot be put back: %s", *where, exc)

    async def measure(self, key: Key, observed: Observed) -> None:
        """Write down how long replicas took to start."""
        samples = self._start_ups.see(key, observed.pods)
        if samples:
            await record(self._client, self._written, key, observed, recorded(observed, samples))

    async def catch_up(self, key: Key, observed: Observed, desired: Desired) -> bool:
        """Keep the decision that a process took and did not live to keep; whether there was one."""
        missing = untold(observed, desired.revision, staged=desired.rules is not None and not desired.pinned)
        statuses = {name: {"rollout": _dumped(kept)} for name, kept in missing.items()}
        await record(self._client, self._written, key, observed, statuses)
        return bool(missing)

    async def chronicle(self, key: Key, observed: Observed, steps: Plan, stood: State) -> None:
        """Keep the decisions of a rollout, and its newest verdict, with the revision that they are about.

        Args:
            observed: after the steps.
            stood: where the rollout stood before them, which the verdict is about.
        """
        said = next(iter(steps.records), None)
        view = observed.revision(said.revision if said is not None else stood.candidate)
        if view is None:
            return
        kept = None
        if observed.judgement is not None and observed.judgement.revision == view.name:
            kept = with_verdict(view.rollout, observed.judgement, stood)
        if said is not None:
            kept = with_event(kept or view.rollout, said)
        if kept is not None:
            await record(self._client, self._written, key, observed, {view.name: {"rollout": _dumped(kept)}})

    def _lasts(self, error: ApiError, key: Key) -> bool:
        """Whether an error that mostly passes has kept a service up for so long that people have to know."""
        if isinstance(error, Conflict | TooManyRequests):
            return False
        return self._has_lasted(key)

    def _has_lasted(self, key: Key) -> bool:
        now = time.monotonic()
        return now - self._failing.setdefault(key, now) > LASTING_SECONDS


def _dumped(kept: RevisionRollout) -> JsonObject:
    return kept.model_dump(mode="json", exclude_none=True)
