"""Decode steps that are captured once for each batch size, and then replayed by one call.

A captured step reads and writes fixed addresses. So its inputs are always put at the same place (`staging`), and its
results stay good until the next replay of any size: all sizes share one pool of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paceline_runtime.model.device.buckets import bucket_for
from paceline_runtime.model.device.staging import Bundle

Results = tuple[torch.Tensor, ...]
Run = Callable[[], Results]
Capture = Callable[[Run], tuple[Results, Callable[[], None]]]
"""Runs a step, and gives its results with what makes them anew from whatever its inputs then are."""


def cuda_graphs() -> Capture:
    """CUDA graphs in one new pool of memory, which lives as long as one of them."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def capture(run: Run) -> tuple[Results, Callable[[], None]]:
        # Once before: kernels are compiled, and libraries take their memory, where no graph may.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            results = run()
        return results, graph.replay

    return capture


def no_graphs() -> Capture:
    """The same on any device: each replay runs the step again, on the same inputs' addresses."""

    def capture(run: Run) -> tuple[Results, Callable[[], None]]:
        results = run()

        def replay() -> None:
            for kept, new in zip(results, run(), strict=True):
                kept.copy_(new)

        return results, replay

    return capture


@dataclass(frozen=True, slots=True)
class _Captured:
    nbytes: int
    results: Results
    replay: Callable[[], None]


class DecodeGraphs:
    """The captured steps, by number of sequences.

    Args:
        capturing: made anew each time that steps are captured: a pool whose graphs are gone takes no new ones.
    """

    def __init__(self, capturing: Callable[[], Capture]) -> None:
        self._capturing = capturing
        self._sizes: tuple[int, ...] = ()
        self._captured: dict[int, _Captured] = {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of sequences, ascending."""
        return self._sizes

    def size_for(self, count: int) -> int | None:
        """The captured size that takes so many sequences; `None` if there is none."""
        return bucket_for(count, self._sizes)

    def capture(self, sizes: Sequence[int], begin: Callable[[int], tuple[Bundle, Run]]) -> None:
        """Capture steps anew, the largest first: the smaller ones then find room in what it took of the pool.

        Args:
            begin: a step of so many padded places: its inputs, and what runs it.
        """
        self._sizes, self._captured = (), {}
        capture = self._capturing()
        for size in sorted(sizes, reverse=True):
            bundle, run = begin(size)
            bundle.send()
            self._captured[size] = _Captured(bundle.nbytes, *capture(run))
        self._sizes = tuple(sorted(sizes))

    def replay(self, size: int, bundle: Bundle) -> Results:
        """Run the captured step on this bundle's inputs, which were sent.

        Returns:
            Its results, with rows for padded places at the end.
        """
        captured = self._captured[size]
        if bundle.nbytes != captured.nbytes:
            raise ValueError(f"a step of {size} places takes {captured.nbytes} bytes of inputs, not {bundle.nbytes}")
        captured.replay()
        return captured.results
