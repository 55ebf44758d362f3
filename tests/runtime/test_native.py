"""The native kernels: equal to the PyTorch reference, and the same bits however a step is put together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from paceline_runtime.model.checkpoint import Checkpoint
from paceline_runtime.model.linear import Linear
from paceline_runtime.model.runner import ModelRunner, SequenceInput
from paceline_runtime.model.source import ModelInvalid
from paceline_runtime.model.spec import ModelSpec, from_hf_config
from paceline_runtime.native.build import ISA_FLAGS, NativeUnavailable, pick_isa

BLOCKS = 48


class RandomCheckpoint(Checkpoint):
    """Random weights of any shape; the same ones for the same name."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    def has(self, name: str) -> bool:
        return True

    def read(self, name: str) -> torch.Tensor:
        raise ModelInvalid(name)

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(map(ord, name)) * 31 + len(name))
        value = torch.randn(shape, generator=generator)
        if name.endswith("bias"):
            return value * 0.3
        return 1 + 0.2 * value if len(shape) == 1 else value / shape[1] ** 0.5


def make_spec(**options: Any) -> ModelSpec:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        **options,
    }
    return from_hf_config(config, {})


def make_runner(
    spec: ModelSpec,
    *,
    block_size: int = 16,
    blocks: int = BLOCKS,
    weight_dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype = torch.float32,
) -> ModelRunner:
    runner = ModelRunner(
        RandomCheckpoint(spec),
        device=torch.device("cpu"),
        dtype=torch.float32,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        block_size=block_size,
        max_model_len=spec.max_position,
    )
    runner.allocate_cache(blocks)
    return runner


@pytest.fixture(params=list(ISA_FLAGS))
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PACELINE_NATIVE_ISA", request.param)
    try:
        return pick_isa()
    except NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def reference(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, **options: Any) -> ModelRunner:
    with monkeypatch.context() as patch:
        patch.setenv("PACELINE_NATIVE", "0")
        runner = make_runner(spec, **options)
    assert runner.kernels == "torch"
    return runner


