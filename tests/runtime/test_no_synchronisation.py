"""What runs between two steps does not wait for the device: read from the code, and seen in what PyTorch is asked for.

On a GPU `make gpu-check` counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import paceline_runtime
from paceline_runtime.messages import SamplingParams
from paceline_runtime.model.device.graphs import no_graphs
from paceline_runtime.model.device.memory import LargestSteps
from paceline_runtime.model.inputs import SequenceInput
from paceline_runtime.model.safetensors_checkpoint import SafetensorsCheckpoint
from paceline_runtime.model.sampling import SamplingState, draws_of
from paceline_runtime.model.source import locate
from paceline_runtime.model.torch_llama import TorchLlama

ROOT = Path(paceline_runtime.__file__).parent
HOT = [
    *(ROOT / "engine" / name for name in ("llm.py", "begun.py")),
    *(ROOT / "model" / name for name in ("llama.py", "linear.py", "torch_llama.py", "sampling/on_device.py")),
    *sorted((ROOT / "model/device").glob("*.py")),
    *sorted((ROOT / "kernels/gpu").glob("*.py")),
    *(ROOT / "kernels" / name for name in ("interface.py", "plan.py", "tiling.py")),
]
WAITING = frozenset(
    (
        *("item", "cpu", "tolist", "numpy", "synchronize", "nonzero", "argwhere", "masked_select", "unique"),
        *("is_nonzero", "equal", "allclose", "tensor", "as_tensor"),
    )
)
"""Attributes that copy to the host or wait for the device; `torch.tensor` copies from memory that may be paged."""
PLACES = {
    # Results, when they are asked for.
    ("model/device/readback.py", "wait", "synchronize"),
    ("model/torch_llama.py", "result", "tolist"),
    # Where logits are changed or reported, the general sampler works on them.
    ("engine/llm.py", "_collect", "synchronize"),
    # The memory of two steps ago, before it is written over.
    ("model/device/staging.py", "wait", "synchronize"),
    # Host memory, as an array.
    ("model/device/staging.py", "__init__", "numpy"),
    # Log-probabilities of prompts: more logits than a device has room for.
    ("model/torch_llama.py", "_in_pieces", "a copy that is waited for"),
    # From one place of the device to another.
    ("model/torch_llama.py", "_go_on", "a copy that is waited for"),
    ("model/device/graphs.py", "replay", "a copy that is waited for"),
    # Loading, and measuring at the start.
    ("model/llama.py", "_load", "tensor"),
    ("model/llama.py", "_load", "a copy that is waited for"),
    ("model/device/memory.py", "settle", "synchronize"),
}


def waits(tree: ast.AST, where: str = "") -> Iterator[tuple[str, str, int]]:
    """Function, what waits in it, and the line."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef) else where
        if isinstance(node, ast.Attribute) and node.attr in WAITING:
            # On a module of arrays it is the host's.
            if not (isinstance(node.value, ast.Name) and node.value.id == "np"):
                yield inside, node.attr, node.lineno
        elif isinstance(node, ast.Call) and _copies(node):
            yield inside, "a copy that is waited for", node.lineno
        elif isinstance(node, ast.Subscript) and any(
            isinstance(part, (ast.Compare, ast.Invert)) for part in ast.walk(node.slice)
        ):
            yield inside, "an index that is a mask", node.lineno
        yield from waits(node, inside)


def _copies(call: ast.Call) -> bool:
    """Between memories, perhaps, and not said to go on by itself."""
    named = {keyword.arg for keyword in call.keywords}
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return "non_blocking" not in named and (name in ("copy_", "cuda") or (name == "to" and "device" in named))


def test_the_hot_path_waits_for_the_device_in_named_places_only() -> None:
    found = {
        (str(path.relative_to(ROOT)), function, what): line
        for path in HOT
        for function, what, line in waits(ast.parse(path.read_text()))
    }
    assert {place: found[place] for place in found.keys() - PLACES} == {}
    assert found.keys() >= PLACES, "a place that is named here does not wait any more"


