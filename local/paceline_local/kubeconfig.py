"""Writes kubeconfig files with everything in them, so that one file can be copied and used."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from paceline_local.pki import KeyPair, write_private


def write_kubeconfig(path: Path, server: str, authority: Path, client: KeyPair, user: str) -> None:
    """Write a kubeconfig for one client of one API server.

    Args:
        path: The file, readable by its owner alone.
        server: URL of the API server.
        authority: Certificate of the CA that the server's certificate is checked against.
        client: The client's certificate and key.
        user: Name of the user entry.
    """

    def data(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    cluster = {"server": server, "certificate-authority-data": data(authority)}
    credentials = {"client-certificate-data": data(client.certificate), "client-key-data": data(client.key)}
    context = {"cluster": "paceline-local", "user": user, "namespace": "default"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "paceline-local", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "paceline-local", "context": context}],
        "current-context": "paceline-local",
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False).encode())