def scattered(lengths: list[int], block_size: int, blocks: int) -> list[list[int]]:
    """Blocks for sequences of these lengths, from all over the cache."""
    order = list(range(blocks))
    random.Random(5).shuffle(order)
    return [[order.pop() for _ in range(-(-length // block_size))] for length in lengths]


def rows(runner: ModelRunner, seqs: list[SequenceInput]) -> torch.Tensor:
    return runner.forward(runner.prepare(seqs))


SHAPES = {
    "plain": {},
    "heads-of-8-one-shared": {"head_dim": 8, "num_attention_heads": 8, "num_key_value_heads": 1, "hidden_size": 50},
    "heads-of-32-none-shared": {"head_dim": 32, "num_key_value_heads": 4, "vocab_size": 128},
    "heads-of-64-by-three": {"head_dim": 64, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576},
    "heads-of-80": {"head_dim": 80, "hidden_size": 320, "intermediate_size": 333},
    "heads-of-96-by-five": {"head_dim": 96, "num_attention_heads": 5, "num_key_value_heads": 1},
    "heads-of-128-by-seven": {"head_dim": 128, "num_attention_heads": 14, "num_key_value_heads": 2},
    "heads-of-256": {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1},
    "more-heads-than-rows-of-a-tile": {"head_dim": 8, "num_attention_heads": 50, "num_key_value_heads": 1},
    "biases-and-own-head": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "odd-sizes": {"hidden_size": 43, "intermediate_size": 61, "vocab_size": 33, "mlp_bias": True},
    "long-sums": {"intermediate_size": 2500, "hidden_size": 72},
}


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_the_reference(
    isa: str, monkeypatch: pytest.MonkeyPatch, shape: str, weight_dtype: torch.dtype
) -> None:
    spec = make_spec(**SHAPES[shape])
    source = random.Random(2)
    block_size = source.choice([8, 16, 24, 32, 64, 128])
    lengths = [1, 300, 7, 40]
    table = scattered(lengths, block_size, 64)
    prompts = [[source.randrange(spec.vocab_size) for _ in range(length)] for length in lengths]
    native = make_runner(spec, block_size=block_size, blocks=64, weight_dtype=weight_dtype)
    assert native.kernels == f"native-{isa}"
    torch_runner = reference(spec, monkeypatch, block_size=block_size, blocks=64, weight_dtype=weight_dtype)
    assert native.model.num_parameters == torch_runner.model.num_parameters
    closeness = 2e-5
    if isa == "avx512bf16" and weight_dtype is torch.bfloat16:
        # Such a processor rounds what it multiplies with the weights, too. A sum that differs in its last bit may be
        # rounded to the next number, so there is less to hold it to.
        product = Linear.__call__
        monkeypatch.setattr(Linear, "__call__", lambda self, x: product(self, x.bfloat16().float()))
        closeness = 5e-3
    steps = [
        [
            SequenceInput(prompt, 0, blocks, len(prompt))
            for prompt, blocks in zip(prompts[1:3], table[1:3], strict=True)
        ],
        [
            SequenceInput(prompts[0], 0, table[0], 1),
            SequenceInput([3], 250, table[1], 1),
            SequenceInput(prompts[3][:30], 0, table[3], 0),
        ],
        [SequenceInput(prompts[3][30:], 30, table[3], 3), SequenceInput([4], 251, table[1], 0)],
    ]
    for step in steps:
        got, want = rows(native, step), rows(torch_runner, step)
        assert got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=1e-5, atol=closeness * float(want.abs().max()))


EIGHT_BITS = pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])


@EIGHT_BITS
@pytest.mark.parametrize("shape", ["plain", "heads-of-8-one-shared", "heads-of-64-by-three", "heads-of-80"])
def test_an_8_bit_cache_has_the_codes_and_scales_of_the_reference(
    isa: str, monkeypatch: pytest.MonkeyPatch, shape: str, kept: torch.dtype
) -> None:
    spec, length, blocks = make_spec(**SHAPES[shape]), 70, [5, 2, 9, 7, 1]
    native = make_runner(spec, kv_dtype=kept)
    torch_runner = reference(spec, monkeypatch, kv_dtype=kept)
    step = [SequenceInput([(7 * i) % spec.vocab_size for i in range(length)], 0, blocks, 1)]
    # Of all layers but the first the inputs differ by what a code that was rounded the other way made of them.
    got, want = rows(native, step), rows(torch_runner, step)
    torch.testing.assert_close(got, want, rtol=0, atol=0.02 * float(want.abs().max()))
    key, value, *scales = native.kv_cache[0]
    # [blocks, heads, head_dim, block_size] or [blocks, heads, block_size, head_dim] → [tokens, heads, head_dim].
    found = (key.permute(0, 3, 1, 2), value.permute(0, 2, 1, 3), *(scale.permute(0, 2, 1) for scale in scales))
    codes: list[torch.Tensor] = []
    for ours, theirs in zip(found, torch_runner.kv_cache[0], strict=True):
        a, b = (t[blocks].flatten(0, 1)[:length].contiguous() for t in (ours, theirs))
        if a.dtype == torch.float32:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=0)
        else:
            codes.append((a != b).flatten())
            numbers = [t.view(kept).float() for t in (a, b)]
            step_size = numbers[1].abs() / 8 + 2.0**-9 if kept is torch.float8_e4m3fn else torch.tensor(1.0)
            assert ((numbers[0] - numbers[1]).abs() <= step_size).all()
    assert torch.cat(codes).float().mean() < 1e-3


@EIGHT_BITS
def test_a_number_that_is_none_shows_through_an_8_bit_cache(isa: str, kept: torch.dtype) -> None:
    runner = make_runner(make_spec(), kv_dtype=kept)
    rows(runner, [SequenceInput([5, 6, 7], 0, [3], 0)])
    for place in (2, 3):
        assert torch.isfinite(rows(runner, [SequenceInput([8], 3, [3], 1)])).all()
        good = runner.kv_cache[0][place][3, 0, 1].clone()
        runner.kv_cache[0][place][3, 0, 1] = float("nan")
        assert rows(runner, [SequenceInput([8], 3, [3], 1)]).isnan().all()
        runner.kv_cache[0][place][3, 0, 1] = good


