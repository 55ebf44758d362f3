"""SmolLM2 in float32: greedy tokens equal transformers' on the same file, one by one and together, cut in every way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from paceline_runtime.config import resolve
from paceline_runtime.engine.llm import LLMEngine
from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.source import locate

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

COUNT = 16
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True)

CHATS = [
    "What is the capital of France?",
    "Write one sentence about a lighthouse.",
    "List three prime numbers.",
    "Explain what a hash function is, in one sentence.",
    "Translate 'good morning' into Spanish.",
    "Wie heißt die Hauptstadt von Österreich, und wie groß ist sie?",
    "¿Cuál es el océano más grande del mundo?",
    "日本の首都はどこですか。",
    "Какая самая длинная река в Европе?",
    "ما هي عاصمة مصر؟",
    "Ποια είναι η πρωτεύουσα της Ελλάδας;",
    "Fix this: `def f(x): retrun x+1`",
    "😀🚀 What do these emoji mean? 👩‍🔬",
]
TEXTS = [
    "Once upon a time",
    "The",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8, 13,",
    "Naïve café owners in São Paulo — “quoted”, and … more",
    "\n\n",
    '{"name": "Alice", "age": 30, "city":',
    "SELECT name FROM users WHERE",
]
NOTE = (
    "Entry {n}: on day {n} the harbour master wrote that {m} boats had come in, that the wind had turned, and that the "
    "lamp on the north pier had been lit {k} minutes after sunset. "
)
# Each a little over 1,000 tokens.
LONG = [
    "".join(NOTE.format(n=n, m=n * 7 % 31, k=n * 13 % 59) for n in range(1, 24)) + "In short, the harbour master",
    "Zusammenfassung. " + "".join(f"Über Nr. {n}: Größe {n * 3} m², Straße {n}, geöffnet. " for n in range(1, 34)),
]

Requests = dict[str, tuple[list[int], SamplingParams]]


@pytest.fixture(scope="module")
def requests(smollm2_source: str) -> Requests:
    path = locate(smollm2_source).path
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for text in CHATS
    ]
    ids += [tokenizer(text)["input_ids"] for text in (*TEXTS, *LONG)]
    assert sum(len(prompt) > 1000 for prompt in ids) == len(LONG)
    assert len(ids) >= 20
    return {str(i): (prompt, GREEDY) for i, prompt in enumerate(ids)}


@pytest.fixture(scope="module")
def same_as_transformers(smollm2_reference: Any, requests: Requests) -> Callable[[str, list[int]], None]:
    """Asserts that transformers, too, would have made these tokens greedily for the request of this name.

    One forward pass over prompt and answer tells: if at each position the likeliest token after what stands before it
    is the one that follows, then generating one by one gives the same, by induction.
    """
    verdicts: dict[tuple[str, tuple[int, ...]], list[str]] = {}

    @torch.inference_mode()
    def differences(name: str, made: list[int]) -> list[str]:
        ids = torch.tensor([[*requests[name][0], *made[:-1]]])
        logits = smollm2_reference(input_ids=ids, use_cache=False, logits_to_keep=len(made)).logits[0]
        best = logits.argmax(dim=-1).tolist()
        return [
            f"token {i}: {ours}, but {theirs} in transformers, its logit {logits[i, theirs] - logits[i, ours]} higher"
            for i, (ours, theirs) in enumerate(zip(made, best, strict=True))
            if ours != theirs
        ]

    def check(name: str, made: list[int]) -> None:
        key = (name, tuple(made))
        if key not in verdicts:
            assert len(made) == COUNT
            verdicts[key] = differences(name, made)
        assert verdicts[key] == [], f"request {name}"

    return check


def make_engine(source: str, **flags: Any) -> LLMEngine:
    return LLMEngine(resolve(source=source, flags={"kv_cache_memory": "384Mi", **flags}, environ={}))


def tokens(outputs: list[Any]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


@pytest.mark.parametrize("native", ["1", "0"], ids=["native", "torch"])
def test_in_one_mixed_batch_cold_and_then_from_the_prefix_cache(
    native: str,
    monkeypatch: pytest.MonkeyPatch,
    smollm2_source: str,
    requests: Requests,
    same_as_transformers: Callable[[str, list[int]], None],
    run_engine: Callable[..., Any],
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", native)
    engine = make_engine(smollm2_source)
    cold = {name: tokens(outputs) for name, outputs in run_engine(engine, requests).items()}
    for name, made in cold.items():
        same_as_transformers(name, made)
    hot = run_engine(engine, requests)
    assert {name: tokens(outputs) for name, outputs in hot.items()} == cold
    assert sum(outputs[0].num_cached_tokens >= 1000 for outputs in hot.values()) == len(LONG)


def test_one_by_one_in_small_chunks_without_the_prefix_cache(
    smollm2_source: str,
    requests: Requests,
    same_as_transformers: Callable[[str, list[int]], None],
    run_engine: Callable[..., Any],
) -> None:
    engine = make_engine(smollm2_source, prefill_chunk_tokens=80, prefix_caching=False)
    for name, request in requests.items():
        same_as_transformers(name, tokens(run_engine(engine, {name: request})[name]))
    assert engine.stats().prefix_hit_tokens_total == 0
