"""Models from a hub: a small stand-in of Hugging Face's serves a repository over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from model_hub import Hub, serving, variables

from paceline_crds.conditions import EXIT_CONFIG, EXIT_MODEL_NOT_FOUND
from paceline_runtime.model.hub import HubError, HubModel, parse

WEIGHTS = os.urandom(16_000_000)


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
        "tokenizer.json": b"{}",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"another format",
        "original/model.safetensors": b"another copy",
        "tiny.Q4_K_M.gguf": b"GGUF four bits",
        "tiny.Q8_0.gguf": b"GGUF eight bits",
    }
    with serving(files) as served:
        yield served


SCRIPT = """
import sys
from paceline_runtime.config import StartupError
from paceline_runtime.model import hub, source
hub.REPORT_SECONDS = 0.0
try:
    hub.fetch(sys.argv[1], lambda words: print("progress", words, flush=True))
    files = source.locate(sys.argv[1])
except StartupError as error:
    print(error)
    sys.exit(error.exit_code)
print("at", files.path)
"""


@dataclass
class Ran:
    code: int
    out: str

    @property
    def path(self) -> Path:
        return Path(next(line for line in self.out.splitlines() if line.startswith("at ")).removeprefix("at "))


def run(hub: Hub, tmp_path: Path, source: str = "hf://acme/tiny@v1", **environ: str) -> Ran:
    """In a process of its own: the library reads its variables when it is imported."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    env = {**others, **variables(hub, tmp_path / "cache"), **environ}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, source], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    return Ran(done.returncode, done.stdout + done.stderr)


def test_a_model_is_fetched_once_and_only_what_is_served_from(hub: Hub, tmp_path: Path) -> None:
    first = run(hub, tmp_path)
    assert first.code == 0, first.out
    assert {path.name for path in first.path.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (first.path / "model.safetensors").read_bytes() == WEIGHTS
    assert "progress hf://acme/tiny@v1: " in first.out
    hub.asked.clear()
    assert run(hub, tmp_path).path == first.path
    assert not any("/resolve/" in path for path in hub.asked)


def test_one_gguf_file_of_many_is_fetched(hub: Hub, tmp_path: Path) -> None:
    ran = run(hub, tmp_path, "hf://acme/tiny/tiny.Q8_0.gguf@main")
    assert ran.code == 0, ran.out
    assert ran.path.read_bytes() == b"GGUF eight bits"
    assert not (ran.path.parent / "tiny.Q4_K_M.gguf").exists()


def test_a_connection_that_breaks_is_taken_up_where_it_broke_off(hub: Hub, tmp_path: Path) -> None:
    hub.cut = [12_000_000]
    ran = run(hub, tmp_path)
    assert ran.code == 0, ran.out
    assert (ran.path / "model.safetensors").read_bytes() == WEIGHTS
    assert len(hub.ranges) == 1
    assert int(hub.ranges[0].removeprefix("bytes=").rstrip("-")) >= 10_000_000


def test_files_that_are_whole_are_kept_for_the_next_start(hub: Hub, tmp_path: Path) -> None:
    hub.cut = [1000] * 20
    broken = run(hub, tmp_path)
    assert broken.code == EXIT_MODEL_NOT_FOUND
    assert "files that are whole are kept for the next start" in broken.out
    hub.cut = []
    hub.asked.clear()
    ran = run(hub, tmp_path)
    assert ran.code == 0, ran.out
    assert (ran.path / "model.safetensors").read_bytes() == WEIGHTS
    assert not any(path.endswith("tokenizer.json") for path in hub.asked)


def test_without_the_hub_the_cache_serves(hub: Hub, tmp_path: Path) -> None:
    whole = run(hub, tmp_path)
    assert run(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:9").path == whole.path
    assert run(hub, tmp_path, HF_HUB_OFFLINE="1").path == whole.path


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "set HF_ENDPOINT to a mirror, or put the model on a volume"),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids"),
    ],
)
def test_without_the_hub_and_a_cache_it_is_said_what_to_do(
    hub: Hub, tmp_path: Path, environ: dict[str, str], words: str
) -> None:
    ran = run(hub, tmp_path, **environ)
    assert ran.code == EXIT_MODEL_NOT_FOUND
    assert words in ran.out


def test_a_private_model_wants_the_token(hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_secret"
    without = run(hub, tmp_path)
    assert without.code == EXIT_MODEL_NOT_FOUND
    assert "or it is private (no token was given)" in without.out
    assert "spec.model.tokenSecretName" in without.out
    assert run(hub, tmp_path, HF_TOKEN="hf_secret").code == 0


def test_a_gated_model_says_where_its_terms_are(hub: Hub, tmp_path: Path) -> None:
    hub.token, hub.gated = "other", True
    ran = run(hub, tmp_path, HF_TOKEN="mine")
    assert ran.code == EXIT_MODEL_NOT_FOUND
    assert f"accept the terms at {hub.endpoint}/acme/tiny" in ran.out
    assert "mine" not in ran.out.replace("acme/tiny", "")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf://acme/none", "there is no acme/none"),
        ("hf://acme/tiny@v9", "acme/tiny has no revision 'v9'"),
        ("hf://acme/tiny/no.gguf@v1", "acme/tiny has no no.gguf at revision 'v1'"),
        ("hf://acme", "write hf://ORG/NAME@REVISION"),
    ],
)
def test_what_is_not_there_is_named(hub: Hub, tmp_path: Path, source: str, words: str) -> None:
    ran = run(hub, tmp_path, source)
    assert ran.code == EXIT_MODEL_NOT_FOUND, ran.out
    assert words in ran.out


def test_a_hub_that_fails_is_told_with_its_answer(hub: Hub, tmp_path: Path) -> None:
    hub.status = 418
    ran = run(hub, tmp_path)
    assert ran.code == EXIT_MODEL_NOT_FOUND
    assert "answers 418" in ran.out


def test_a_cache_that_cannot_be_written_is_a_fault_of_the_configuration(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    ran = run(hub, tmp_path)
    assert ran.code in (EXIT_CONFIG, EXIT_MODEL_NOT_FOUND)
    assert "acme/tiny" in ran.out


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf://a/b", HubModel("a/b", "", "main")),
        ("hf://a/b@refs/pr/1", HubModel("a/b", "", "refs/pr/1")),
        ("hf://a/b/c/d.gguf@v1", HubModel("a/b", "c/d.gguf", "v1")),
    ],
)
def test_a_source_names_repository_path_and_revision(source: str, expected: HubModel) -> None:
    assert parse(source) == expected


def test_another_form_is_refused() -> None:
    with pytest.raises(HubError, match="ORG/NAME"):
        parse("hf://a b/c")