KINDS: dict[str, dict[str, torch.dtype]] = {
    "f32": {},
    "bf16": {"weight_dtype": torch.bfloat16},
    "int8 cache": {"kv_dtype": torch.int8},
    "fp8 cache": {"kv_dtype": torch.float8_e4m3fn},
}


@pytest.mark.parametrize(
    ("count", "kind"),
    [*((count, kind) for count in (1, 2, 4) for kind in ("f32", "bf16")), (2, "int8 cache"), (2, "fp8 cache")],
)
def test_a_row_has_the_same_bits_whatever_is_computed_with_it(isa: str, threads: None, count: int, kind: str) -> None:
    source = random.Random(3)
    spec = make_spec(
        hidden_size=90,
        intermediate_size=1100,
        head_dim=40 if kind == "bf16" else 48,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=301,
    )
    torch.set_num_threads(1)
    runner = make_runner(spec, blocks=128, **KINDS[kind])
    lengths = [1, 2, 17, 140, 300, 33, 64, 5, 129, 80]
    prompts = [[source.randrange(spec.vocab_size) for _ in range(length)] for length in lengths]
    table = scattered(lengths, 16, 128)
    # Each alone and token by token: there is no other row anywhere.
    alone = [
        torch.cat([rows(runner, [SequenceInput([token], i, blocks, 1)]) for i, token in enumerate(prompt)])
        for prompt, blocks in zip(prompts, table, strict=True)
    ]
    torch.set_num_threads(count)
    for _ in range(6):
        for part in runner.kv_cache[0]:  # nothing may be read before it is written
            part.fill_(float("nan") if part.is_floating_point() else 0x7F)
        done = [0] * len(prompts)
        got: list[list[torch.Tensor]] = [[] for _ in prompts]
        while any(at < len(prompt) for at, prompt in zip(done, prompts, strict=True)):
            ready = [i for i, prompt in enumerate(prompts) if done[i] < len(prompt)]
            chosen = source.sample(ready, source.randint(1, len(ready)))
            chunks = [min(source.choice([1, 1, 3, 16, 50, 300]), len(prompts[i]) - done[i]) for i in chosen]
            wanted = [source.choice([chunk, chunk, 1, 0]) for chunk in chunks]
            step = [
                SequenceInput(prompts[i][done[i] : done[i] + chunk], done[i], table[i], want)
                for i, chunk, want in zip(chosen, chunks, wanted, strict=True)
            ]
            for i, chunk, want, part in zip(chosen, chunks, wanted, rows(runner, step).split(wanted), strict=True):
                assert torch.equal(part, alone[i][done[i] + chunk - want : done[i] + chunk]), (i, done[i], chunk)
                got[i].append(part)
                done[i] += chunk
        assert sum(len(part) for parts in got for part in parts) > 100


def test_a_step_that_wants_no_logits_leaves_keys_and_values_of_every_layer(isa: str) -> None:
    runner = make_runner(make_spec())
    prompt = [5, 6, 7, 8]
    want = rows(runner, [SequenceInput(prompt, 0, [3], 1)])
    for i, token in enumerate(prompt[:3]):
        for key, value in runner.kv_cache:
            key[7, ..., i] = float("nan")
            value[7, :, i] = float("nan")
        assert rows(runner, [SequenceInput([token], i, [7], 0)]).shape == (0, 97)
    assert torch.equal(rows(runner, [SequenceInput(prompt[3:], 3, [7], 1)]), want)


def test_copied_blocks_are_the_same_context(isa: str) -> None:
    spec = make_spec()
    runner = make_runner(spec)
    prompt = list(range(40))
    rows(runner, [SequenceInput(prompt, 0, [3, 9, 4], 1)])
    want = rows(runner, [SequenceInput([50], 40, [3, 9, 4], 1)])
    for key, value in runner.kv_cache:
        assert key.is_contiguous()
        assert value.is_contiguous()
        key[[20, 21, 22]] = key[[3, 9, 4]]
        value[[20, 21, 22]] = value[[3, 9, 4]]
        key[[3, 9, 4]] = 7.0
    assert torch.equal(rows(runner, [SequenceInput([50], 40, [20, 21, 22], 1)]), want)


