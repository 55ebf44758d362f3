"""A GGUF file: quantised blocks expanded to float32, names and row order put back to those of safetensors."""

from __future__ import annotations

import math
import struct
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from .checkpoint import Checkpoint
from .rope import RopeSpec
from .source import ModelFiles, ModelInvalid
from .spec import ModelSpec

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MERGED_ROWS = 64

_ROPE_FACTORS = "rope_freqs.weight"


def gguf_name(name: str) -> str:
    """The name in a GGUF file of a tensor of a safetensors checkpoint."""
    if name in _TOP:
        return _TOP[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_IN_LAYER[module]}.{kind}"


def unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the row order that GGUF's Llama files have in the query and key weights.

    There, the two halves of a head are interleaved, because llama.cpp rotates neighbouring pairs.
    """
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """The library's reader without what makes it slow here: a view for each of a vocabulary's 100,000 strings."""

    @property
    def data(self) -> NDArray[np.uint8]:
        """The file's bytes, as a plain array: slicing a `memmap` costs ten times as much."""
        return self._data

    @data.setter
    def data(self, value: NDArray[np.uint8]) -> None:
        self._data = value.view(np.ndarray)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        array, string = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING
        if raw_type != array or self._get(orig_offs, np.uint32)[0] != string:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        # The tokeniser's words are the front end's business: step over them.
        (count,) = self._get(orig_offs + 4, np.uint64)
        order = ">" if self.endianess == gguf.GGUFEndian.BIG else "<"
        view: memoryview = self._data.data
        length, end = struct.Struct(order + "Q"), orig_offs + 12
        for _ in range(int(count)):
            end += length.size + length.unpack_from(view, end)[0]
        return end - orig_offs, [self._data[orig_offs:end]], [], [array, string]


class GGUFCheckpoint(Checkpoint):
    """Tensors are mapped from the file and expanded when asked for."""

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        try:
            self._reader = _Reader(files.path)
        except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
            raise ModelInvalid(f"the GGUF file {files.path.name} cannot be read: {error}") from error
        self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in self._reader.tensors}
        name = self._field("general.architecture")
        if name not in _ARCHITECTURES:
            raise ModelInvalid(
                f"the GGUF architecture {name!r} is not supported; supported are {', '.join(sorted(_ARCHITECTURES))}"
            )
        self._name = str(name)
        self.spec = self._spec()

    def has(self, name: str) -> bool:
        return gguf_name(name) in self._tensors

    def read(self, name: str) -> torch.Tensor:
        tensor = self._tensors.get(gguf_name(name))
        if tensor is None:
            raise ModelInvalid(f"the weights have no tensor {gguf_name(name)}")
        value = self._expand(tensor)
        if self._name == "llama":
            if ".q_proj." in name:
                value = unpermute(value, self.spec.num_heads)
            elif ".k_proj." in name:
                value = unpermute(value, self.spec.num_kv_heads)
        return value

    def _expand(self, tensor: Any) -> torch.Tensor:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        try:
            # The library works in groups of 16 rows; longer rows make fewer and faster groups.
            rows = tensor.data.reshape(-1, tensor.data.shape[-1])
            rows = rows.reshape(rows.shape[0] // math.gcd(rows.shape[0], MERGED_ROWS), -1)
            values = gguf.quants.dequantize(rows, tensor.tensor_type)
            return torch.from_numpy(np.array(values, dtype=np.float32).reshape(shape))
        except NotImplementedError as error:
            kind = gguf.GGMLQuantizationType(tensor.tensor_type).name
            raise ModelInvalid(f"the tensor {tensor.name} is quantised as {kind}, which is not supported") from error
        except ValueError as error:
            raise ModelInvalid(f"the tensor {tensor.name} is damaged: {error}") from error

    def _field(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def _whole(self, key: str, default: int | None = None) -> int:
        value = self._field(f"{self._name}.{key}", default)
        if not isinstance(value, int) or value < 1:
            raise ModelInvalid(f"the GGUF field {self._name}.{key} is {value!r}; it has to be a positive whole number")
        return value

    def _spec(self) -> ModelSpec:
        heads = self._whole("attention.head_count")
        hidden = self._whole("embedding_length")
        head_dim = self._whole("attention.key_length", hidden // heads)
        if self._whole("rope.dimension_count", head_dim) != head_dim:
            raise ModelInvalid("partial rotary embedding is not supported")
        if self._field(f"{self._name}.expert_count"):
            raise ModelInvalid("mixture-of-experts models are not supported yet")
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelInvalid("the weights have no tensor token_embd.weight")
        ids = [self._field(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
        return ModelSpec(
            architecture=_ARCHITECTURES[self._name],
            vocab_size=int(embedding.shape[1]),
            hidden_size=hidden,
            intermediate_size=self._whole("feed_forward_length"),
            num_layers=self._whole("block_count"),
            num_heads=heads,
            num_kv_heads=self._whole("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_position=self._whole("context_length"),
            rms_norm_eps=float(self._field(f"{self._name}.attention.layer_norm_rms_epsilon", 1e-5)),
            rope=self._rope(),
            tied_embeddings="output.weight" not in self._tensors,
            qkv_bias="blk.0.attn_q.bias" in self._tensors,
            output_bias="blk.0.attn_output.bias" in self._tensors,
            mlp_bias="blk.0.ffn_up.bias" in self._tensors,
            eos_token_ids=tuple(sorted({int(value) for value in ids if value is not None})),
            bos_token_id=self._field("tokenizer.ggml.bos_token_id"),
        )

    def _rope(self) -> RopeSpec:
        prefix = f"{self._name}.rope"
        kind = str(self._field(f"{prefix}.scaling.type", "none"))
        if kind not in ("none", "linear", "yarn"):
            raise ModelInvalid(f"RoPE scaling {kind!r} is not supported; supported are linear and yarn")
        factors = self._tensors.get(_ROPE_FACTORS)
        return RopeSpec(
            theta=float(self._field(f"{prefix}.freq_base", 10000.0)),
            kind="default" if kind == "none" else kind,
            factor=float(self._field(f"{prefix}.scaling.factor", 1.0)),
            original_max_position=int(
                self._field(f"{prefix}.scaling.original_context_length", self._whole("context_length"))
            ),
            factors=() if factors is None else tuple(self._expand(factors).flatten().tolist()),
        )