def test_each_way_to_wait_is_found() -> None:
    code = """
def f(x, length):
    a = x.item() + x.sum().cpu() + x.tolist()
    torch.cuda.synchronize()
    b = x[x > 0] + x[~a] + x.nonzero() + torch.tensor([1], device="cuda")
    a.copy_(x, non_blocking=True).copy_(x.to(torch.int8)) + x.to(device="cpu") + x.cuda()
    return np.unique(a), x[length - 1], b
"""
    assert [what for _, what, _ in waits(ast.parse(code))] == [
        *("item", "cpu", "tolist", "synchronize"),
        *("an index that is a mask", "an index that is a mask", "nonzero", "tensor"),
        *["a copy that is waited for"] * 3,
    ]


READS = frozenset(("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero"))
"""What PyTorch is asked for where the host wants a number of a tensor: `item`, `bool(tensor)`, a mask as index."""


class Watch(TorchDispatchMode):
    """Notes what would wait for a device, outside of kernels: those of a GPU are not these."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_kernel = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name == "index" and any(t is not None and t.dtype is torch.bool for t in args[1])
        if (name in READS or masks) and not self.in_kernel:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class Aside:
    """Kernels, with the watch told when one runs."""

    def __init__(self, kernels: Any, watch: Watch) -> None:
        self._kernels, self._watch = kernels, watch

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)

        def run(*args: Any) -> Any:
            self._watch.in_kernel = True
            try:
                return kernel(*args)
            finally:
                self._watch.in_kernel = False

        return run


def captured_model(folder: Path, kept: torch.dtype) -> TorchLlama:
    model = TorchLlama(
        SafetensorsCheckpoint(locate(folder.as_uri())),
        device=torch.device("cpu"),
        dtype=torch.float32,
        weight_dtype=torch.float32,
        kv_dtype=kept,
        block_size=8,
        max_position=64,
        graphs=no_graphs,
    )
    model.allocate_cache(8)
    model.reserve(LargestSteps(32, 32, 3, 64))
    model.capture(model.sizes_to_capture(3))
    return model


@pytest.mark.parametrize("kept", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("way", ["logits", "greedy", "draws"])
@pytest.mark.parametrize("decode", [False, True], ids=["prompts", "captured decodes"])
def test_a_step_asks_for_no_number_until_it_is_waited_for(
    tiny_model_dir: Path, way: str, decode: bool, kept: torch.dtype
) -> None:
    model = captured_model(tiny_model_dir, kept)
    watch = Watch()
    aside: Any = Aside(model._kernels, watch)
    model._kernels = model._model._kernels = aside
    new = [5] if decode else [5, 6, 7]
    seqs = [SequenceInput(new, 2, [place], 1) for place in range(2)]
    states = [
        SamplingState(SamplingParams(temperature=0.8, top_p=top_p, seed=1), 1, [3], [0], model.spec.vocab_size)
        for top_p in (0.9, 1.0)
    ]
    with watch:
        step = model.prepare(seqs)
        assert (step.size is not None) == decode
        draws = draws_of(states, range(2), 2)
        assert draws is not None
        if way == "logits":
            model.forward(step)
        else:
            result = model.launch_greedy(step) if way == "greedy" else model.launch_draws(step, draws)
        assert watch.found == []
    if way != "logits":
        assert len(result()) == 2


def test_a_step_with_the_tokens_of_the_one_before_waits_for_neither(tiny_model_dir: Path) -> None:
    model = captured_model(tiny_model_dir, torch.float32)
    watch = Watch()
    aside: Any = Aside(model._kernels, watch)
    model._kernels = model._model._kernels = aside
    with watch:
        first = model.launch_greedy(model.prepare([SequenceInput([5], 2, [place], 1) for place in range(2)]))
        step = model.prepare([SequenceInput([0], 3, [place], 1) for place in (1, 0)], [1, 0])
        second = model.launch_greedy(step)
        assert watch.found == []
    assert len(first()) == len(second()) == 2


def test_the_watch_sees_what_waits() -> None:
    values = torch.tensor([1.0, 2.0])
    with Watch() as watch:
        if values[0] > 0:
            values[values > 1].sum().item()
        assert values.nonzero().shape == (2, 1)
    assert watch.found == ["_local_scalar_dense", "index", "_local_scalar_dense", "nonzero"]