@pytest.mark.parametrize("vocab", [33, 64, 301])
def test_the_likeliest_token_is_that_of_the_logits_and_of_equals_the_lowest(
    isa: str, threads: None, monkeypatch: pytest.MonkeyPatch, vocab: int
) -> None:
    torch.set_num_threads(2)
    runner = make_runner(make_spec(vocab_size=vocab), blocks=64)
    prompts = [[(7 * i + j) % vocab for j in range(i % 30 + 1)] for i in range(30)]
    step = [SequenceInput(prompt, 0, [2 * i, 2 * i + 1], len(prompt)) for i, prompt in enumerate(prompts)]
    logits = rows(runner, step)
    found = runner.greedy_tokens(runner.prepare(step))
    assert found == list(zip(logits.argmax(-1).tolist(), logits.max(-1).values.tolist(), strict=True))

    def alike(checkpoint: RandomCheckpoint, name: str, *shape: int) -> torch.Tensor:
        value = torch.full(shape, 0.25)
        if name == "lm_head.weight":
            value[:5] = -1.0
            value[vocab - 3 :] = 0.5
        return value

    monkeypatch.setattr(RandomCheckpoint, "tensor", alike)
    equal = make_runner(make_spec(vocab_size=vocab, tie_word_embeddings=False))
    assert [token for token, _ in equal.greedy_tokens(equal.prepare([SequenceInput([1], 0, [0], 1)]))] == [vocab - 3]
    for broken in (0, vocab - 1):

        def nan(checkpoint: RandomCheckpoint, name: str, *shape: int, at: int = broken) -> torch.Tensor:
            value = alike(checkpoint, name, *shape)
            if name == "lm_head.weight":
                value[at, 0] = float("nan")
            return value

        monkeypatch.setattr(RandomCheckpoint, "tensor", nan)
        runner = make_runner(make_spec(vocab_size=vocab, tie_word_embeddings=False))
        assert [str(x) for _, x in runner.greedy_tokens(runner.prepare([SequenceInput([1], 0, [0], 1)]))] == ["nan"]


@pytest.mark.parametrize(
    ("seq", "words"),
    [
        (SequenceInput([97], 0, [0], 1), "outside the vocabulary"),
        (SequenceInput([-1], 0, [0], 1), "outside the vocabulary"),
        (SequenceInput([], 0, [0], 0), "no new token"),
        (SequenceInput([1], 1024, list(range(65)), 1), "behind the longest position"),
        (SequenceInput([1], 0, [0], 2), "more logits"),
        (SequenceInput([1] * 17, 0, [0], 1), "fewer blocks"),
        (SequenceInput([1], 0, [BLOCKS], 1), "outside the cache"),
    ],
)
def test_input_that_would_reach_outside_is_refused(seq: SequenceInput, words: str) -> None:
    runner = make_runner(make_spec())
    with pytest.raises(ValueError, match=words):
        rows(runner, [SequenceInput([5], 0, [1], 1), seq])
    assert len(rows(runner, [SequenceInput([5], 0, [1], 1)])) == 1


def test_the_cache_is_memory_that_is_really_there() -> None:
    runner = make_runner(make_spec())

    def resident() -> int:
        with open("/proc/self/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Rss:")) * 1024

    before, blocks = resident(), 16384
    runner.allocate_cache(blocks)
    size = sum(key.nbytes + value.nbytes for key, value in runner.kv_cache)
    assert size == blocks * 16 * runner.model.spec.kv_bytes_per_token(4)
    assert resident() - before > 0.9 * size


def test_other_block_sizes_are_left_to_the_reference(caplog: pytest.LogCaptureFixture) -> None:
    runner = make_runner(make_spec(), block_size=12)
    assert runner.kernels == "torch"
    assert "the block size is 12, no multiple of 8" in caplog.text
