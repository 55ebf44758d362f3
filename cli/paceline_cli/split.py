"""`paceline plan split`: whether a request shape should have a pool of its own, as the routers judge."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline_crds.names import ROUTER_ADMIN_PORT
from paceline_kube import PODS, SECRETS, AioKubeClient, Forbidden, JsonObject, NotFound
from paceline_kube.pods import is_ready
from paceline_operator.routers import ADMIN_SECRET, ADMIN_SECRET_KEY, ROUTER_SELECTOR

from .asking import on_this_machine
from .connection import (
    GOOD,
    NO,
    NOT_KNOWN,
    UNREACHABLE,
    WRONG_USE,
    ContextOption,
    KubeconfigOption,
    Output,
    OutputOption,
    Stop,
    Where,
    run,
)
from .tables import indented

SYSTEM_NAMESPACE = "paceline-system"
SPLIT_PATH = "/v1/paceline/split"
TOKEN_VARIABLE = "PACELINE_ADMIN_TOKEN"
ASK_TIMEOUT = 10.0

Services = dict[str, dict[str, Any]]
"""Advice by pool, by `namespace/name`."""


def split(
    service: Annotated[
        str | None, typer.Argument(help="namespace/name. Left out: every service of the routers.")
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            help="A router's admin port, for example where `kubectl port-forward` puts it. Left out: the router pods "
            "are found by the kubeconfig."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File with the admin token. Default: ${TOKEN_VARIABLE}, else what the Secret {ADMIN_SECRET} has."
        ),
    ] = None,
    system_namespace: Annotated[
        str, typer.Option(help="Namespace of the routers and of their Secret.")
    ] = SYSTEM_NAMESPACE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Whether a request shape should have a pool of its own, judged by the routers' live figures.

    Only where a shape is more than 30 % of the traffic and demonstrably slows the others down. Exit code 0: a pool is
    advised; 1: none is; 3: too little traffic to know; 4: no router can be reached.

    In a local cluster the routers are asked directly; elsewhere forward a port of one, as below. Their token is in the
    Secret paceline-router-admin of their namespace and is read from there, if you may.

    Examples:

      paceline plan split demo/chat

      kubectl -n paceline-system port-forward deploy/paceline-router 8081 &
      paceline plan split --admin http://127.0.0.1:8081
    """
    token = _token_at_hand(token_file)
    if admin is not None and token:
        try:
            code = _tell(ask(admin, token), service, output)
        except Stop as stop:
            typer.echo(f"error: {stop}", err=True)
            code = stop.code
        if code != GOOD:
            raise typer.Exit(code)
        return

    async def work(client: AioKubeClient, _: str) -> int:
        known = token or await _token_of(client, system_namespace)
        urls = [admin] if admin is not None else await _routers(client, system_namespace)
        answers = await asyncio.gather(*(asyncio.to_thread(ask, url, known) for url in urls), return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failed) == len(answers):
            raise failed[0]
        for failure in failed:
            typer.echo(f"note: {failure}", err=True)
        return _tell(merged(a for a in answers if not isinstance(a, BaseException)), service, output)

    run(work, Where(None, kubeconfig, context))


def merged(answers: Iterable[Services]) -> Services:
    """One advice for each pool: that of the router which saw most requests, since each judges by its own."""
    found: Services = {}
    for answer in answers:
        for service, pools in answer.items():
            kept = found.setdefault(service, {})
            for pool, advice in pools.items():
                if pool not in kept or advice["requests"] > kept[pool]["requests"]:
                    kept[pool] = advice
    return found


def ask(admin: str, token: str) -> Services:
    """What one router advises.

    Raises:
        Stop: it cannot be asked, or answers something else.
    """
    url = f"{admin.rstrip('/')}{SPLIT_PATH}"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=ASK_TIMEOUT) as response:
            services: Services = json.load(response)["services"]
            return services
    except urllib.error.HTTPError as exc:
        words = (
            f"the token is wrong; the Secret {ADMIN_SECRET} has it" if exc.code == 401 else f"it answered {exc.code}"
        )
        raise Stop(f"{admin}: {words}", UNREACHABLE) from None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise Stop(f"{admin} cannot be asked: {exc}; see --admin", UNREACHABLE) from None


def _token_at_hand(token_file: Path | None) -> str:
    if token_file is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        return token_file.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise typer.BadParameter(f"cannot read {token_file}: {exc.strerror}", param_hint="--token-file") from None


async def _token_of(client: AioKubeClient, namespace: str) -> str:
    who = f"the Secret {namespace}/{ADMIN_SECRET}"
    try:
        secret = await client.get(SECRETS, ADMIN_SECRET, namespace)
    except NotFound:
        raise Stop(
            f"there is no {who.removeprefix('the ')}: the operator makes it beside the routers; name their namespace "
            "with --system-namespace",
            NOT_KNOWN,
        ) from None
    except Forbidden:
        raise Stop(f"you may not read {who}, which has the admin token: give it with --token-file", NO) from None
    return base64.b64decode((secret.get("data") or {}).get(ADMIN_SECRET_KEY, "")).decode()


async def _routers(client: AioKubeClient, namespace: str) -> list[str]:
    """Admin ports of the ready routers. The token goes to addresses of this machine only: elsewhere a pod's address
    may be anybody's, and the API server's proxy takes the header with the token away.
    """
    pods = [pod for pod in (await client.list(PODS, namespace, label_selector=ROUTER_SELECTOR)).items if is_ready(pod)]
    if not pods:
        raise Stop(f"no router is ready in namespace {namespace}; name another with --system-namespace", UNREACHABLE)
    near = [pod for pod in pods if on_this_machine(client.server, pod["status"].get("podIP"))]
    if not near:
        raise Stop(
            f"the routers' addresses are the cluster's own; forward a port of one:\n"
            f"  kubectl -n {namespace} port-forward pod/{pods[0]['metadata']['name']} {_port(pods[0])} &\n"
            f"  paceline plan split --admin http://127.0.0.1:{_port(pods[0])}",
            UNREACHABLE,
        )
    return [f"http://{pod['status']['podIP']}:{_port(pod)}" for pod in near]


def _port(pod: JsonObject) -> int:
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or ())
    return next((int(port["containerPort"]) for port in ports if port.get("name") == "metrics"), ROUTER_ADMIN_PORT)


def _tell(services: Services, service: str | None, output: Output) -> int:
    if service is not None:
        if service not in services:
            names = ", ".join(sorted(services)) or "none"
            raise Stop(f"the router knows no service {service} (it knows: {names})", WRONG_USE)
        services = {service: services[service]}
    if output is Output.JSON:
        typer.echo(json.dumps(services, indent=2))
    else:
        if not services:
            typer.echo("the routers know no service yet")
        for key, pools in services.items():
            _print(key, pools)
    answers = {f["answer"] for pools in services.values() for advice in pools.values() for f in advice["shapes"]}
    if "yes" in answers:
        return GOOD
    return NO if answers and "not known" not in answers else NOT_KNOWN


def _print(service: str, pools: Mapping[str, Any]) -> None:
    if not pools:
        typer.echo(f"{service}: no request yet")
    for pool, advice in pools.items():
        typer.echo(f"{service}, pool {pool}: {advice['requests']} requests in {advice['seconds'] / 60:.0f} minutes")
        rows = [["SHAPE", "SPLIT", "REQUESTS", "TOKENS", "WHY"]]
        for finding in advice["shapes"]:
            shares = (f"{100 * finding[share]:.0f} %" for share in ("requestsShare", "tokensShare"))
            rows.append([finding["shape"], finding["answer"], *shares, finding["words"]])
        typer.echo(indented(rows))
