"""A tiny model with a real tokenizer; the front end in this process against an engine that follows a script; and whole
replicas as processes.

The script stands in for the engine where a test needs what a healthy engine never does: a fault in the middle, half a
character as the last token, a stop string in a known place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import uvicorn
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline_crds.runtime_config import RuntimeParameters
from paceline_runtime.config import resolve
from paceline_runtime.engine.knobs import in_effect, tuned
from paceline_runtime.engine.limits import SchedulerLimits, limits_of
from paceline_runtime.messages import (
    Abort,
    AddRequest,
    CoreMessage,
    EffectiveValue,
    EngineStats,
    FinishReason,
    FrontMessage,
    ModelFacts,
    Ready,
    StepOutputs,
    TokenOutput,
    Tune,
    Tuned,
    encode_frame,
    front_decoder,
)
from paceline_runtime.server.app import create_app
from paceline_runtime.server.engine_client import EngineClient
from paceline_runtime.server.http_protocol import BoundedHttpProtocol
from paceline_runtime.server.metrics import Metrics
from paceline_runtime.server.replica import Replica, ServerOptions
from paceline_runtime.server.tokenizer import Tokenizer as PacelineTokenizer
from paceline_runtime.server.tokenizer import load_tokenizer

MAX_MODEL_LEN = 256
STARTED = RuntimeParameters(max_model_len=MAX_MODEL_LEN)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ raise_exception('this model knows no tools') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog while seven wizards make toxic brew",
    "user assistant system stop token answer question Paris is the capital of France",
    "über straße naïve café 日本語 テスト 🎉 one two three four five six seven eight nine ten",
]


def _tiny_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [
        AddedToken(token, normalized=False, special=True) for token in ("<|end|>", "<|im_start|>", "<|im_end|>")
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        show_progress=False,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with two thin layers and random weights, as a safetensors folder with tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tokenizer = _tiny_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
        )
    )
    vocab, hidden, heads, kv_heads, ffn, layers = tokenizer.get_vocab_size(), 32, 4, 2, 64, 2
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "hidden_act": "silu",
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "bos_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(7)

    def weight(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    tensors = {"model.embed_tokens.weight": weight(vocab, hidden), "model.norm.weight": np.ones(hidden, np.float32)}
    kv = hidden // heads * kv_heads
    for n in range(layers):
        prefix = f"model.layers.{n}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": np.ones(hidden, np.float32),
            f"{prefix}.post_attention_layernorm.weight": np.ones(hidden, np.float32),
            f"{prefix}.self_attn.q_proj.weight": weight(hidden, hidden),
            f"{prefix}.self_attn.k_proj.weight": weight(kv, hidden),
            f"{prefix}.self_attn.v_proj.weight": weight(kv, hidden),
            f"{prefix}.self_attn.o_proj.weight": weight(hidden, hidden),
            f"{prefix}.mlp.gate_proj.weight": weight(ffn, hidden),
            f"{prefix}.mlp.up_proj.weight": weight(ffn, hidden),
            f"{prefix}.mlp.down_proj.weight": weight(hidden, ffn),
        }
    save_file(tensors, folder / "model.safetensors")
    return folder


# --- the front end against a scripted engine ---

Script = Callable[["ScriptedCore", AddRequest], Any]


@dataclass
class ScriptedCore:
    """The engine's end of the socket. `script` is run as a task for each request that comes.

    Attributes:
        probes: tests of life that came; they, aborts and other knobs are answered at once, unless it is `deaf`.
        more_stats: what its reports say besides the least.
    """

    vocab_size: int
    eos: int
    encode: Callable[[str], list[int]]
    script: Script
    requests: list[AddRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    probes: list[AddRequest] = field(default_factory=list)
    deaf: bool = False
    more_stats: dict[str, Any] = field(default_factory=dict)
    limits: SchedulerLimits = field(default_factory=lambda: limits_of(STARTED, 64))
    open: set[str] = field(default_factory=set)
    step: int = 0
    writer: asyncio.StreamWriter | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, path: Path) -> None:
        reader, self.writer = await asyncio.open_unix_connection(str(path))
        self.send(self.ready())
        self.send(StepOutputs([], self.stats()))
        decoder = front_decoder()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for message in decoder.feed(data):
                    self.handle(message)

    def handle(self, message: FrontMessage) -> None:
        if isinstance(message, AddRequest) and message.probe:
            self.probes.append(message)
            if not self.deaf:
                self.output(message, [5], FinishReason.LENGTH)
        elif isinstance(message, AddRequest):
            self.requests.append(message)
            self.open |= {message.request_id, *message.fork_ids}
            task = asyncio.ensure_future(self.script(self, message))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif isinstance(message, Abort):
            self.aborted += message.request_ids
            self.open -= set(message.request_ids)
            if not self.deaf:
                self.send(StepOutputs([], self.stats()))
        elif isinstance(message, Tune) and not self.deaf:
            try:
                self.limits = tuned(STARTED, self.limits, message.knobs)
                self.send(Tuned(in_effect(self.limits)))
            except ValueError as error:
                self.send(Tuned(in_effect(self.limits), str(error)))

    def ready(self) -> Ready:
        knobs = in_effect(limits_of(STARTED, 64))
        parameters = {
            "maxModelLen": EffectiveValue(MAX_MODEL_LEN, "flag"),
            "numBlocks": EffectiveValue(64, "measured"),
            **{name: EffectiveValue(value, "default") for name, value in knobs.items()},
        }
        facts = ModelFacts(
            digest="sha256:0",
            path="",
            architecture="LlamaForCausalLM",
            vocab_size=self.vocab_size,
            max_position=512,
            parameters=1,
            eos_token_ids=[self.eos],
            bos_token_id=None,
        )
        return Ready(
            parameters=parameters, model=facts, dtype="float32", device="cpu", load_seconds=0.5, warmup_seconds=0.01
        )

    def stats(self) -> EngineStats:
        self.step += 1
        counts = dict.fromkeys(
            (
                *("waiting", "prefill_tokens", "decode_tokens", "preemptions_total", "prefix_query_tokens_total"),
                *("prefix_hit_tokens_total", "prompt_tokens_total", "generation_tokens_total"),
            ),
            0,
        )
        held = len(self.open)
        state = {"sequence": self.step, "step": self.step, "running": held, "kv_blocks_used": held}
        return EngineStats(**{**counts, **state, "kv_blocks_total": 64, **self.more_stats})

    def send(self, message: CoreMessage) -> None:
        assert self.writer is not None
        if not self.writer.is_closing():
            self.writer.write(encode_frame(message))

    def output(
        self,
        request: AddRequest,
        token_ids: list[int],
        finish: FinishReason | None = None,
        *,
        choice: int = 0,
        **more: Any,
    ) -> None:
        """One step's output of one answer to a request."""
        request_id = (request.request_id, *request.fork_ids)[choice]
        if finish is not None:
            self.open.discard(request_id)
        output = TokenOutput(request_id=request_id, new_token_ids=token_ids, finish_reason=finish, **more)
        self.send(StepOutputs([output], self.stats()))

    async def say(self, request: AddRequest, text: str, *, pause: float = 0.0, choice: int = 0) -> None:
        """Answer with `text`, a token per step, and end it as the model would; `max_tokens` is kept."""
        request_id = (request.request_id, *request.fork_ids)[choice]
        for made, token_id in enumerate(self.encode(text), 1):
            if request_id not in self.open:
                return
            last = made == request.sampling.max_tokens
            self.output(request, [token_id], FinishReason.LENGTH if last else None, choice=choice)
            if last:
                return
            await asyncio.sleep(pause)
        if request_id in self.open:
            self.output(request, [self.eos], FinishReason.STOP, stop_token_id=self.eos, choice=choice)


