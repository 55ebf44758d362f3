"""A replica that fetches its model from a hub before it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from model_hub import serving, variables

from paceline_crds.conditions import EXIT_MODEL_NOT_FOUND

FLAGS = (
    "--max-model-len",
    "128",
    "--max-batched-tokens",
    "64",
    "--prefill-chunk-tokens",
    "32",
    "--kv-cache-memory",
    "4Mi",
)


def test_a_model_of_a_hub_is_fetched_and_served_and_later_without_the_hub(
    start_replica: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    files = {path.name: path.read_bytes() for path in tiny_folder.iterdir() if path.is_file()}
    with serving(files) as hub:
        environ = variables(hub, tmp_path / "cache")
        replica = start_replica("hf://acme/tiny@v1", "--served-name", "tiny", *FLAGS, env=environ)
        body = {"model": "tiny", "prompt": "the quick", "max_tokens": 4, "temperature": 0}
        first = httpx.post(f"{replica.url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
        assert any("/resolve/" in path for path in hub.asked)
    offline = {**environ, "HF_HUB_OFFLINE": "1"}
    again = start_replica("hf://acme/tiny@v1", "--served-name", "tiny", *FLAGS, env=offline)
    assert httpx.post(f"{again.url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"] == first


def test_without_hub_and_cache_the_last_words_say_what_to_do(start_replica: Any, tmp_path: Path) -> None:
    environ = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    log = tmp_path / "termination"
    replica = start_replica(
        "hf://acme/tiny@v1", *FLAGS, env={**environ, "PACELINE_TERMINATION_LOG": str(log)}, until=None
    )
    assert replica.wait() == EXIT_MODEL_NOT_FOUND
    assert "set HF_ENDPOINT to a mirror" in log.read_text()
