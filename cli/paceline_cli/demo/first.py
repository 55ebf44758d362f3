"""`paceline demo up|down`: a local Kubernetes, Paceline in it, a model applied, its answer streamed to the terminal."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from paceline_crds.names import FIELD_MANAGER_CLI
from paceline_local import lifecycle, paths
from paceline_local.cluster import Cluster
from paceline_local.commands import bring_up
from paceline_local.errors import LocalError
from paceline_local.progress import Progress, StreamProgress, Waiting, ticks
from paceline_local.state import Shape

READY_TIMEOUT_SECONDS = 300.0
QUESTION = "What is the capital of France, and what is it known for?"


class DemoError(LocalError):
    """The demo did not get to its answer."""


def up(
    question: Annotated[str, typer.Option(help="What to ask the model.")] = QUESTION,
    manifest: Annotated[
        Path | None, typer.Option(help="An InferenceService to apply. [default: examples/smollm2.yaml]")
    ] = None,
    prometheus: Annotated[
        bool,
        typer.Option(
            "--prometheus/--no-prometheus", help="Run Prometheus in the cluster as well (builds it the first time)."
        ),
    ] = False,
) -> None:
    """Bring everything up, apply the example and ask it a question. Safe to run again."""
    progress = StreamProgress()
    try:
        cluster = bring_up(None, lambda shape: shape_of(shape, prometheus), progress)
        service = apply_service(cluster, manifest or paths.checkout_root() / "examples" / "smollm2.yaml", progress)
        wait_until_ready(cluster, service, progress)
        progress(f"asking {service.model!r} through the router at {cluster.router_url}")
        typer.echo(f"\n  you: {question}\n  {service.model}: ", nl=False)
        for piece in ask(f"{cluster.router_url}/v1", service.model, question):
            typer.echo(piece, nl=False)
            sys.stdout.flush()
        typer.echo("\n")
        typer.echo(what_next(cluster, service))
    except (LocalError, TimeoutError) as error:
        typer.echo(f"paceline demo: {error}", err=True)
        raise typer.Exit(getattr(error, "exit_code", 1)) from error


def down() -> None:
    """Stop everything the demo runs and delete its state; what was built stays in the cache."""
    if not lifecycle.down(None, StreamProgress()):
        typer.echo("nothing to stop: no demo is up")


def shape_of(shape: Shape, prometheus: bool) -> Shape:
    """What the demo's instance consists of."""
    return replace(shape, nodes=max(1, shape.nodes), bare=False, prometheus=prometheus)


class Service:
    """What the demo needs of the manifest that it applies."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.namespace: str = manifest["metadata"].get("namespace", "default")
        self.name: str = manifest["metadata"]["name"]
        self.model: str = manifest["spec"]["model"].get("servedName", self.name)


def service_in(path: Path) -> Service:
    """The InferenceService of a manifest, which may have other objects beside it.

    Raises:
        DemoError: there is none, or more than one, or the file cannot be read.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DemoError(f"{path} cannot be read as YAML: {error}") from error
    found = [d for d in documents if isinstance(d, dict) and d.get("kind") == "InferenceService"]
    if len(found) != 1:
        raise DemoError(f"{path} has {len(found)} InferenceServices: name a manifest that has one")
    return Service(found[0])


def apply_service(cluster: Cluster, path: Path, progress: Progress) -> Service:
    """Make the namespace and apply the manifest, as a user would.

    Raises:
        LocalError: the API server refuses it; the message has its words.
    """
    service = service_in(path)
    progress(f"kubectl apply -f {path}")
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": service.namespace}}))
    # By force: the fields that the manifest names are the demo's again, whatever was tried by hand in between.
    cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER_CLI}", "-f", str(path)
    )
    return service


def wait_until_ready(cluster: Cluster, service: Service, progress: Progress) -> None:
    """Wait for Ready of the generation just applied, saying what the status says.

    Raises:
        DemoError: it is not ready in time; the message has the condition's own words.
    """
    say = Waiting(progress)
    words = "nothing yet"
    for waited in ticks(READY_TIMEOUT_SECONDS, 0.25):
        found = cluster.get("psvc", service.name, "-n", service.namespace)
        status = found.get("status", {})
        ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), None)
        if ready is not None and ready.get("observedGeneration") == found["metadata"]["generation"]:
            if ready["status"] == "True":
                return
            words = f"{ready['reason']}: {ready['message']}"
        say(waited, f"waiting for {service.namespace}/{service.name}: {words}")
    raise DemoError(f"{service.namespace}/{service.name} is not ready after {READY_TIMEOUT_SECONDS:.0f} s: {words}")


def ask(base_url: str, model: str, question: str, max_tokens: int = 120) -> Iterator[str]:
    """Stream a chat answer piece by piece, as it is made.

    Raises:
        DemoError: the router or the replica answers with an error, in the stream too.
    """
    messages = [{"role": "user", "content": question}]
    # Greedy: so small a model wanders off when its words are drawn by lot.
    body = {"model": model, "messages": messages, "stream": True, "max_tokens": max_tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            for line in answer:
                if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                    continue
                event = json.loads(line[len(b"data: ") :])
                if "error" in event:
                    raise DemoError(f"the answer broke off: {event['error']['message']}")
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        raise DemoError(f"the router answers {error.code} after {time.monotonic() - began:.1f} s: {said}") from error
    except OSError as error:
        raise DemoError(f"the router at {base_url} cannot be reached: {error}") from error


def what_next(cluster: Cluster, service: Service) -> str:
    """What a newcomer can type now."""
    return f"""What to try next (the model is tiny, so expect fluent nonsense now and then):

  export KUBECONFIG={cluster.kubeconfig}
  export PATH={cluster.tools}:{Path(sys.executable).parent}:$PATH

  kubectl get psvc -A                      # the service, and whether it is Ready
  kubectl explain psvc.spec.runtime        # what can be set
  kubectl paceline status {service.name} -n {service.namespace}       # what serves, and why not
  kubectl paceline drift -n {service.namespace}             # every replica asked what it runs with
  kubectl -n {service.namespace} logs -l paceline.io/service={service.name} --tail=5
  kubectl -n {service.namespace} patch psvc {service.name} --type merge -p '{{"spec":{{"replicas":2}}}}'
                                           # not Ready (Starting) until the second is warm; TrafficReady all the while
  curl -N {cluster.router_url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{service.model}", "stream": true, "messages": [{{"role": "user", "content": "Hello"}}]}}'

With any OpenAI client, for example in `python`:

  from openai import OpenAI
  client = OpenAI(base_url="{cluster.router_url}/v1", api_key="-")
  answer = client.chat.completions.create(model="{service.model}", messages=[{{"role": "user", "content": "Hello"}}])
  print(answer.choices[0].message.content)

`make demo-down` stops everything.
"""
