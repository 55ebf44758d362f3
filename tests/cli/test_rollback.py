"""`paceline rollback` where it is not carried out, and what it never does."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline_crds.service import InferenceService
from paceline_kube.testing import FakeApiServer, Refusal
from paceline_operator import children
from paceline_operator.observed import Observed
from paceline_operator.render import Carried, render

REVISIONS = "/apis/paceline.io/v1alpha1/inferencerevisions"
SERVICES = "/apis/paceline.io/v1alpha1/inferenceservices"


@pytest.fixture
async def names(server: FakeApiServer, stored: Any) -> list[str]:
    """A service with two revisions, the second of which serves; nobody carries orders out."""
    service = await server.put(SERVICES, stored())
    observed, found = Observed("demo", "chat", service["metadata"]["uid"], 1), []
    for number, image in enumerate(("paceline.io/runtime:1", "paceline.io/runtime:2")):
        desired = render(InferenceService.from_object(service), Carried(), image)
        revision = children.revision(observed, desired)
        weights = [{"pool": "default", "revision": desired.revision, "weight": 100}]
        record = {"generation": number + 1, "movedAt": 1000.0 + number, "weights": weights}
        revision["metadata"] |= {
            "annotations": {"paceline.io/rollout": json.dumps(record)},
            "creationTimestamp": f"2026-01-01T00:00:0{number}Z",
        }
        await server.put(REVISIONS, revision)
        found.append(desired.revision)
    service["status"] |= {"currentRevision": found[1], "updatedRevision": found[1]}
    await server.put(SERVICES, service)
    return found


def writes(server: FakeApiServer) -> list[str]:
    return [request for request in server.requests if not request.startswith("GET")]


async def test_one_apply_under_the_commands_own_name_is_all_that_is_written(
    server: FakeApiServer, paceline: Any, names: list[str]
) -> None:
    done = await paceline("rollback", "chat", "--no-wait", "--reason", "too slow")
    assert done.exit_code == 0, done.output
    assert f"{names[0]} is ordered" in done.stdout
    [write] = writes(server)
    assert write.startswith("PATCH /apis/paceline.io/v1alpha1/namespaces/demo/inferenceservices/chat?")
    assert "fieldManager=paceline-cli" in write
    assert "force=false" in write
    [service] = [obj for key, obj in server.objects.items() if key[0] == SERVICES]
    assert service["spec"]["rollout"] == {"order": {"revision": names[0], "action": "Pin"}}
    assert service["metadata"]["annotations"] == {"kubernetes.io/change-cause": "too slow"}


@pytest.mark.parametrize("arguments", [["--to", "x"], ["--reason", "x"]])
async def test_undo_goes_alone(paceline: Any, names: list[str], arguments: list[str]) -> None:
    done = await paceline("rollback", "chat", "--undo", *arguments)
    assert done.exit_code == 2
    assert "without --to and --reason" in done.stderr


async def test_a_service_that_was_deleted_meanwhile_is_not_made_anew(
    server: FakeApiServer, paceline: Any, names: list[str]
) -> None:
    server.refuse(Refusal(409, "Conflict", "the UID in the precondition does not match"), method="PATCH")
    done = await paceline("rollback", "chat")
    assert done.exit_code == 1
    assert "was changed or deleted meanwhile" in done.stderr


async def test_who_may_not_write_learns_what_the_server_said(
    server: FakeApiServer, paceline: Any, names: list[str]
) -> None:
    server.refuse(Refusal(403, "Forbidden", 'User "me" cannot patch inferenceservices'), method="PATCH")
    done = await paceline("rollback", "chat")
    assert done.exit_code == 1
    assert done.stderr == 'error: User "me" cannot patch inferenceservices\n'


async def test_an_api_server_that_goes_away_while_waiting_is_waited_for(
    server: FakeApiServer, paceline: Any, names: list[str]
) -> None:
    waiting = asyncio.create_task(paceline("rollback", "chat", "--timeout", "30"))
    while not writes(server):
        await asyncio.sleep(0.02)
    server.refuse(Refusal(503, "ServiceUnavailable", "starting", times=2), method="GET")
    await asyncio.sleep(1)
    [service] = [obj for key, obj in server.objects.items() if key[0] == SERVICES]
    service["status"] |= {"currentRevision": names[0], "updatedRevision": names[0], "observedGeneration": 2}
    await server.put(SERVICES, service)
    done = await waiting
    assert done.exit_code == 0, done.output
    assert f"{names[0]} serves again" in done.stdout


async def test_who_stops_waiting_is_told_that_the_order_stands(
    server: FakeApiServer, kubeconfig: Path, names: list[str]
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "paceline_cli", "rollback", "chat", "--kubeconfig", str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Who runs these tests in the background may have them ignore interrupts, and what they start with them.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    while not writes(server):
        await asyncio.sleep(0.02)
    polls = len(server.requests)
    while len(server.requests) < polls + 2:
        await asyncio.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = await asyncio.wait_for(process.communicate(), 30)
    assert "the order stands" in stderr.decode()
    assert process.returncode == 130
    assert "Traceback" not in stderr.decode()
