"""The Llama network in PyTorch with its cache: what runs on a GPU, and on a CPU the reference for the native kernels.

A step is prepared on the host, and then run: nothing in between waits for the device. Decode steps may be captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from paceline_runtime.kernels.interface import QUANTISED, KVCache, select
from paceline_runtime.kernels.plan import AttentionPlan, AttentionShape, plan_attention
from paceline_runtime.kernels.tiling import check_heads, choose_splits, decode_tile

from .checkpoint import Checkpoint
from .device.block_rows import BlockRows
from .device.buckets import bucket_sizes
from .device.graphs import Capture, DecodeGraphs, Results, Run
from .device.memory import LargestSteps
from .device.readback import Awaited, read_back
from .device.staging import Bundle, Staging, draw_bytes, row_bytes, step_bytes
from .device.step_arrays import StepArrays, is_decode, step_arrays
from .inputs import SequenceInput
from .llama import LlamaModel
from .sampling import Draws
from .source import ModelInvalid
from .spec import ModelSpec


@dataclass(frozen=True, slots=True)
class _Rows:
    bundle: Bundle
    numbers: torch.Tensor


@dataclass(frozen=True, slots=True)
class TorchStep:
    """One step: its inputs, and where they will be on the device.

    Attributes:
        size: of the captured step that runs it; `None` if none does.
        follows: of each sequence, the row of the step before whose token it goes on with; `None` where the tokens are
            known.
        rows: of logits that are asked for; those of padded places come behind them.
    """

    bundle: Bundle
    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    logit_rows: torch.Tensor
    plan: AttentionPlan
    size: int | None
    rows: int
    follows: _Rows | None = None


class TorchLlama:
    """Weights and cache on one device; activations in `dtype`.

    Args:
        kv_dtype: of the cache: `dtype`, int8 or `float8_e4m3fn`.
        graphs: how decode steps are captured; not at all where absent.

    Raises:
        ModelInvalid: the kernels of the device do not take this network.
    """

    mapped_bytes = 0

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        weight_dtype: torch.dtype,
        kv_dtype: torch.dtype,
        block_size: int,
        max_position: int,
        graphs: Callable[[], Capture] | None = None,
    ) -> None:
        self.spec = checkpoint.spec
        self._device, self._kv_dtype, self._block_size = device, kv_dtype, block_size
        self._table_width = -(-max_position // block_size)
        self._shape, self._processors = _attention_shape(checkpoint, device, dtype)
        self._kernels = select(device)
        self._model = LlamaModel(
            checkpoint,
            self._kernels,
            device=device,
            dtype=dtype,
            weight_dtype=weight_dtype,
            max_position=max_position,
        )
        self.num_parameters = self._model.num_parameters
        self._cache: list[KVCache] = []
        self._staging, self._draws_staging, self._rows_staging = (Staging(device) for _ in range(3))
        self._most_rows = sys.maxsize  # of logits that the device holds at once
        self._made: torch.Tensor | None = None  # tokens of the last step's rows, on the device
        self._block_rows = BlockRows()
        self._graphs = DecodeGraphs(graphs) if graphs is not None else None

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """Batch sizes of the decode steps that are captured."""
        return self._graphs.sizes if self._graphs is not None else ()

    def allocate_cache(self, num_blocks: int) -> list[tuple[torch.Tensor, ...]]:
        """Keys and values [blocks, block_size, kv_heads, head_dim] of each layer.

        In 8 bits as bytes, and with the scales of both [blocks, block_size, kv_heads], float32.
        """
        shape = (num_blocks, self._block_size, self.spec.num_kv_heads, self.spec.head_dim)
        quantised = self._kv_dtype in QUANTISED

        def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            # Written, not merely reserved: memory that is not there should fail now, not under load.
            return torch.empty(shape, dtype=dtype, device=self._device).zero_()

        kept: list[tuple[torch.Tensor, ...]] = []
        for _ in range(self.spec.num_layers):
            layer = [zeros(shape, torch.uint8 if quantised else self._kv_dtype) for _ in range(2)]
            kept.append((*layer, *(zeros(shape[:3], torch.float32) for _ in range(2 if quantised else 0))))
        self._cache = [
            KVCache(key.view(self._kv_dtype), value.view(self._kv_dtype), *scales) for key, value, *scales in kept
        ]
        return kept

    def release_cache(self) -> None:
        """Let go of the cache, and of what was captured with it."""
        self._cache = []
        self.capture(())

    def reserve(self, largest: LargestSteps) -> None:
        """Set memory aside for the inputs of the largest step. Captured steps are let go: they have other addresses."""
        self.capture(())
        self._most_rows = largest.max_num_seqs
        seqs, tokens = largest.max_num_seqs, max(largest.max_batched_tokens, largest.max_num_seqs)
        self._staging.reserve(step_bytes(tokens=tokens, seqs=seqs, width=self._table_width, logits=tokens))
        self._draws_staging.reserve(draw_bytes(seqs))
        self._rows_staging.reserve(row_bytes(seqs))

    def sizes_to_capture(self, max_num_seqs: int) -> tuple[int, ...]:
        """Batch sizes for which decode steps should be captured; none where nothing is."""
        return bucket_sizes(max_num_seqs) if self._graphs is not None else ()

    def capture(self, sizes: Sequence[int]) -> None:
        """Capture decode steps of these batch sizes, in place of those before. Needs the cache."""
        if self._graphs is not None:
            self._graphs.capture(sizes, self._begin_captured)

    def prepare(self, seqs: Sequence[SequenceInput], follows: Sequence[int] | None = None) -> TorchStep:
        """One step of these sequences. At most two may be prepared that were not run yet.

        Args:
            follows: where the tokens are those that the step run just before it is to make: of each sequence, which has
                one new token, the row of logits. That step was launched with `launch_greedy` or `launch_draws`.
        """
        size = self._graphs.size_for(len(seqs)) if self._graphs is not None and is_decode(seqs) else None
        step = self._prepare(seqs, size)
        if follows is None:
            return step
        bundle = self._rows_staging.begin(row_bytes(len(seqs)))
        return replace(step, follows=_Rows(bundle, bundle.put(np.array(follows, dtype=np.int64))))

    def forward(self, step: TorchStep) -> torch.Tensor:
        """Logits [R, vocab], float32, on the device; good until the next step.

        More rows than there may be sequences come to the host instead: see `_in_pieces`.
        """
        if step.rows > self._most_rows:
            return self._in_pieces(step)
        logits, _ = self._run(step)
        return logits[: step.rows]

    def launch_greedy(self, step: TorchStep) -> Callable[[], list[tuple[int, float]]]:
        """Begin a step; what comes back waits for it, and gives the highest of each row of logits and its token.

        Of equal ones the lowest token counts; NaN if any of the row is.
        """
        _, best = self._run(step)
        self._made = best[1]
        return _pairs(read_back(best), step.rows)

    def launch_draws(self, step: TorchStep, draws: Draws) -> Callable[[], list[tuple[int, float]]]:
        """Begin a step; what comes back waits for it, and gives for each row of logits its token and the highest of it.

        The logits are written over.
        """
        logits, best = self._run(step)
        drawn = self._draw(logits[: step.rows], best[0, : step.rows], draws)
        self._made = drawn[1]
        return _pairs(read_back(drawn), step.rows)

    @torch.inference_mode()
    def _draw(self, logits: torch.Tensor, highest: torch.Tensor, draws: Draws) -> torch.Tensor:
        """The highest logits of all rows, and below them the tokens drawn: [2, R] float64."""
        bundle = self._draws_staging.begin(draw_bytes(len(highest)))
        temperature = bundle.put(draws.temperature)
        limits = [bundle.put(array) for array in (draws.top_k, draws.top_p, draws.min_p, draws.uniform)]
        bundle.send()
        scaled = logits.sub_(highest.to(logits.dtype).unsqueeze(1)).div_(temperature.unsqueeze(1))
        return torch.stack((highest, self._kernels.sample(scaled, *limits).double()))

    @torch.inference_mode()
    def _run(self, step: TorchStep) -> Results:
        step.bundle.send()
        if step.follows is not None:
            self._go_on(step.token_ids, step.follows)
        self._made = None
        if step.size is not None and self._graphs is not None:
            return self._graphs.replay(step.size, step.bundle)
        return self._compute(step)

    def _go_on(self, token_ids: torch.Tensor, follows: _Rows) -> None:
        """Put the tokens that the last step made where the next one reads its own."""
        if self._made is None:
            raise RuntimeError("a step goes on with tokens of one before it that made none")
        follows.bundle.send()
        # A row of logits that are no numbers may give any token; such a request ends, and its next step is nobody's.
        tokens = self._made.index_select(0, follows.numbers).clamp(0, self.spec.vocab_size - 1)
        token_ids[: len(tokens)].copy_(tokens)

    @torch.inference_mode()
    def _in_pieces(self, step: TorchStep) -> torch.Tensor:
        """Logits [R, vocab] in the host's memory, of which the device holds a piece at a time.

        For log-probabilities of prompts: those of a step may take gigabytes, for which no device has room set aside.
        The host waits for each piece.
        """
        step.bundle.send()
        self._made = None
        hidden = self._model.hidden(*self._inputs(step))
        logits = torch.empty((step.rows, self.spec.vocab_size), dtype=torch.float32)
        for start in range(0, step.rows, self._most_rows):
            rows = slice(start, start + self._most_rows)
            logits[rows].copy_(self._model.logits(hidden[rows]))
        return logits

    def _compute(self, step: TorchStep) -> Results:
        """Logits [R, vocab], and of each row the highest and its token as [2, R] float64, which holds both."""
        logits = self._model.forward(*self._inputs(step))
        best = logits.max(dim=-1)
        return logits, torch.stack((best.values.double(), best.indices.double()))

    def _inputs(
        self, step: TorchStep
    ) -> tuple[torch.Tensor, torch.Tensor, list[KVCache], torch.Tensor, AttentionPlan, torch.Tensor]:
        return step.token_ids, step.positions, self._cache, step.slot_mapping, step.plan, step.logit_rows

    @torch.inference_mode()
    def run_each_form(self) -> None:
        """Run once whatever a step may launch in one form or another: a GPU compiles a form when it is first launched.

        These are the attention of decodes, by how far their contexts are split, and the draw. Needs the cache, whose
        first place is written over.
        """
        step = self._prepare([SequenceInput([0], 0, [0], 1)], None)
        step.bundle.send()
        tile = decode_tile(self._shape.heads // self._shape.kv_heads, self._shape.head_dim, self._shape.element_bytes)
        longest = self._table_width * self._block_size
        splits = choose_splits(self._shape.kv_heads, longest, self._processors, tile.tokens)
        while splits:
            logits, best = self._compute(replace(step, plan=replace(step.plan, num_splits=splits)))
            splits //= 2
        self._draw(logits, best[0], Draws.greedy(1))

    @torch.inference_mode()
    def _begin_captured(self, size: int) -> tuple[Bundle, Run]:
        step = self._prepare((), size)
        return step.bundle, torch.inference_mode()(lambda: self._compute(step))

    def _prepare(self, seqs: Sequence[SequenceInput], size: int | None) -> TorchStep:
        width = None if size is None else self._table_width
        rows = self._block_rows.take([seq.blocks for seq in seqs])
        arrays = step_arrays(seqs, self._block_size, block_rows=rows, places=size, width=width)
        bundle = self._staging.begin(
            step_bytes(
                tokens=len(arrays.token_ids),
                seqs=len(arrays.seq_lens),
                width=arrays.block_table.shape[1],
                logits=len(arrays.logit_rows),
            )
        )
        return TorchStep(
            bundle=bundle,
            token_ids=bundle.put(arrays.token_ids),
            positions=bundle.put(arrays.positions),
            slot_mapping=bundle.put(arrays.slot_mapping),
            logit_rows=bundle.put(arrays.logit_rows),
            plan=self._plan(arrays, bundle, size),
            size=size,
            rows=sum(seq.num_logits for seq in seqs),
        )

    def _plan(self, arrays: StepArrays, bundle: Bundle, size: int | None) -> AttentionPlan:
        host_seq_lens = arrays.seq_lens
        if size is not None:
            # A captured step is cut up for the longest context that it may meet.
            host_seq_lens = host_seq_lens.copy()
            host_seq_lens[:] = self._table_width * self._block_size
        return plan_attention(
            bundle.put(arrays.block_table),
            bundle.put(arrays.seq_lens),
            bundle.put(arrays.query_start_loc),
            host_seq_lens=host_seq_lens,
            host_query_lens=arrays.query_lens,
            shape=self._shape,
            processors=self._processors,
            to_device=bundle.put,
        )


def _pairs(waiting: Awaited, rows: int) -> Callable[[], list[tuple[int, float]]]:
    """Token and logit of each row, of logits and tokens [2, R or more] that are on their way."""

    def result() -> list[tuple[int, float]]:
        logits, tokens = waiting()[:, :rows].tolist()
        return list(zip(map(int, tokens), logits, strict=True))

    return result


def check_heads_for(spec: ModelSpec, device: torch.device) -> None:
    """Test that the attention kernels of a device take a model's heads. The reference on a CPU takes any.

    Raises:
        ModelInvalid: they do not.
    """
    if device.type != "cuda":
        return
    try:
        check_heads(spec.num_heads, spec.num_kv_heads, spec.head_dim)
    except ValueError as error:
        raise ModelInvalid(
            f"the kernels on a GPU do not take this model: {error}; serve it on a CPU, or take another model"
        ) from error


def _attention_shape(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> tuple[AttentionShape, int]:
    """What the attention is cut up by: heads, and the device's multiprocessors."""
    spec = checkpoint.spec
    check_heads_for(spec, device)
    if device.type != "cuda":
        # The reference takes sequences whole, so its tiles are nobody's.
        return AttentionShape(1, 1, 64, dtype.itemsize), 1
    shape = AttentionShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, dtype.itemsize)
    return shape, torch.cuda.get_device_properties(device).multi_processor_count
