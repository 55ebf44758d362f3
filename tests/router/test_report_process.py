"""A router as a process: where its slow requests and its spans go."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import httpx

ROUTES = """
services:
- name: demo/chat
  servedName: smollm2
  routing: {{slowRequestThreshold: 1ms}}
  slo: {{ttft: {{p90: 5s}}}}
  replicas:
  - url: http://127.0.0.1:{port}
"""


async def test_slow_requests_are_lines_of_json_and_spans_go_to_the_collector(tmp_path: Path, peer: Any) -> None:
    async def slowly(request: Any) -> None:
        await asyncio.sleep(0.01)
        request.begin_stream()
        request.event("secret answer")
        request.end_stream()

    async def collect(request: Any) -> None:
        await request.answer({})

    replica, collector = await peer(slowly), await peer(collect)
    config = tmp_path / "routes.yaml"
    config.write_text(ROUTES.format(port=replica.port))
    command = [sys.executable, "-m", "paceline_router", "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", "0", "--admin-port", "0", "--log-level", "error", "--shutdown-delay", "0"]
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}"}
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    try:
        assert running.stdout is not None
        line = await asyncio.wait_for(running.stdout.readline(), 60)
        match = re.search(rb"http://127.0.0.1:(\d+) \(admin port (\d+)\)", line)
        assert match is not None, line
        body = {"model": "smollm2", "stream": True, "messages": [{"role": "user", "content": "secret question"}]}
        async with httpx.AsyncClient(timeout=30) as client:
            url = f"http://127.0.0.1:{int(match[1])}/v1/chat/completions"
            answer = await client.post(url, json=body, headers={"authorization": "Bearer secret-key"})
            assert answer.status_code == 200
            page = (await client.get(f"http://127.0.0.1:{int(match[2])}/metrics")).text
        assert 'slo="goodput",result="met"} 1\n' in page
        running.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(running.communicate(), 60)
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    assert running.returncode == 0
    [slow] = [json.loads(text) for text in errors.splitlines()]
    assert slow["service"] == "demo/chat"
    assert slow["ttft_ms"] >= 10
    assert b"secret" not in errors
    [post] = collector.received
    assert post.path == "/v1/traces"
    assert b"secret" not in post.body
    spans = post.json["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans] == ["POST /v1/chat/completions", "replica"]
