"""Runs the model on a device: picks the kernels, holds the KV cache, warms up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from paceline_crds.runtime_config import KVQuantization, WeightType
from paceline_runtime.messages import SamplingParams
from paceline_runtime.native import NativeUnavailable, load

from .checkpoint import Checkpoint
from .device.graphs import cuda_graphs
from .device.memory import CudaProbe, LargestSteps, MemoryProbe, MemoryProfile, profile_memory
from .inputs import SequenceInput
from .native_llama import NativeLlama, NativeStep, unsupported
from .sampling import Draws, SamplingState, sample
from .source import ModelInvalid
from .torch_llama import TorchLlama, TorchStep

__all__ = ["ModelRunner", "SequenceInput", "StepInput", "kv_type", "pick_device"]

log = logging.getLogger(__name__)

StepInput = NativeStep | TorchStep
"""One step, as the kernels take it."""
_EVERYTHING = SamplingParams(temperature=0.8, top_p=0.95, presence_penalty=0.5, logprobs=20)
"""What makes the sampler take most memory."""


def pick_device(asked: WeightType = WeightType.AUTO) -> tuple[torch.device, torch.dtype]:
    """A GPU where there is one (bfloat16, unless float32 is asked for), else the CPU (float32: exact)."""
    if torch.cuda.is_available():
        exact = asked is WeightType.FLOAT32
        return torch.device("cuda", 0), torch.float32 if exact else torch.bfloat16
    return torch.device("cpu"), torch.float32


def kv_type(asked: KVQuantization, activations: torch.dtype) -> torch.dtype:
    """In which type keys and values are kept."""
    match asked:
        case KVQuantization.NONE:
            return activations
        case KVQuantization.FP8:
            return torch.float8_e4m3fn
        case KVQuantization.INT8:
            return torch.int8


class ModelRunner:
    """The model with its cache. Not thread-safe.

    Args:
        dtype: of activations.
        kv_dtype: of the cache: int8 or `float8_e4m3fn`; `dtype` where absent.
        weight_dtype: of the matrices; `dtype` where absent. On the CPU bfloat16 halves the memory of the weights, and
            nearly the time of small batches; sums stay float32.
        graphs: capture decode steps, where the device can.

    Attributes:
        kernels: what runs the network: `native-avx512bf16`, `native-avx512`, `native-avx2`, `torch` or, on a GPU,
            `triton`.
        overlaps: the device works beside the host: a launch returns before its work is done.
        kv_cache: keys and values of each layer, and scales where they are kept in 8 bits: contiguous, the block's
            number first; what is inside a block is the kernels' own affair. Empty before `allocate_cache`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        block_size: int,
        max_model_len: int,
        weight_dtype: torch.dtype | None = None,
        kv_dtype: torch.dtype | None = None,
        graphs: bool = True,
    ) -> None:
        self.device, self.dtype = device, dtype
        self.weight_dtype, self.kv_dtype = weight_dtype or dtype, kv_dtype or dtype
        self.overlaps = device.type == "cuda"
        self.block_size, self.num_blocks = block_size, 0
        self.kv_cache: list[tuple[torch.Tensor, ...]] = []
        self.model: NativeLlama | TorchLlama
        try:
            if device.type != "cpu" or dtype is not torch.float32:
                raise NativeUnavailable(f"the kernels are for float32 on a CPU, not {dtype} on {device.type}")
            if reason := unsupported(checkpoint.spec, block_size):
                raise NativeUnavailable(reason)
            library = load()
        except NativeUnavailable as error:
            if device.type == "cpu":
                log.warning("the native kernels do not serve this model: %s; PyTorch does, more slowly", error)
            self.kernels = "triton" if device.type == "cuda" else "torch"
            self.model = TorchLlama(
                checkpoint,
                device=device,
                dtype=dtype,
                weight_dtype=self.weight_dtype,
                kv_dtype=self.kv_dtype,
                block_size=block_size,
                max_position=max_model_len,
                graphs=cuda_graphs if graphs and device.type == "cuda" else None,
            )
        else:
            self.kernels = f"native-{library.isa}"
            self.model = NativeLlama(
                checkpoint,
                library,
                weight_dtype=self.weight_dtype,
                kv_dtype=self.kv_dtype,
                block_size=block_size,
                max_position=max_model_len,
            )

    def allocate_cache(self, num_blocks: int) -> None:
        """Make the KV cache. Call once, before any step."""
        self.kv_cache = self.model.allocate_cache(num_blocks)
        self.num_blocks = num_blocks

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the weights that are pages of a file.

        The system counts them as memory that it could take back; who plans with what is available has to take them off.
        """
        return self.model.mapped_bytes

    @property
    def device_name(self) -> str:
        """`cpu`, or what the GPU calls itself."""
        return "cpu" if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)

    def prepare(self, seqs: list[SequenceInput]) -> StepInput:
        """The input of one step of these sequences."""
        return self.model.prepare(seqs)

    def prepare_next(self, seqs: list[SequenceInput], follows: list[int]) -> StepInput:
        """The input of a step whose tokens the one launched just before it has yet to make; only where it `overlaps`.

        Args:
            seqs: with one new token each, whatever it says.
            follows: of each, the row of logits that its token comes from. That step chooses its tokens itself.
        """
        return self.model.prepare(seqs, follows)  # type: ignore[call-arg]  # a model that overlaps takes it

    def forward(self, step: StepInput) -> torch.Tensor:
        """Logits [R, vocab] (float32): of each sequence in order, the rows of its last `num_logits` new tokens.

        On a GPU they are there once the device has done its work, and good until the next step.
        """
        return self.model.forward(step)  # type: ignore[arg-type]  # a step comes from this model's own `prepare`

    def launch_greedy(self, step: StepInput) -> Callable[[], list[tuple[int, float]]]:
        """In place of `forward` where only the likeliest tokens are wanted: of each row the token and its logit.

        What comes back waits for the device and gives them; until it is called there is time for other work. Of equal
        logits the lowest token counts; the logit is NaN if any of the row is. The native kernels then write no logits
        at all.
        """
        return self.model.launch_greedy(step)  # type: ignore[arg-type]  # as in `forward`

    def launch_draws(self, step: StepInput, draws: Draws) -> Callable[[], list[tuple[int, float]]]:
        """In place of `forward` where the device draws the tokens itself: of each row the token and its highest logit.

        As `launch_greedy`; only where the device `overlaps`.
        """
        return self.model.launch_draws(step, draws)  # type: ignore[union-attr, arg-type]  # a model that overlaps has it

    def greedy_tokens(self, step: StepInput) -> list[tuple[int, float]]:
        """`launch_greedy`, and wait for it."""
        return self.launch_greedy(step)()

    def warm_up(self, largest: LargestSteps) -> float:
        """Run the largest prompt chunk and the largest batch of decodes, on a GPU also a whole step's budget of chunks.

        There the decode steps are captured, too. Kernels are then compiled and loaded in every form that a step may ask
        for, and a GPU's memory for the largest step is known to be there. The cache may hold nothing yet: its blocks
        are written over.

        Returns:
            Seconds it took.

        Raises:
            ModelInvalid: what the model computes of a prompt is no number.
        """
        started = time.monotonic()
        if isinstance(self.model, TorchLlama):
            self.model.reserve(largest)
        self._run_largest(largest)
        if isinstance(self.model, TorchLlama):
            self.model.run_each_form()
            self.model.capture(self.model.sizes_to_capture(largest.max_num_seqs))
            self.synchronize()
        return time.monotonic() - started

    def profile_memory(self, largest: LargestSteps, probe: MemoryProbe | None = None) -> MemoryProfile | None:
        """What the model takes of its device, and what that leaves for the cache; `None` on a CPU.

        Call before `allocate_cache`. Runs the largest steps over a small cache, which is let go again.

        Args:
            probe: reads the memory, in place of the device's own.

        Raises:
            ModelInvalid: as `warm_up`.
        """
        model = self.model
        if not isinstance(model, TorchLlama) or (probe is None and self.device.type != "cuda"):
            return None

        model.reserve(largest)
        chunk = min(largest.chunk_tokens, largest.max_model_len)
        profile = profile_memory(
            probe or CudaProbe(self.device),
            scratch=lambda: self.allocate_cache(-(-chunk // self.block_size)),
            largest_steps=lambda: self._run_largest(largest),
            capture=model.capture,
            sizes=model.sizes_to_capture(largest.max_num_seqs),
        )
        self.kv_cache, self.num_blocks = [], 0
        model.release_cache()
        return profile

    def _run_largest(self, largest: LargestSteps) -> None:
        capacity = self.num_blocks * self.block_size
        chunk = min(largest.chunk_tokens, largest.max_model_len, capacity)
        context = max(min(largest.max_model_len, capacity // largest.max_num_seqs), 1)
        blocks = list(range(-(-max(chunk, context) // self.block_size)))
        # On a CPU another chunk in the step adds seconds to the start and nothing that could fail later.
        chunks = (
            1 if self.device.type == "cpu" else min(max(largest.max_batched_tokens // chunk, 1), largest.max_num_seqs)
        )
        prompts = [SequenceInput([0] * chunk, 0, blocks, 1)] * chunks
        for seqs in (prompts, [SequenceInput([0], context - 1, blocks, 1)] * largest.max_num_seqs):
            logits = self.forward(self.prepare(seqs))
            self.synchronize()
            if seqs is not prompts and isinstance(self.model, TorchLlama):
                # What the general sampler needs beside the logits is on their device.
                vocab = self.model.spec.vocab_size
                sample(logits, [SamplingState(_EVERYTHING, 0, (0,), (), vocab) for _ in seqs])
            if seqs is prompts and not bool(torch.isfinite(logits).all()):
                # The decodes read blocks that nothing was written to, so they prove nothing.
                raise ModelInvalid(
                    "the model's output is not a number (NaN or infinite): its weights are damaged, or too large for "
                    f"{self.dtype}; fetch the files anew"
                )

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
