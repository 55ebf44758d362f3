"""The Llama network on the native CPU kernels: a step is one call, which holds no lock of the interpreter."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import prod

import torch

from paceline_runtime.native.library import BF16, F32, KEPT_E4M3, KEPT_F32, KEPT_INT8, Cache, Library, Shape, Step

from . import weight_cache
from .checkpoint import Checkpoint, digest
from .host_memory import allocate, reserve
from .inputs import SequenceInput
from .packed_weights import PackedLayout, pack, pointers
from .rope import RotaryTable
from .spec import ModelSpec

_WRONG = {
    1: "a token id is outside the vocabulary",
    2: "a sequence has no new token, or one behind the longest position",
    3: "more logits are asked for than there are new tokens",
    4: "a sequence has fewer blocks than its tokens need",
    5: "a block is outside the cache",
}
_NO_MEMORY = 6
_KEPT = {torch.float32: KEPT_F32, torch.int8: KEPT_INT8, torch.float8_e4m3fn: KEPT_E4M3}


def unsupported(spec: ModelSpec, block_size: int) -> str | None:
    """Why the kernels cannot run this network; `None` if they can."""
    if spec.head_dim % 8:
        return f"its heads have {spec.head_dim} elements, no multiple of 8"
    if block_size % 8 or not 8 <= block_size <= 128:
        return f"the block size is {block_size}, no multiple of 8 from 8 to 128"
    return None


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    memory = allocate(prod(shape) * dtype.itemsize)
    reserve(memory)
    return memory.view(dtype).view(shape)


def _weights(checkpoint: Checkpoint, layout: PackedLayout, library: Library) -> tuple[torch.Tensor, int]:
    """The packed weights, and how many bytes of them are pages of a file."""

    def fill(memory: torch.Tensor) -> None:
        pack(memory, checkpoint, layout, library)

    files = checkpoint.files
    if files is not None and layout.nbytes >= weight_cache.MIN_BYTES and weight_cache.enabled():
        kept = weight_cache.load_or_fill(layout, library, digest(files), fill)
        if kept is not None:
            return kept, layout.nbytes
    memory = allocate(layout.nbytes)
    fill(memory)
    return memory, 0


@dataclass(frozen=True, slots=True)
class NativeStep:
    """One step's input as flat arrays, `int32` each (`Step` in `native/src/llama.h`); it asks for `rows` logits."""

    token_ids: array[int]
    query_start: array[int]
    positions: array[int]
    block_start: array[int]
    blocks: array[int]
    num_logits: array[int]
    rows: int


