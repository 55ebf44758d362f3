"""All weights of a network in one piece of memory, in the layout of the native kernels, and nowhere else.

A weight [rows, columns] is kept as panels [rows / width][columns][width] (`native/src/gemm.h`), so a product reads
memory from end to end at any batch size. A tied embedding is the output matrix: look-ups read columns of its panels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch

from paceline_runtime.native.library import BF16, F32, Library

from .checkpoint import Checkpoint
from .spec import ModelSpec

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector."""

_KINDS = {torch.float32: F32, torch.bfloat16: BF16}

LAYOUT_VERSION = 1
"""Raised whenever the same weights come out as other bytes."""


class Form(StrEnum):
    """How a part lies in memory."""

    VECTOR = "vector"  # float32, padded to whole panels
    PANELS = "panels"
    ROWS = "rows"  # as in the checkpoint


@dataclass(frozen=True, slots=True)
class Part:
    """Tensors of the checkpoint that lie together.

    Attributes:
        form: the layout.
        sources: (name, rows), one below the other; with `paired` two, whose rows take turns by vectors.
        columns: inputs of a matrix; 1 for vectors.
        offset: bytes from the start.
        nbytes: bytes.
    """

    form: Form
    sources: tuple[tuple[str, int], ...]
    columns: int
    paired: bool
    offset: int
    nbytes: int


class PackedLayout:
    """Where everything lies, for a network, a type of weights and a width of vectors.

    Attributes:
        parts: in the order in which `paceline_create` takes them; `None` for what the network has not.
        nbytes: size of the whole.
    """

    def __init__(self, spec: ModelSpec, weight_dtype: torch.dtype, lanes: int) -> None:
        self.spec, self.weight_dtype, self.lanes = spec, weight_dtype, lanes
        self.nbytes = 0
        self.parts: list[Part | None] = list(self._parts())
        self.num_parameters = sum(
            rows * part.columns for part in self.parts if part is not None for _, rows in part.sources
        )

    def _parts(self) -> Iterator[Part | None]:
        spec = self.spec
        hidden, inner = spec.hidden_size, spec.intermediate_size
        q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        for index in range(spec.num_layers):
            at = f"model.layers.{index}."
            attention, mlp = at + "self_attn.", at + "mlp."
            yield self._vector((at + "input_layernorm.weight", hidden))
            yield from self._linear(
                hidden, spec.qkv_bias, (attention + "q_proj", q), (attention + "k_proj", kv), (attention + "v_proj", kv)
            )
            yield from self._linear(q, spec.output_bias, (attention + "o_proj", hidden))
            yield self._vector((at + "post_attention_layernorm.weight", hidden))
            yield from self._linear(
                hidden, spec.mlp_bias, (mlp + "gate_proj", inner), (mlp + "up_proj", inner), paired=True
            )
            yield from self._linear(inner, spec.mlp_bias, (mlp + "down_proj", hidden))
        yield self._vector(("model.norm.weight", hidden))
        if spec.tied_embeddings:
            yield from self._linear(hidden, False, ("model.embed_tokens", spec.vocab_size))
            yield None
        else:
            yield from self._linear(hidden, False, ("lm_head", spec.vocab_size))
            yield self._part(
                Form.ROWS,
                (("model.embed_tokens.weight", spec.vocab_size),),
                hidden,
                False,
                spec.vocab_size * hidden * self.weight_dtype.itemsize,
            )

    def _linear(
        self, columns: int, bias: bool, *modules: tuple[str, int], paired: bool = False
    ) -> Iterator[Part | None]:
        padded = self._padded(tuple(rows for _, rows in modules), paired)
        weights = tuple((f"{name}.weight", rows) for name, rows in modules)
        yield self._part(Form.PANELS, weights, columns, paired, padded * columns * self.weight_dtype.itemsize)
        yield self._vector(*((f"{name}.bias", rows) for name, rows in modules), paired=paired) if bias else None

    def _vector(self, *sources: tuple[str, int], paired: bool = False) -> Part:
        return self._part(Form.VECTOR, sources, 1, paired, 4 * self._padded(tuple(rows for _, rows in sources), paired))

    def _padded(self, rows: tuple[int, ...], paired: bool) -> int:
        """Columns of the product with padding: whole panels, and whole vectors of each of a pair."""
        panel = 2 * self.lanes
        return -(-rows[0] // self.lanes) * panel if paired else -(-sum(rows) // panel) * panel

    def _part(self, form: Form, sources: tuple[tuple[str, int], ...], columns: int, paired: bool, nbytes: int) -> Part:
        offset = self.nbytes
        self.nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return Part(form, sources, columns, paired, offset, nbytes)


def pack(memory: torch.Tensor, checkpoint: Checkpoint, layout: PackedLayout, library: Library) -> None:
    """Read a checkpoint tensor by tensor into zeroed memory, uint8 [layout.nbytes].

    Raises:
        ModelInvalid: if a tensor is not there, damaged or of another shape.
    """
    for part in layout.parts:
        if part is not None:
            _fill(memory[part.offset : part.offset + part.nbytes], part, checkpoint, layout, library)


def _fill(memory: torch.Tensor, part: Part, checkpoint: Checkpoint, layout: PackedLayout, library: Library) -> None:
    first = 0
    for index, (name, rows) in enumerate(part.sources):
        shape = (rows,) if part.form is Form.VECTOR else (rows, part.columns)
        value = checkpoint.tensor(name, *shape)
        if part.form is Form.ROWS:
            memory.view(layout.weight_dtype).view(shape).copy_(value)
            continue
        value = value.to(dtype=torch.float32).contiguous()
        if part.form is Form.PANELS:
            library.functions.paceline_pack(
                value.data_ptr(),
                rows,
                part.columns,
                index if part.paired else first,
                part.paired,
                _KINDS[layout.weight_dtype],
                memory.data_ptr(),
                torch.get_num_threads(),
            )
        elif part.paired:
            halves = memory.view(torch.float32).view(-1, 2, layout.lanes)[:, index]
            halves[: rows // layout.lanes] = value[: rows // layout.lanes * layout.lanes].view(-1, layout.lanes)
            if rows % layout.lanes:
                halves[-1, : rows % layout.lanes] = value[rows // layout.lanes * layout.lanes :]
        else:
            memory.view(torch.float32)[first : first + rows] = value
        first += rows


def pointers(memory: torch.Tensor, layout: PackedLayout) -> ctypes.Array[ctypes.c_void_p]:
    """Addresses of the parts, null for those that are not there."""
    base = memory.data_ptr()
    found = [None if part is None else base + part.offset for part in layout.parts]
    return (ctypes.c_void_p * len(found))(*found)
