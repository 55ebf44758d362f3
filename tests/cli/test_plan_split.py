"""`paceline plan split`."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_cli.plan import app
from paceline_cli.split import merged
from paceline_kube.testing import FakeApiServer, Refusal


def finding(shape: str, answer: str) -> dict[str, Any]:
    return {"shape": shape, "answer": answer, "requestsShare": 0.4, "tokensShare": 0.8, "words": f"because {answer}"}


def advice(*answers: str) -> dict[str, Any]:
    shapes = [finding(f"Shape{n}", answer) for n, answer in enumerate(answers)]
    return {"seconds": 1800, "requests": 4000, "split": [], "shapes": shapes}


class Router:
    """An admin port with one page."""

    def __init__(self) -> None:
        self.services: dict[str, Any] = {}
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                right = self.headers["authorization"] == "Bearer t" and self.path == "/v1/paceline/split"
                body = json.dumps({"services": router.services}).encode() if right else b"{}"
                self.send_response(200 if right else 401)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def router() -> Iterator[Router]:
    made = Router()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def run(router: Router, *arguments: str, token: str = "t") -> Any:
    return CliRunner().invoke(app, ["split", *arguments, "--admin", router.url], env={"PACELINE_ADMIN_TOKEN": token})


@pytest.mark.parametrize(
    ("answers", "code"), [(["no", "yes"], 0), (["no", "no"], 1), (["no", "not known"], 3), ([], 3)]
)
def test_the_exit_code_is_the_advice(router: Router, answers: list[str], code: int) -> None:
    router.services = {"demo/chat": {"default": advice(*answers)}}
    done = run(router)
    assert done.exit_code == code
    assert "demo/chat, pool default: 4000 requests in 30 minutes" in done.output
    for answer in answers:
        assert f"because {answer}" in done.output


def test_one_service_may_be_named_and_json_is_for_programs(router: Router) -> None:
    router.services = {"demo/chat": {"default": advice("yes")}, "demo/other": {}}
    done = run(router, "demo/chat", "-o", "json")
    assert list(json.loads(done.output)) == ["demo/chat"]
    unknown = run(router, "demo/none")
    assert unknown.exit_code == 2
    assert "it knows: demo/chat, demo/other" in unknown.output


def test_a_service_without_requests_is_not_known(router: Router) -> None:
    router.services = {"demo/chat": {}}
    done = run(router)
    assert done.exit_code == 3
    assert "demo/chat: no request yet" in done.output
    router.services = {}
    assert "the routers know no service yet" in run(router).output


def test_what_keeps_the_router_from_answering_is_said(router: Router, tmp_path: Path) -> None:
    wrong = run(router, token="other")
    assert wrong.exit_code == 4
    assert "the token is wrong" in wrong.output
    away = CliRunner().invoke(app, ["split", "--admin", "http://127.0.0.1:1"], env={"PACELINE_ADMIN_TOKEN": "t"})
    assert away.exit_code == 4
    assert "cannot be asked" in away.output
    missing = run(router, "--token-file", str(tmp_path / "none"))
    assert missing.exit_code == 2


SECRET = "/api/v1/secrets"


async def put_router(server: FakeApiServer, address: str, port: int) -> None:
    """A ready router pod and the Secret, as chart and operator leave them."""
    labels = {"app.kubernetes.io/component": "router"}
    await server.put(
        "/api/v1/pods",
        {
            "metadata": {"name": "paceline-router-0", "namespace": "paceline-system", "labels": labels},
            "spec": {"containers": [{"name": "router", "ports": [{"name": "metrics", "containerPort": port}]}]},
            "status": {"podIP": address, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        },
    )
    data = {"token": base64.b64encode(b"t").decode()}
    metadata = {"name": "paceline-router-admin", "namespace": "paceline-system"}
    await server.put(SECRET, {"metadata": metadata, "data": data})


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_ADMIN_TOKEN", raising=False)


async def test_in_a_local_cluster_router_and_token_are_found_by_the_kubeconfig(
    server: FakeApiServer, paceline: Any, router: Router
) -> None:
    router.services = {"demo/chat": {"default": advice("yes")}}
    await put_router(server, "127.0.0.1", router.server.server_port)
    done = await paceline("plan", "split", "demo/chat")
    assert done.exit_code == 0, done.output
    assert "because yes" in done.stdout


async def test_the_token_is_sent_to_no_address_outside_this_machine_and_the_way_is_said(
    server: FakeApiServer, paceline: Any
) -> None:
    await put_router(server, "10.0.0.1", 8081)
    done = await paceline("plan", "split")
    assert done.exit_code == 4
    assert "kubectl -n paceline-system port-forward pod/paceline-router-0 8081" in done.stderr
    assert "paceline plan split --admin http://127.0.0.1:8081" in done.stderr


async def test_with_a_forwarded_port_the_token_is_still_read_from_its_secret(
    server: FakeApiServer, paceline: Any, router: Router
) -> None:
    router.services = {"demo/chat": {"default": advice("no")}}
    await put_router(server, "10.0.0.1", 8081)
    done = await paceline("plan", "split", "--admin", router.url)
    assert done.exit_code == 1, done.output
    assert "because no" in done.stdout


async def test_who_may_not_read_the_token_or_has_no_router_is_told_what_to_write(
    server: FakeApiServer, paceline: Any
) -> None:
    none = await paceline("plan", "split")
    assert none.exit_code == 3
    assert "paceline-system/paceline-router-admin" in none.stderr
    assert "--system-namespace" in none.stderr
    server.refuse(Refusal(403, "Forbidden", "no"), path="/secrets/")
    refused = await paceline("plan", "split")
    assert refused.exit_code == 1
    assert "--token-file" in refused.stderr


def test_of_several_routers_the_one_with_most_requests_is_believed() -> None:
    few, many = advice("no") | {"requests": 10}, advice("yes") | {"requests": 90}
    assert merged([{"demo/chat": {"default": few}}, {"demo/chat": {"default": many}}]) == {
        "demo/chat": {"default": many}
    }