class NativeLlama:
    """Weights, rotary table and cache, all on the CPU; activations and sums in float32.

    Args:
        kv_dtype: of the cache: float32, int8 or `float8_e4m3fn`.

    Attributes:
        mapped_bytes: of the weights, those that are pages of a file; the system counts them as memory that it could
            take back, and yet every step needs them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        library: Library,
        *,
        weight_dtype: torch.dtype,
        kv_dtype: torch.dtype,
        block_size: int,
        max_position: int,
    ) -> None:
        self.spec = spec = checkpoint.spec
        self._library, self._block_size, self._kv_dtype = library, block_size, kv_dtype
        self._cache: list[tuple[torch.Tensor, ...]] = []
        self._layout = layout = PackedLayout(spec, weight_dtype, library.lanes)
        self.num_parameters = layout.num_parameters
        self._memory, self.mapped_bytes = _weights(checkpoint, layout, library)
        self._rotary = RotaryTable(spec.rope, spec.head_dim, max_position, torch.device("cpu"))
        shape = Shape(
            vocab=spec.vocab_size,
            hidden=spec.hidden_size,
            intermediate=spec.intermediate_size,
            layers=spec.num_layers,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=block_size,
            max_position=max_position,
            weights=BF16 if weight_dtype is torch.bfloat16 else F32,
            kept=_KEPT[kv_dtype],
            eps=spec.rms_norm_eps,
        )
        self._model = library.functions.paceline_create(
            ctypes.byref(shape),
            pointers(self._memory, layout),
            self._rotary.cos.data_ptr(),
            self._rotary.sin.data_ptr(),
        )
        weakref.finalize(self, library.functions.paceline_destroy, self._model)

    def allocate_cache(self, num_blocks: int) -> list[tuple[torch.Tensor, ...]]:
        """Keys [blocks, kv_heads, head_dim, block_size] and values [blocks, kv_heads, block_size, head_dim] by layer.

        In 8 bits as bytes, and with the scales of both [blocks, kv_heads, block_size], float32. With bfloat16 weights
        the cache stays float32 unless it is asked for otherwise: rounding it would change tokens that the weights do
        not.
        """
        spec, size = self.spec, self._block_size
        quantised = self._kv_dtype is not torch.float32
        shape = (num_blocks, spec.num_kv_heads, spec.head_dim, size)
        self._cache = [
            (key.view(shape), value.view(num_blocks, spec.num_kv_heads, size, spec.head_dim))
            for key, value in _zeros((spec.num_layers, 2, prod(shape)), torch.uint8 if quantised else torch.float32)
        ]
        if quantised:
            scales = _zeros((spec.num_layers, 2, num_blocks, spec.num_kv_heads, size), torch.float32)
            self._cache = [(*layer, *own) for layer, own in zip(self._cache, scales, strict=True)]
        layers = [Cache(*(tensor.data_ptr() for tensor in layer)) for layer in self._cache]
        self._library.functions.paceline_set_cache(self._model, (Cache * len(layers))(*layers), num_blocks)
        return self._cache

    def prepare(self, seqs: Sequence[SequenceInput]) -> NativeStep:
        """The flat arrays for one step of these sequences."""
        num_logits = array("i", [seq.num_logits for seq in seqs])
        # By far the most numbers, of which one list at a time is read fastest.
        blocks = array("i")
        for seq in seqs:
            blocks.fromlist(seq.blocks)
        return NativeStep(
            token_ids=array("i", chain.from_iterable([seq.tokens for seq in seqs])),
            query_start=array("i", accumulate([len(seq.tokens) for seq in seqs], initial=0)),
            positions=array("i", [seq.start for seq in seqs]),
            block_start=array("i", accumulate([len(seq.blocks) for seq in seqs], initial=0)),
            blocks=blocks,
            num_logits=num_logits,
            rows=sum(num_logits),
        )

    def forward(self, step: NativeStep) -> torch.Tensor:
        """Logits [R, vocab], float32.

        Raises:
            ValueError: if the step asks for what is not there; nothing is computed then.
        """
        out = torch.empty((step.rows, self.spec.vocab_size), dtype=torch.float32)
        self._run(step, out=out.data_ptr())
        return out

    def launch_greedy(self, step: NativeStep) -> Callable[[], list[tuple[int, float]]]:
        """For each row of logits its highest and the lowest token that has it; NaN if any of them is. Done at once.

        Raises:
            ValueError: as `forward`.
        """
        tokens, logits = array("i", bytes(4 * step.rows)), array("f", bytes(4 * step.rows))
        self._run(step, best_tokens=tokens.buffer_info()[0], best_logits=logits.buffer_info()[0])
        result = list(zip(tokens, logits, strict=True))
        return lambda: result

    def _run(self, step: NativeStep, **results: int) -> None:
        wrong = self._library.functions.paceline_forward(
            self._model,
            Step(
                tokens=len(step.token_ids),
                seqs=len(step.positions),
                logits=step.rows,
                threads=torch.get_num_threads(),
                token_ids=step.token_ids.buffer_info()[0],
                query_start=step.query_start.buffer_info()[0],
                positions=step.positions.buffer_info()[0],
                block_start=step.block_start.buffer_info()[0],
                blocks=step.blocks.buffer_info()[0],
                num_logits=step.num_logits.buffer_info()[0],
                **results,
            ),
        )
        if wrong == _NO_MEMORY:
            raise MemoryError(f"there is no memory for a step of {len(step.token_ids)} tokens")
        if wrong:
            raise ValueError(_WRONG[wrong])
