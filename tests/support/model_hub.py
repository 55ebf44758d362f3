"""A stand-in of Hugging Face's hub that serves one small repository, `acme/tiny`, over HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the stand-in serves, and what it was asked for.

    Attributes:
        token: asked for, where not empty.
        cut: the first answers with these many bytes of a weight file end there.
    """

    files: dict[str, bytes]
    token: str = ""
    gated: bool = False
    status: int = 0
    cut: list[int] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(False)

        def do_GET(self) -> None:
            self._answer(True)

        def _answer(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(path)
            if hub.status:
                return self._send(hub.status, b"busy", {}, body)
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                code = "GatedRepo" if hub.gated else "RepoNotFound"
                return self._send(403 if hub.gated else 401, b"{}", {"X-Error-Code": code}, body)
            if not path.startswith(("/api/models/acme/tiny", "/acme/tiny/")):
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
            if path.startswith("/api/models/acme/tiny/revision/"):
                if path.rpartition("/")[2] not in ("main", "v1", COMMIT):
                    return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
                return self._json({"id": "acme/tiny", "sha": COMMIT, "siblings": []}, body)
            if path.startswith(f"/api/models/acme/tiny/tree/{COMMIT}"):
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in hub.files.items()
                ]
                return self._json(tree, body)
            data = hub.files.get(path.removeprefix(f"/acme/tiny/resolve/{COMMIT}/"))
            if data is None:
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, body)
            return self._file(data, body)

        def _file(self, data: bytes, body: bool) -> None:
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            wanted = self.headers.get("Range")
            if not wanted:
                self._send(200, data, headers, body)
                return
            hub.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._send(206, data[start:], headers, body)

        def _json(self, value: Any, body: bool) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body and hub.cut and len(data) > 1_000_000:
                self.wfile.write(data[: hub.cut.pop(0)])
                self.wfile.flush()
                self.close_connection = True
                return
            if body:
                self.wfile.write(data)

    return Handler


@contextlib.contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Hub]:
    """A hub with these files, by their paths in the repository."""
    served = Hub(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(served))
    served.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


def variables(hub: Hub, cache: Path) -> dict[str, str]:
    """Environment of a process that uses the hub."""
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
