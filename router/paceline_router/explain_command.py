"""`paceline route explain`: what the router would make of a request, without sending it."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

EXIT_NO = 1
EXIT_WRONG_USE = 2


class Output(enum.StrEnum):
    """For whom."""

    TEXT = "text"
    JSON = "json"


def explain(
    file: Annotated[
        Path,
        typer.Argument(help="Request: a JSON body, or header lines, an empty line and the body. - reads from stdin."),
    ],
    config: Annotated[Path | None, typer.Option(help="Routes file of the router (YAML or JSON).")] = None,
    spec: Annotated[Path | None, typer.Option(help="Manifest of the InferenceService.")] = None,
    service: Annotated[
        str | None, typer.Option(help="namespace/name in the routes file. Default: the one with the body's model.")
    ] = None,
    path: Annotated[
        str | None, typer.Option(help="Endpoint. Default: of the request line, else /v1/chat/completions.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose request it is. Default: by its headers.")] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="text, or json for programs.")] = Output.TEXT,
) -> None:
    """Say what the router would make of a request: shape, estimates and what they stand on, pool, cost for its tenant.

    Nothing is sent. The answer is that of a router that has just started: a running one has learned from the answers
    before, and says so for each request that has the header x-paceline-explain: 1.

    Exit codes: 0 the request would be taken; 1 it would be refused; 2 wrong use.

    Examples:

      paceline route explain request.json

      paceline route explain request.json --config routes.yaml

      paceline route explain request.http --spec inferenceservice.yaml -o json
    """
    # Here, so that --help does not wait for them.
    from paceline_router.shape.explanation import Rules, WrongUse, read_request, rules_from_routes, rules_from_spec
    from paceline_router.shape.explanation import explain as explained
    from paceline_router.wire.answers import Refusal
    from paceline_router.wire.requests import parse_body

    if config is not None and spec is not None:
        raise typer.BadParameter("name a routes file or a manifest, not both", param_hint="--config, --spec")
    try:
        asked = read_request(sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes())
        body = parse_body(asked.body)
        if config is not None:
            rules = rules_from_routes(config, service, body.model)
        elif spec is not None:
            rules = rules_from_spec(spec)
        else:
            rules = Rules("none given: defaults")
    except (WrongUse, OSError) as exc:
        words = f"cannot read {exc.filename}: {exc.strerror}" if isinstance(exc, OSError) else str(exc)
        typer.echo(f"error: {words}", err=True)
        raise typer.Exit(EXIT_WRONG_USE) from None
    except Refusal as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(EXIT_WRONG_USE) from None
    found = explained(asked, body, rules, path.encode() if path else None, tenant)
    if output is Output.JSON:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        turns = "" if found.turns is None else f", {found.turns} messages"
        allowed = "" if found.max_tokens is None else f", max_tokens {found.max_tokens}"
        lines = {
            "service": f"{found.service or 'not known'} (rules: {found.rules})",
            "shape": found.shape,
            "because": found.reason,
            "prompt": f"about {found.prompt_tokens} tokens, {found.prompt_tokens_low} to {found.prompt_tokens_high}"
            f"{turns}; {found.prompt_origin}",
            "output": f"about {found.output_tokens} tokens, P90 {found.output_tokens_high}{allowed}; "
            f"{found.output_origin}",
            "over-long": f"{found.over_long}: {found.over_long_words}",
            "pool": found.pool if found.taken else "none: it is refused",
            "tenant": f"{found.tenant or 'not known'}: {found.tenant_words}",
        }
        for name, value in lines.items():
            typer.echo(f"{name + ':':<11}{value}")
    raise typer.Exit(0 if found.taken else EXIT_NO)
