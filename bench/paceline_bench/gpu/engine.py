"""The whole engine on the device beside the engine on the CPU: the same requests, the same tokens in float32."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .models import SMALL, write_small
from .record import Record

NEW_TOKENS = 24
FLAGS = {
    "max_model_len": 512,
    "kv_cache_memory": "64Mi",
    "max_batched_tokens": 256,
    "prefill_chunk_tokens": 128,
    "max_num_seqs": 16,
}
"""Small enough that prompts are cut, and steps have both prompts and decodes."""


@dataclass(frozen=True, slots=True)
class Made:
    """What an engine made.

    Attributes:
        tokens: of each request, greedily.
        drawn: of each request, drawn with a seed.
        phases: of each step of decodes only, seconds by name.
        rate: tokens a second of the greedy answers, made once more: all is compiled by then, and prompts are cached.
        device: what the engine ran on.
    """

    tokens: list[list[int]]
    drawn: list[list[int]]
    phases: list[dict[str, float]]
    rate: float
    device: str


def prompts(count: int) -> list[list[int]]:
    """Random prompts of all lengths, some with a beginning in common."""
    chance = random.Random(7)
    shared = [chance.randrange(3, SMALL["vocab_size"]) for _ in range(64)]
    made = []
    for number in range(count):
        ids = [chance.randrange(3, SMALL["vocab_size"]) for _ in range(chance.choice((1, 15, 16, 17, 40, 130, 300)))]
        made.append(shared + ids if number % 4 == 0 else ids)
    return made


def generate(model: Path, count: int, dtype: str, *, ahead: bool = True) -> Made:
    """Run the engine of this process on `count` prompts, greedily, then with draws.

    Args:
        dtype: `float32` or `bfloat16`.
        ahead: give the device steps ahead.
    """
    import msgspec

    from paceline_crds.runtime_config import WeightType
    from paceline_runtime.config import resolve
    from paceline_runtime.engine.llm import LLMEngine
    from paceline_runtime.messages import AddRequest, SamplingParams

    flags = {**FLAGS, "dtype": WeightType[dtype.upper()]}
    engine = LLMEngine(resolve(source=model.as_uri(), flags=flags, environ={}), schedule_ahead=ahead)
    phases: list[dict[str, float]] = []

    def answers(sampling: Callable[[int], SamplingParams]) -> list[list[int]]:
        for number, ids in enumerate(prompts(count)):
            now = time.monotonic()
            engine.add_request(
                AddRequest(request_id=str(number), prompt_token_ids=ids, sampling=sampling(number), arrival_time=now)
            )
        tokens: list[list[int]] = [[] for _ in range(count)]
        while not engine.idle:
            outputs = engine.step()
            if outputs is None:
                continue
            for output in outputs.outputs:
                tokens[int(output.request_id)] += output.new_token_ids
            stats = outputs.stats
            if stats.phases is not None and stats.batch_tokens == stats.batch_seqs:
                phases.append(msgspec.to_builtins(stats.phases))
        return tokens

    likeliest = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    greedy = answers(lambda number: likeliest)
    steps = list(phases)
    started = time.monotonic()
    answers(lambda number: likeliest)
    rate = count * NEW_TOKENS / (time.monotonic() - started)
    drawn = answers(
        # Every other one from all tokens, the others from a part of them: they are drawn in different orders.
        lambda number: SamplingParams(
            max_tokens=NEW_TOKENS, temperature=0.8, top_p=(1.0, 0.9)[number % 2], seed=number, ignore_eos=True
        )
    )
    return Made(greedy, drawn, steps, rate, f"{engine.ready.device}, {engine.ready.parameters['kernels'].value}")


def run(record: Record) -> None:
    """Tokens of the engine on the device and on the CPU, and the anatomy of its steps."""
    count = 24 if record.measuring else 4
    with tempfile.TemporaryDirectory() as folder:
        model = write_small(Path(folder) / "model")
        on_cpu = _start_on_cpu(model, count, Path(folder) / "cpu.json")
        made = generate(model, count, "float32")
        wanted = on_cpu()
        same, drawn = _same(made.tokens, wanted["greedy"]), _same(made.drawn, wanted["drawn"])
        record.check("tokens float32", same == count, f"{same} of {count} answers are the CPU's ({made.device})")
        # A draw within rounding of a border between two tokens may fall on either side.
        record.check("drawn tokens float32", drawn >= count - 1, f"{drawn} of {count} answers are the CPU's")
        if not record.measuring:
            return
        record.figure("same_answers", same, "answers", dtype="float32", of=count)
        record.figure("same_answers", drawn, "answers", dtype="float32", of=count, drawn=True)
        made = generate(model, count, "bfloat16")
        record.figure("same_answers", _same(made.tokens, wanted["greedy"]), "answers", dtype="bfloat16", of=count)
        record.figure("engine_rate", made.rate, "tokens/s", dtype="bfloat16", model="small", ahead=True)
        waited = generate(model, count, "bfloat16", ahead=False)
        record.figure("engine_rate", waited.rate, "tokens/s", dtype="bfloat16", model="small", ahead=False)
        steps = made.phases[len(made.phases) // 4 :]
        for phase in steps[0] if steps else ():
            value = median(step[phase] for step in steps) * 1e6
            record.figure("step_phase", value, "us", phase=phase, dtype="bfloat16", model="small", steps=len(steps))


def _same(tokens: Sequence[list[int]], wanted: Sequence[list[int]]) -> int:
    return sum(a == b for a, b in zip(tokens, wanted, strict=True))


def _start_on_cpu(model: Path, count: int, out: Path) -> Callable[[], dict[str, list[list[int]]]]:
    """The same by an engine that sees no GPU, with PyTorch's kernels (a machine may have no compiler), meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline_bench.gpu.engine", str(model), str(count), str(out)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PACELINE_NATIVE": "0"},
    )

    def tokens() -> dict[str, list[list[int]]]:
        if code := process.wait():
            raise RuntimeError(f"the engine on the CPU ended with {code}")
        made: dict[str, list[list[int]]] = json.loads(out.read_text())
        return made

    return tokens


if __name__ == "__main__":
    _made = generate(Path(sys.argv[1]), int(sys.argv[2]), "float32")
    Path(sys.argv[3]).write_text(json.dumps({"greedy": _made.tokens, "drawn": _made.drawn}))
