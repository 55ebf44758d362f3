"""The health rule for Argo CD, run by a Lua interpreter where this machine has one."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RULE = Path(__file__).parents[2] / "charts" / "paceline" / "files" / "argocd" / "inferenceservice-health.lua"
INTERPRETERS = ("lua", "lua5.4", "lua5.3", "lua5.1", "luajit", "glua")

Health = Callable[[dict[str, Any]], tuple[str, str]]


def literal(value: Any) -> str:
    """A JSON value as a Lua expression."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{literal(k)}] = {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(literal(item) for item in value) + "}"
    return str(value) if isinstance(value, int | float) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@pytest.fixture(scope="session")
def health(tmp_path_factory: pytest.TempPathFactory) -> Health:
    """What the rule says of an object: status and message."""
    program = next((path for name in INTERPRETERS if (path := shutil.which(name))), None)
    if program is None and importlib.util.find_spec("lupa") is None:
        pytest.skip(f"no Lua interpreter here ({', '.join(INTERPRETERS)}, or the Python package lupa)")
    rule = RULE.read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("lua")

    def run(obj: dict[str, Any]) -> tuple[str, str]:
        script = f"obj = {literal(obj)}\nlocal function rule()\n{rule}\nend\nlocal said = rule()\n"
        if program is None:
            lua = importlib.import_module("lupa").LuaRuntime()
            text = str(lua.execute(script + 'return said.status .. "\\n" .. said.message'))
        else:
            file = folder / "rule.lua"
            file.write_text(script + 'print(said.status .. "\\n" .. said.message)\n', encoding="utf-8")
            text = subprocess.run([program, str(file)], capture_output=True, text=True, check=True).stdout
        status, _, message = text.partition("\n")
        return status, message.strip()

    return run


def service(*conditions: tuple[str, str, str], observed: int = 2) -> dict[str, Any]:
    return {
        "metadata": {"name": "chat", "generation": 2},
        "spec": {},
        "status": {
            "observedGeneration": observed,
            "conditions": [{"type": t, "status": s, "reason": r, "message": f'"{r}"\\'} for t, s, r in conditions],
        },
    }


def now(ready: str, reason: str, traffic: str = "True", progressing: str = "False") -> dict[str, Any]:
    return service(
        ("Ready", ready, reason), ("TrafficReady", traffic, "Serving"), ("Progressing", progressing, "RollingOut")
    )


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ({"metadata": {"generation": 1}}, "Progressing"),
        ({"metadata": {"generation": 1}, "status": {}}, "Progressing"),
        (service(("Ready", "True", "AsAsked"), observed=1), "Progressing"),
        (now("True", "AsAsked"), "Healthy"),
        (now("True", "Pinned"), "Healthy"),
        (now("True", "ScaledToZero"), "Healthy"),
        (now("True", "Suspended"), "Suspended"),
        (now("False", "Suspended"), "Suspended"),
        (now("False", "Suspended", traffic="False"), "Degraded"),
        (now("False", "Starting", traffic="False", progressing="True"), "Progressing"),
        (now("False", "RollingOut", progressing="True"), "Progressing"),
        # A count that was raised: the new replicas are loading.
        (now("False", "Degraded", progressing="True"), "Progressing"),
        (now("False", "Degraded"), "Degraded"),
        (now("False", "Unschedulable", traffic="False"), "Progressing"),
        *((now("False", reason), "Degraded") for reason in ("InvalidSpec", "ModelNotFound", "ImagePull")),
        (now("False", "ResourceConflict", traffic="False"), "Degraded"),
    ],
)
def test_the_rule_says_what_argo_cd_should_do(health: Health, obj: dict[str, Any], expected: str) -> None:
    status, message = health(obj)
    assert status == expected
    conditions = (obj.get("status") or {}).get("conditions")
    if conditions and obj["status"]["observedGeneration"] == 2:
        reason = conditions[0]["reason"]
        assert message == f'{reason}: "{reason}"\\'
