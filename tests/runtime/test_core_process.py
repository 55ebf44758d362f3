"""The core process, spoken to over its socket as the front end does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from paceline_crds.conditions import EXIT_CONFIG, EXIT_MODEL_INVALID, EXIT_MODEL_NOT_FOUND
from paceline_runtime.config import resolve
from paceline_runtime.core.__main__ import serve
from paceline_runtime.core.channel import Channel
from paceline_runtime.messages import (
    Abort,
    AddRequest,
    CoreMessage,
    Drain,
    Fatal,
    FinishReason,
    FrontMessage,
    Ready,
    RejectCode,
    Rejected,
    SamplingParams,
    Shutdown,
    StepOutputs,
    TokenOutput,
    core_decoder,
    encode_frame,
)
from paceline_runtime.model.device.memory import LargestSteps
from paceline_runtime.model.runner import ModelRunner

M = TypeVar("M")
PATIENCE = 120.0


class Core:
    """A core process and the front end's end of its socket."""

    def __init__(self, folder: Path, config_json: str) -> None:
        (folder / "config.json").write_text(config_json)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(folder / "core.sock"))
        listener.listen(1)
        command = [sys.executable, "-m", "paceline_runtime.core"]
        command += ["--socket", str(folder / "core.sock"), "--config", str(folder / "config.json")]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=subprocess.STDOUT
            )
        self.log = folder / "log"
        listener.settimeout(PATIENCE)
        self.socket, _ = listener.accept()
        listener.close()
        self.socket.settimeout(PATIENCE)
        self._decoder = core_decoder()
        self._messages = self._read()

    def _read(self) -> Iterator[CoreMessage]:
        while data := self.socket.recv(65536):
            yield from self._decoder.feed(data)

    def send(self, *messages: FrontMessage) -> None:
        self.socket.sendall(b"".join(encode_frame(message) for message in messages))

    def next(self, kind: type[M], wanted: Callable[[M], bool] = lambda message: True) -> M:
        """The next message of this kind that is wanted; others are passed over."""
        deadline = time.monotonic() + PATIENCE
        for message in self._messages:
            if isinstance(message, kind) and wanted(message):
                return message
            assert time.monotonic() < deadline, f"no {kind.__name__} came"
        raise AssertionError(f"the core closed the socket: {self.log.read_text()}")

    def outputs(self, request_id: str) -> list[TokenOutput]:
        """All outputs of a request, to its end."""
        got: list[TokenOutput] = []
        while not got or got[-1].finish_reason is None:
            step = self.next(StepOutputs)
            got += [output for output in step.outputs if output.request_id == request_id]
        return got

    def end(self) -> int:
        return self.process.wait(PATIENCE)


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Core]]:
    cores: list[Core] = []

    def make(config_json: str) -> Core:
        # The path of a Unix-domain socket has to be short.
        cores.append(Core(tmp_path_factory.mktemp("core"), config_json))
        return cores[-1]

    yield make
    for core in cores:
        core.socket.close()
        if core.process.poll() is None:
            core.process.kill()
        core.process.wait()


def config_for(folder: Path, **flags: object) -> str:
    defaults = {"max_model_len": 256, "kv_cache_memory": "1Mi", "max_batched_tokens": 128, "prefill_chunk_tokens": 64}
    return resolve(source=str(folder), flags={**defaults, "max_num_seqs": 2, **flags}, environ={}).model_dump_json()


def request(name: str, prompt: int = 20, **sampling: object) -> AddRequest:
    params = SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 5, **sampling})  # type: ignore[arg-type]
    ids = [3 + i % 300 for i in range(prompt)]
    return AddRequest(request_id=name, prompt_token_ids=ids, sampling=params, arrival_time=time.monotonic())


def test_one_life_of_a_core(tiny_model_dir: Path, start: Callable[[str], Core]) -> None:
    core = start(config_for(tiny_model_dir))
    ready = core.next(Ready)
    assert ready.parameters["maxModelLen"].value == 256
    assert ready.parameters["maxModelLen"].origin == "flag"
    assert ready.parameters["numBlocks"].value == 128
    assert ready.parameters["numBlocks"].origin == "measured"
    assert ready.model.digest.startswith("sha256:")
    assert (ready.model.vocab_size, ready.model.eos_token_ids, ready.device) == (384, [2], ready.device)

    # Idle, it gives signs of life with a growing number.
    first = core.next(StepOutputs).stats
    second = core.next(StepOutputs).stats
    assert second.sequence > first.sequence
    assert (second.running, second.waiting, second.kv_blocks_used, second.phases) == (0, 0, 0, None)

    core.send(request("a"), request("b", prompt=100, max_tokens=3))
    made = core.outputs("a")
    assert len([token for output in made for token in output.new_token_ids]) == 5
    assert made[-1].finish_reason is FinishReason.LENGTH

    # What cannot be served comes back with words, and harms nobody.
    core.send(request("long", prompt=300), request("odd", stop_token_ids=(9999,)), request("c"))
    assert core.next(Rejected).code is RejectCode.CONTEXT_LENGTH
    odd = core.next(Rejected)
    assert (odd.request_id, odd.code) == ("odd", RejectCode.INVALID)
    assert "stop_token_ids" in odd.message
    assert core.outputs("c")[-1].finish_reason is FinishReason.LENGTH

    # Two hold both places; when they go away, the third starts at once and their blocks are free.
    core.send(request("x", max_tokens=200), request("y", max_tokens=200))
    core.next(StepOutputs, lambda step: len(step.outputs) == 2)
    core.send(request("z", prompt=4, max_tokens=2))
    core.next(StepOutputs, lambda step: step.stats.waiting == 1)
    core.send(Abort(["x", "y", "never-there"]), Abort(["x"]))
    last = core.next(StepOutputs, lambda step: any(o.request_id == "z" and o.finish_reason for o in step.outputs))
    assert {output.request_id for output in last.outputs} == {"z"}
    assert (last.stats.running, last.stats.kv_blocks_used) == (0, 0)

    # SIGTERM is the front end's to act on: it drains.
    core.process.terminate()
    core.send(request("d", max_tokens=30), Drain(), request("late"))
    assert core.next(Rejected).code is RejectCode.DRAINING
    assert core.outputs("d")[-1].finish_reason is FinishReason.LENGTH
    assert core.end() == 0