@dataclass
class Front:
    """The front end, listening on a port of this machine."""

    replica: Replica
    core: ScriptedCore
    url: str
    http: httpx.AsyncClient
    sdk: openai.AsyncOpenAI


FrontFactory = Callable[..., contextlib.AbstractAsyncContextManager[Front]]


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_folder: Path) -> PacelineTokenizer:
    """The tiny model's tokenizer."""
    return load_tokenizer(tiny_folder)


@pytest.fixture
def front_end(tiny_folder: Path, tiny_tokenizer: PacelineTokenizer) -> FrontFactory:
    """`async with front_end(script) as front`: the real front end, over HTTP, with an engine that follows `script`.

    `template` is another chat template for the tiny model, `specials` further control tokens that it may use.
    """

    @contextlib.asynccontextmanager
    async def make(
        script: Script | None = None, *, template: str | None = None, specials: Sequence[str] = (), **options: Any
    ) -> AsyncIterator[Front]:
        async def hello(core: ScriptedCore, request: AddRequest) -> None:
            await core.say(request, "the quick brown fox")

        tokenizer = tiny_tokenizer
        if template is not None:
            backend = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
            tokenizer = PacelineTokenizer(backend, chat_template=template, special_tokens={})
        config = resolve(source=str(tiny_folder), served_name="org/tiny", environ={})
        metrics = Metrics("org/tiny")
        engine = EngineClient(metrics.engine_stats)
        replica = Replica(config, ServerOptions(**options), engine, metrics, pool_hash="pool1234")
        core = ScriptedCore(
            vocab_size=tokenizer.vocab_size,
            eos=tokenizer.encode("<|im_end|>")[0],
            encode=tokenizer.encode,
            script=script or hello,
        )
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(replica),
                http=BoundedHttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
            )
        )
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        with tempfile.TemporaryDirectory(prefix="paceline-test-") as folder:
            path = Path(folder) / "core.sock"
            await engine.listen(path)
            running = asyncio.create_task(core.run(path))
            replica.serve(tokenizer, await engine.ready)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with (
                httpx.AsyncClient(base_url=url, timeout=20, verify=False) as http,
                openai.AsyncOpenAI(
                    base_url=f"{url}/v1",
                    api_key="none",
                    max_retries=0,
                    http_client=openai.DefaultAsyncHttpxClient(verify=False),  # reading certificates takes long
                ) as sdk,
            ):
                yield Front(replica, core, url, http, sdk)
            server.should_exit = True
            await serving
            engine.close()
            for task in list(core.tasks):
                task.cancel()
            if core.writer is not None:
                core.writer.close()
            await running
        listener.close()

    return make


