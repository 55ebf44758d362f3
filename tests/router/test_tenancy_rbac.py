"""A router with the rights that the docs name, on a real API server: it follows its Secret and can read no other."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_kube import SECRETS, Forbidden, connect
from paceline_local.cluster import Cluster
from paceline_router.tenancy.keys import digest_of
from paceline_router.tenancy.watch import SecretWatcher

pytestmark = pytest.mark.cluster

NAMESPACE = "tenancy-rbac"
RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["chat-keys"], "verbs": ["get", "list", "watch"]}
]


def objects() -> list[dict[str, Any]]:
    def named(kind: str, name: str, api: str = "v1", **fields: Any) -> dict[str, Any]:
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **fields}

    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        named("ServiceAccount", "router"),
        named("Role", "keys", f"{rbac}/v1", rules=RULES),
        named(
            "RoleBinding",
            "keys",
            f"{rbac}/v1",
            roleRef={"apiGroup": rbac, "kind": "Role", "name": "keys"},
            subjects=[{"kind": "ServiceAccount", "name": "router", "namespace": NAMESPACE}],
        ),
        secret("chat-keys", "sk-1"),
        secret("other", "sk-other"),
    ]


def secret(name: str, key: str) -> dict[str, Any]:
    data = {"chat": hashlib.sha256(key.encode()).hexdigest()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "stringData": data,
    }


@pytest.fixture
def kubeconfig(control_plane: Cluster, tmp_path: Path) -> Path:
    """The rights of the router's service account."""
    control_plane.apply("\n---\n".join(json.dumps(each) for each in objects()))
    token = control_plane.kubectl("create", "token", "router", "-n", NAMESPACE).strip()
    config = yaml.safe_load(Path(control_plane.kubeconfig).read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def test_the_rights_on_one_secret_suffice_to_follow_it(control_plane: Cluster, kubeconfig: Path) -> None:
    changed = asyncio.Event()

    async def until(watcher: SecretWatcher, name: str, wanted: Any) -> None:
        async with asyncio.timeout(30):
            while not wanted(watcher.keys(NAMESPACE, name)):
                changed.clear()
                await changed.wait()

    async with (
        connect(kubeconfig) as client,
        SecretWatcher(client, lambda name: changed.set(), look_seconds=0.1) as watcher,
    ):
        with pytest.raises(Forbidden):
            await client.list(SECRETS, NAMESPACE)
        watcher.want({(NAMESPACE, "chat-keys"), (NAMESPACE, "other")})
        await until(watcher, "chat-keys", lambda keys: set(keys.entries) == {digest_of(b"sk-1")})
        await until(watcher, "other", lambda keys: "may not read the Secret" in keys.trouble)
        await asyncio.to_thread(control_plane.apply, json.dumps(secret("chat-keys", "sk-2")))
        await until(watcher, "chat-keys", lambda keys: set(keys.entries) == {digest_of(b"sk-2")})
        await asyncio.to_thread(control_plane.kubectl, "delete", "secret", "chat-keys", "-n", NAMESPACE)
        await until(watcher, "chat-keys", lambda keys: "does not exist" in keys.trouble)