class Served:
    """The core in a thread of this process: all that a process does, but for the seconds it takes to start."""

    def __init__(self, folder: Path, config_json: str) -> None:
        (folder / "config.json").write_text(config_json)
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE)
        self.code: int | None = None
        self._decoder = core_decoder()

        def work() -> None:
            channel = Channel(theirs)
            try:
                self.code = serve(channel, folder / "config.json")
            finally:
                channel.close()

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def end(self) -> tuple[list[CoreMessage], int | None]:
        """What came until the core closed the socket, and its exit code."""
        messages: list[CoreMessage] = []
        while data := self.socket.recv(65536):
            messages += self._decoder.feed(data)
        self._thread.join(PATIENCE)
        self.socket.close()
        return messages, self.code


def test_it_ends_when_the_front_end_says_so(tiny_model_dir: Path, tmp_path: Path) -> None:
    served = Served(tmp_path, config_for(tiny_model_dir))
    served.socket.sendall(encode_frame(request("a", max_tokens=200)) + encode_frame(Shutdown()))
    messages, code = served.end()
    assert isinstance(messages[0], Ready)
    assert code == 0


def test_it_ends_when_the_front_end_is_gone(
    tiny_model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(tmp_path, config_for(tiny_model_dir))
    served.socket.sendall(encode_frame(request("a", max_tokens=200)))
    served.socket.shutdown(socket.SHUT_WR)
    with caplog.at_level("INFO"):
        assert served.end()[1] == 0
    assert "the front end is gone" in caplog.text


def test_what_is_no_message_is_fatal(tiny_model_dir: Path, tmp_path: Path) -> None:
    served = Served(tmp_path, config_for(tiny_model_dir))
    served.socket.sendall(b"\x00\x00\x00\x02\xc1\xc1")
    messages, code = served.end()
    fatal = messages[-1]
    assert isinstance(fatal, Fatal)
    assert "no message" in fatal.message
    assert code == fatal.exit_code != 0


def test_a_step_that_fails_is_fatal_with_the_stack_in_the_log(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warm_up = ModelRunner.warm_up

    def warm_up_then_break(runner: ModelRunner, largest: LargestSteps) -> float:
        seconds = warm_up(runner, largest)
        monkeypatch.setattr(runner, "prepare", lambda seqs: seqs.nothing)
        return seconds

    monkeypatch.setattr(ModelRunner, "warm_up", warm_up_then_break)
    served = Served(tmp_path, config_for(tiny_model_dir))
    served.socket.sendall(encode_frame(request("a")))
    messages, code = served.end()
    fatal = messages[-1]
    assert isinstance(fatal, Fatal)
    assert "a step of the engine failed: AttributeError" in fatal.message
    assert code == fatal.exit_code != 0
    assert "Traceback" in caplog.text
    assert "llm.py" in caplog.text


@pytest.mark.parametrize(
    ("folder", "flags", "code", "words"),
    [
        ("nothing", {}, EXIT_MODEL_NOT_FOUND, "there is nothing at"),
        ("empty", {}, EXIT_MODEL_INVALID, "no config.json"),
        ("tiny", {"max_model_len": 513}, EXIT_CONFIG, "at most 512 tokens"),
        ("tiny", {"kv_cache_memory": "64Ki", "max_model_len": 512}, EXIT_CONFIG, "holds 128 tokens"),
        ("tiny", {"kv_cache_memory": "100Ti"}, EXIT_CONFIG, "MiB are free"),
        ("tiny", None, EXIT_CONFIG, "is not valid"),
    ],
)
def test_what_cannot_start_says_why_with_the_code_for_it(
    tiny_model_dir: Path, tmp_path: Path, folder: str, flags: dict[str, object] | None, code: int, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    model = tiny_model_dir if folder == "tiny" else tmp_path / folder
    served = Served(tmp_path, "{}" if flags is None else config_for(model, **flags))
    messages, got = served.end()
    assert len(messages) == 1
    fatal = messages[0]
    assert isinstance(fatal, Fatal)
    assert words in fatal.message
    assert fatal.exit_code == got == code


def test_it_dies_with_its_parent(tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config_for(tiny_model_dir))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        listener.settimeout(PATIENCE)
        parent = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import subprocess, sys, time\n"
                "subprocess.Popen([sys.executable, '-m', 'paceline_runtime.core', '--socket', sys.argv[1], '--config', "
                "sys.argv[2]])\ntime.sleep(600)",
                str(tmp_path / "s"),
                str(tmp_path / "config.json"),
            ],
            stderr=subprocess.DEVNULL,
        )
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE)
            parent.kill()
            parent.wait()
            while connection.recv(65536):
                pass  # ends when the core's end is closed, which only its death does