# --- whole replicas ---


@dataclass
class ReplicaProcess:
    """`python -m paceline_runtime` with a real engine."""

    process: subprocess.Popen[str]
    url: str
    errors: Path

    @property
    def core_pid(self) -> int:
        """Process id of the engine core."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def client(self) -> openai.OpenAI:
        """The SDK, without retries of its own."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def load(self) -> dict[str, int]:
        """`GET /v1/paceline/load`."""
        return httpx.get(f"{self.url}/v1/paceline/load", timeout=10).raise_for_status().json()

    def wait(self, seconds: float = 30) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def said(self) -> str:
        """Everything on stderr."""
        return self.errors.read_text()


ReplicaFactory = Callable[..., ReplicaProcess]


@pytest.fixture(scope="session")
def start_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaFactory]:
    """Start a replica and wait until it is ready (or, with `until=None`, not at all)."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *arguments: str, env: dict[str, str] | None = None, until: str | None = "ready:", patience: float = 240
    ) -> ReplicaProcess:
        errors = tmp_path_factory.mktemp("replica") / "stderr"
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "paceline_runtime", *arguments, "--host", "127.0.0.1", "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )
        started.append(process)
        replica = ReplicaProcess(process, "", errors)
        if until is None:
            return replica
        assert process.stdout is not None
        timer = threading.Timer(patience, process.kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        assert line.startswith(until), f"it said {line!r} and {replica.said()[-2000:]}"
        replica.url = line.split(" at ")[1].split("/v1")[0]
        return replica

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def tiny_replica(
    start_replica: ReplicaFactory, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> ReplicaProcess:
    """A replica of the tiny model that a module's tests share, started as in a pod."""
    spec = {"maxModelLen": 256, "maxNumSeqs": 32, "maxBatchedTokens": 64, "prefillChunkTokens": 32}
    config = {
        "model": {"source": tiny_folder.as_uri(), "servedName": "tiny"},
        "parameters": {**spec, "blockSize": 16, "kvCacheMemory": "4Mi", "prefixCaching": True},
        "origins": {
            **dict.fromkeys(spec, "spec"),
            "blockSize": "default",
            "kvCacheMemory": "pool",
            "prefixCaching": "default",
        },
    }
    file = tmp_path_factory.mktemp("config") / "config.json"
    file.write_text(json.dumps(config))
    return start_replica(
        "--config", str(file), "--liveness-timeout", "5s",
        env={"PACELINE_POOL_HASH": "pool1234", "PACELINE_MAX_NUM_SEQS": "8"},
    )  # fmt: skip


async def _eventually(check: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError("it did not become so in time")
        await asyncio.sleep(0.02)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Wait until a condition holds."""
    return _eventually
