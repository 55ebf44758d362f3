from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from paceline_router.commands import route


@pytest.fixture
def busy_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_taken_port_is_wrong_use_and_names_the_options(busy_port: int, tmp_path: Path) -> None:
    routes = tmp_path / "routes.yaml"
    routes.write_text("services: []\n")
    app = typer.Typer()
    app.command()(route)
    arguments = ["--config", str(routes), "--host", "127.0.0.1", "--port", str(busy_port), "--admin-port", "0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1 ports {busy_port} and 0" in result.output
    assert "--admin-port" in result.output


def test_a_router_that_cannot_start_says_why_and_nothing_of_open_files(tmp_path: Path) -> None:
    router = [sys.executable, "-m", "paceline_router", "--config", str(tmp_path / "none.yaml"), "--port", "0"]
    few_files = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *router, "--admin-port", "0"]
    done = subprocess.run(few_files, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "none.yaml" in done.stderr
    assert "ulimit" not in done.stderr
