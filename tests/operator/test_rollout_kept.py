"""Where a step's evidence is kept: a ConfigMap that the service owns."""

from __future__ import annotations

from paceline_kube import CONFIGMAPS
from paceline_kube.testing import FakeApiServer, Refusal
from paceline_operator.rollout.kept import EvidenceMaps, name_of

KEY = ("demo", "chat")


async def test_what_is_written_is_read_again_replaced_and_dropped() -> None:
    async with FakeApiServer() as server:
        client = server.client()
        maps = EvidenceMaps(client)
        assert await maps.read(KEY) is None
        await maps.write(KEY, "uid-1", b"\x00first")
        await maps.write(KEY, "uid-1", b"\x00second")
        assert await maps.read(KEY) == b"\x00second"
        kept = await client.get(CONFIGMAPS, name_of(KEY), KEY[0])
        [owner] = kept["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("InferenceService", "chat", "uid-1")
        await maps.drop(KEY)
        assert await maps.read(KEY) is None
        await maps.drop(KEY)


async def test_an_api_server_that_refuses_costs_the_evidence_and_no_fault() -> None:
    async with FakeApiServer() as server:
        maps = EvidenceMaps(server.client())
        await maps.write(KEY, "uid-1", b"first")
        server.refuse(Refusal(403, "Forbidden", times=3), path="configmaps")
        await maps.write(KEY, "uid-1", b"second")
        assert await maps.read(KEY) is None
        await maps.drop(KEY)
