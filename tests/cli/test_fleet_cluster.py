"""The commands on a real API server, with the operator at work."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from paceline_kube import CONFIGMAPS, DEPLOYMENTS, INFERENCEREVISIONS, INFERENCESERVICES, PODS, JsonObject

pytestmark = pytest.mark.cluster


async def as_json(real: Any, *arguments: str, code: int = 0) -> Any:
    done = await real(*arguments, "-o", "json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


async def two_revisions(world: Any, make_service: Any) -> tuple[str, str]:
    """A service whose second revision serves, and whose first one has no Deployment any more."""
    await world.apply(make_service())
    first = (await world.until_ready())["status"]["currentRevision"]
    # Revisions are ordered by whole seconds.
    await asyncio.sleep(1.1)
    await world.apply(make_service(runtime={"maxNumSeqs": 8}))
    second = (await world.until_ready())["status"]["currentRevision"]

    async def alone() -> bool:
        return len(await world.all(DEPLOYMENTS)) == len(await world.all(CONFIGMAPS)) == 1

    await world.until(alone, "the first revision's Deployment and ConfigMap are gone")
    return first, second


def managers(obj: JsonObject) -> set[str]:
    return {entry["manager"] for entry in obj["metadata"]["managedFields"]}


async def test_a_rollback_and_its_undo_leave_the_spec_as_it_was(world, make_service, real) -> None:
    async with world.operator() as operator, world.kubelet():
        first, second = await two_revisions(world, make_service)
        before = await world.get(INFERENCESERVICES, "chat")
        done = await real("rollback", "chat", "--reason", "too slow")
        assert done.exit_code == 0, done.output
        assert f"{first} serves again, instead of {second}" in done.stdout
        pinned = await world.get(INFERENCESERVICES, "chat")
        assert pinned["spec"]["rollout"]["order"] == {"revision": first, "action": "Pin"}
        assert pinned["metadata"]["annotations"] == {"kubernetes.io/change-cause": "too slow"}
        assert pinned["status"]["currentRevision"] == first
        history = {row["revision"]: row for row in await as_json(real, "history", "chat")}
        assert history[first]["state"] == ["serving", "pinned"]
        assert history[first]["generation"] == 3
        assert history[second]["changes"] == [{"pool": "default", "field": "maxNumSeqs", "before": "32", "after": "8"}]
        table = (await real("history", "chat")).stdout
        assert "maxNumSeqs 32 → 8" in table
        assert f"pins {first} (by paceline-cli, because: too slow)" in table

        again = await real("rollback", "chat")
        assert again.exit_code == 1
        assert f"pinned to {first} already" in again.stderr
        # Whatever the user applies in between is not lost.
        await world.apply(make_service(replicas=2, runtime={"maxNumSeqs": 8}))
        undone = await real("rollback", "chat", "--undo")
        assert undone.exit_code == 0, undone.output
        after = await world.get(INFERENCESERVICES, "chat")
        assert after["status"]["currentRevision"] == second
        assert after["spec"] == {**before["spec"], "replicas": 2}
        assert "annotations" not in after["metadata"]
        assert "paceline-cli" not in managers(after)
        assert (await real("rollback", "chat", "--undo")).exit_code == 0
        assert operator.errors == []


async def test_no_wait_only_orders(world, make_service, real) -> None:
    async with world.operator():
        async with world.kubelet():
            first, second = await two_revisions(world, make_service)
        done = await as_json(real, "rollback", "chat", "--to", first, "--no-wait")
        assert (done["ordered"], done["servedBefore"], done["seconds"]) == (first, second, None)


async def test_an_order_that_is_not_carried_out_in_time_is_the_answer_no_and_stands(world, make_service, real) -> None:
    async with world.operator():
        async with world.kubelet():
            first, _ = await two_revisions(world, make_service)
        done = await real("rollback", "chat", "--timeout", "3")
        assert done.exit_code == 1
        assert "the order stands" in done.stderr
        assert (await world.get(INFERENCESERVICES, "chat"))["spec"]["rollout"]["order"]["revision"] == first


async def test_a_revision_that_is_not_kept_is_refused_before_anything_is_written(world, make_service, real) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        made = await world.until_ready()
        done = await real("rollback", "chat", "--to", "chat-0000000000")
        assert done.exit_code == 1
        assert f"kept are: {made['status']['currentRevision']}" in done.stderr
        assert "rollout" not in (await world.get(INFERENCESERVICES, "chat"))["spec"]


async def test_an_order_that_git_owns_is_refused_with_what_to_write_there(world, make_service, real) -> None:
    async with world.operator(), world.kubelet():
        first, second = await two_revisions(world, make_service)
        manifest = make_service(runtime={"maxNumSeqs": 8}, rollout={"order": {"revision": second, "action": "Pin"}})
        manifest["metadata"]["namespace"] = world.namespace
        await world.client.apply(INFERENCESERVICES, manifest, field_manager="argocd-controller", force=True)
        await world.until_ready(reason="Pinned")
        before = await world.get(INFERENCESERVICES, "chat")
        done = await real("rollback", "chat", "--to", first)
        assert done.exit_code == 1
        assert "spec.rollout.order.revision belongs to argocd-controller" in done.stderr
        assert f'      order:\n        revision: "{first}"\n        action: Pin' in done.stderr
        undo = await real("rollback", "chat", "--undo")
        assert undo.exit_code == 1
        assert "belongs to argocd-controller and stays" in undo.stderr
        assert (await world.get(INFERENCESERVICES, "chat"))["spec"] == before["spec"]


async def test_a_reason_in_an_annotation_of_somebody_else_does_not_hold_a_rollback_up(
    world, make_service, real
) -> None:
    async with world.operator(), world.kubelet():
        first, _ = await two_revisions(world, make_service)
        note = {"metadata": {"annotations": {"kubernetes.io/change-cause": "release 12"}}}
        await world.client.patch(INFERENCESERVICES, "chat", note, world.namespace, field_manager="kubectl-annotate")
        done = await real("rollback", "chat", "--reason", "too slow")
        assert done.exit_code == 0, done.output
        assert "the reason is not written down" in done.stderr
        assert "pins" in (words := (await real("history", "chat")).stdout)
        assert "because" not in words
        after = await world.get(INFERENCESERVICES, "chat")
        assert after["metadata"]["annotations"] == {"kubernetes.io/change-cause": "release 12"}
        assert after["status"]["currentRevision"] == first
        await real("rollback", "chat", "--undo")
        after = await world.get(INFERENCESERVICES, "chat")
        assert after["metadata"]["annotations"] == {"kubernetes.io/change-cause": "release 12"}


async def test_a_service_that_paceline_itself_applied_keeps_its_spec(world, make_service, real) -> None:
    """As `paceline demo` does it: the same manager owns the whole manifest."""
    pools = [{"name": "long", "shapes": ["VeryLong"]}]

    async def apply(**spec: Any) -> None:
        manifest = make_service(pools=pools, **spec)
        manifest["metadata"]["namespace"] = world.namespace
        await world.client.apply(INFERENCESERVICES, manifest, field_manager="paceline-cli", force=True)

    async with world.operator(), world.kubelet():
        await apply()
        first = (await world.until_ready())["status"]["currentRevision"]
        await apply(runtime={"maxNumSeqs": 8}, rollout={"strategy": "Rolling"})
        await world.until_ready()
        before = await world.get(INFERENCESERVICES, "chat")
        assert (await real("rollback", "chat", "--reason", "x")).exit_code == 0
        pinned = await world.get(INFERENCESERVICES, "chat")
        order = {"order": {"revision": first, "action": "Pin"}}
        assert pinned["spec"] == {**before["spec"], "rollout": {"strategy": "Rolling", **order}}
        assert (await real("rollback", "chat", "--undo")).exit_code == 0
        assert (await world.get(INFERENCESERVICES, "chat"))["spec"] == before["spec"]


async def test_who_applies_with_kubectl_keeps_an_order_and_sees_no_difference(world, make_service, real) -> None:
    """Client-side apply, as of old: it takes back only what it wrote itself."""

    def kubectl(*arguments: str) -> Any:
        text = json.dumps(manifest)
        return asyncio.to_thread(world.cluster.run, "kubectl", *arguments, "-f", "-", stdin=text, check=False)

    async with world.operator(), world.kubelet():
        manifest = make_service()
        manifest["metadata"]["namespace"] = world.namespace
        assert (await kubectl("apply")).returncode == 0
        first = (await world.until_ready())["status"]["currentRevision"]
        manifest["spec"]["runtime"] = {"maxNumSeqs": 8}
        assert (await kubectl("apply")).returncode == 0
        await world.until_ready()
        assert (await real("rollback", "chat", "--reason", "too slow")).exit_code == 0
        difference = await kubectl("diff")
        assert difference.returncode == 0, difference.stdout
        assert (await kubectl("apply")).returncode == 0
        assert (await world.get(INFERENCESERVICES, "chat"))["spec"]["rollout"]["order"]["revision"] == first
        assert (await real("rollback", "chat", "--undo")).exit_code == 0
        assert (await kubectl("diff")).returncode == 0


async def test_a_stuck_roll_is_taken_back_to_what_serves(world, make_service, real) -> None:
    async with world.operator():
        async with world.kubelet():
            await world.apply(make_service())
            first = (await world.until_ready())["status"]["currentRevision"]
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))

        async def under_way() -> bool:
            status = (await world.get(INFERENCESERVICES, "chat"))["status"]
            return bool(status["updatedRevision"] != first)

        await world.until(under_way, "the roll is under way")
        assert (await real("status")).exit_code == 0, "what serves goes on"
        done = await real("rollback", "chat")
        assert done.exit_code == 0, done.output
        status = (await world.get(INFERENCESERVICES, "chat"))["status"]
        assert status["currentRevision"] == status["updatedRevision"] == first
        assert len(await world.all(DEPLOYMENTS)) in (1, 2)


async def test_an_upgrade_is_shown_taken_over_and_then_there_is_none(world, make_service, real) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        await world.apply(make_service("other"))
        await world.until_ready("other")
        none = await as_json(real, "upgrade", "chat")
        assert none[0]["state"] == "asAsked"
    image = "paceline.io/runtime:9.9.9"
    async with world.operator(runtime_image=image) as newer, world.kubelet():

        async def told() -> bool:
            found = [await world.condition(name, "UpgradeAvailable") for name in ("chat", "other")]
            return all(condition.get("status") == "True" for condition in found)

        await world.until(told, "the upgrade is told")
        [dry] = await as_json(real, "upgrade", "chat", "--dry-run")
        assert dry["changes"] == [
            {"pool": "default", "field": "image", "before": "paceline.io/runtime:0.1.0", "after": image}
        ]
        assert "annotations" not in (await world.get(INFERENCESERVICES, "chat"))["metadata"]
        # An edit right before: the newest revision is of this very second.
        await world.apply(make_service(runtime={"maxNumSeqs": 8}))
        await world.until_ready()
        done = await real("upgrade", "--all", "--wait")
        assert done.exit_code == 0, done.output
        for name in ("chat", "other"):
            obj = await world.get(INFERENCESERVICES, name)
            assert "upgrade" not in obj["status"]
            made = await world.get(INFERENCEREVISIONS, obj["status"]["currentRevision"])
            assert made["spec"]["pools"][0]["image"] == image
        again = await real("upgrade", "--all")
        assert again.exit_code == 0
        assert again.stdout.count("nothing to take over") == 2
        # What is carried along from now on is the new image, whoever edits.
        await world.apply(make_service(runtime={"maxNumSeqs": 4}))
        last = await world.until_ready()
        made = await world.get(INFERENCEREVISIONS, last["status"]["currentRevision"])
        assert made["spec"]["pools"][0]["image"] == image
        assert newer.errors == []


async def test_a_rollback_keeps_an_upgrade_ordered_before_and_the_other_way_round(world, make_service, real) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        first = (await world.until_ready())["status"]["currentRevision"]
    async with world.operator(runtime_image="paceline.io/runtime:9.9.9"), world.kubelet():

        async def told() -> bool:
            return bool(await world.condition("chat", "UpgradeAvailable"))

        await world.until(told, "the upgrade is told")
        assert (await real("upgrade", "chat", "--wait")).exit_code == 0
        upgraded = await world.get(INFERENCESERVICES, "chat")
        assert (await real("rollback", "chat")).exit_code == 0
        pinned = await world.get(INFERENCESERVICES, "chat")
        assert pinned["metadata"]["annotations"] == upgraded["metadata"]["annotations"]
        assert pinned["status"]["currentRevision"] == first
        refused = await real("upgrade", "chat")
        assert refused.exit_code == 1
        assert "pinned" in refused.stderr
        assert (await real("rollback", "chat", "--undo")).exit_code == 0
        after = await world.get(INFERENCESERVICES, "chat")
        assert after["status"]["currentRevision"] == upgraded["status"]["currentRevision"]


@asynccontextmanager
async def answering(world: Any, answer: Any) -> AsyncIterator[None]:
    """A kubelet whose pods answer on addresses of their own, as those of the local mode do."""
    runners: list[web.AppRunner] = []

    async def serve(pod: JsonObject) -> str:
        name = next(v["configMap"]["name"] for v in pod["spec"]["volumes"] if "configMap" in v)
        stored = json.loads((await world.get(CONFIGMAPS, name))["data"]["config.json"])
        origins = stored["origins"]
        parameters = {k: {"value": v, "origin": origins[k]} for k, v in stored["parameters"].items()}
        config = {"model": stored["model"], "model_digest": "sha256:a", "parameters": parameters}

        async def reply(request: web.Request) -> web.Response:
            said = answer(config)
            return web.json_response(said) if said is not None else web.Response(status=404)

        app = web.Application()
        app.router.add_get("/v1/paceline/config", reply)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        address = f"127.79.0.{len(runners)}"
        await web.TCPSite(runner, address, 8000).start()
        return address

    async def kubelet() -> None:
        while True:
            for pod in await world.all(PODS):
                if (pod.get("status") or {}).get("podIP"):
                    continue
                address = await serve(pod)
                ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
                await world.set_pod(
                    pod, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": ready}
                )
            await asyncio.sleep(0.1)

    task = asyncio.create_task(kubelet())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for runner in runners:
            await runner.cleanup()


async def test_drift_shows_every_item_and_works_without_the_operator(world, make_service, real) -> None:
    silent = False

    def answer(config: JsonObject) -> JsonObject | None:
        return None if silent else config

    async with answering(world, answer):
        async with world.operator(drift_seconds=0.5):
            await world.apply(make_service(replicas=2))
            await world.until_ready()
            done = await real("drift", "chat")
            assert done.exit_code == 0, done.output
            assert "chat: in sync; 2 replicas say what they run with" in done.stdout
        # From here on nobody but the command looks.
        [deployment] = await world.all(DEPLOYMENTS)
        variables = [{"name": f"PACELINE_ODD_{number}", "value": "1"} for number in range(7)]
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "runtime", "env": variables}]}}}}
        await world.client.patch(
            DEPLOYMENTS, deployment["metadata"]["name"], patch, world.namespace, kind="strategic", field_manager="x"
        )

        async def rolled() -> bool:
            return sum("PACELINE_ODD_0" in json.dumps(pod) for pod in await world.all(PODS)) == 2

        await world.until(rolled, "the pods have the variables")
        [found] = await as_json(real, "drift", code=1)
        assert len(found["items"]) == 21, "seven variables on the Deployment and on each of its two pods"
        assert found["inSync"] is False
        table = (await real("drift")).stdout
        assert table.count("PACELINE_ODD_") == 21
        silent = True
        put_back = {"spec": {"template": deployment["spec"]["template"]}}
        operations = [{"op": "replace", "path": "/spec/template", "value": put_back["spec"]["template"]}]
        await world.client.patch(
            DEPLOYMENTS, deployment["metadata"]["name"], operations, world.namespace, kind="json", field_manager="x"
        )

        async def back() -> bool:
            pods = await world.all(PODS)
            return len(pods) == 2 and "PACELINE_ODD_0" not in json.dumps(pods)

        await world.until(back, "the pods are as recorded")
        [found] = await as_json(real, "drift", code=3)
        assert found["inSync"] is None
        assert set(found["unknown"].values()) == {"it answered 404"}


async def test_a_service_without_revisions_is_not_known(world, make_service, real) -> None:
    await world.apply(make_service())
    assert (await real("drift")).exit_code == 3
    assert (await real("history", "chat")).exit_code == 3
    assert (await real("status")).exit_code == 3
    assert (await real("rollback", "chat")).exit_code == 3


async def test_the_commands_are_a_plugin_of_the_real_kubectl(world, make_service) -> None:
    async with world.operator(), world.kubelet():
        await world.apply(make_service())
        await world.until_ready()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = await asyncio.to_thread(
            world.cluster.run, "env", f"PATH={path}", str(world.cluster.tools / "kubectl"), "paceline", "status",
            "-n", world.namespace, "-o", "json",
        )  # fmt: skip
        [found] = json.loads(done.stdout)
        assert (found["name"], found["ready"]) == ("chat", "True")
        helped = await asyncio.to_thread(
            world.cluster.run, "env", f"PATH={path}", str(world.cluster.tools / "kubectl"), "paceline", "rollback", "-h"
        )
        assert helped.stdout.startswith("Usage: kubectl paceline rollback")
