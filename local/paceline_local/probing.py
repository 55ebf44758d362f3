"""Asks the parts of an instance whether they work, over TLS with both ends checked."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from paceline_local.errors import UnreachableError
from paceline_local.parts import Probe
from paceline_local.pki import KeyPair

TIMEOUT_SECONDS = 5.0


class Client:
    """A small HTTPS client that checks servers against the instance's CA and ignores proxies."""

    def __init__(self, authority: Path, client: KeyPair | None = None) -> None:
        self._context = ssl.create_default_context(cafile=str(authority))
        if client is not None:
            self._context.load_cert_chain(client.certificate, client.key)
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._context)
        )

    def get(self, url: str) -> bytes:
        """Body of a 2xx answer.

        Raises:
            urllib.error.HTTPError: The server answered otherwise.
            UnreachableError: There was no answer, or not from a server with a certificate of the instance.
        """
        try:
            with self._opener.open(url, timeout=TIMEOUT_SECONDS) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{url} does not answer: {error}") from error

    def get_json(self, url: str) -> Any:
        """Body of a 2xx answer, parsed; raises as `get` does."""
        return json.loads(self.get(url))


def asked(client: Client, url: str) -> tuple[Any, str | None]:
    """The parsed answer and None, or None and what is wrong, in words."""
    try:
        return client.get_json(url), None
    except urllib.error.HTTPError as error:
        return None, f"{url} answers {error.code}"
    except UnreachableError as error:
        return None, str(error)


def answer_of(probe: Probe, anonymous: Client, admin: Client) -> str | None:
    """None where the part works, else what is wrong with it, in words."""
    if probe.path is not None:
        return _path_answer(probe.path)
    if not probe.url:
        return None
    client = admin if probe.needs_client_certificate else anonymous
    try:
        client.get(probe.url)
    except urllib.error.HTTPError as error:
        return f"{probe.url} answers {error.code}"
    except UnreachableError as error:
        return str(error)
    return None


def _path_answer(path: Path) -> str | None:
    if not path.exists():
        return f"{path} is not there yet"
    if not path.is_socket():
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(TIMEOUT_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            return f"{path} does not answer: {error}"
    return None
