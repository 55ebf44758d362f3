"""What runs between two steps does not wait for the device: read from the code; on a GPU `make gpu-check` counts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import paceline_runtime

ROOT = Path(paceline_runtime.__file__).parent
HOT = [
    *(ROOT / "model" / name for name in ("llama.py", "linear.py", "torch_llama.py")),
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
    # The memory of two steps ago, before it is written over.
    ("model/device/staging.py", "send", "synchronize"),
    # Host memory, as an array.
    ("model/device/staging.py", "__init__", "numpy"),
    # Loading, and measuring at the start.
    ("model/llama.py", "_load", "tensor"),
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
        elif isinstance(node, ast.Subscript) and any(
            isinstance(part, (ast.Compare, ast.Invert)) for part in ast.walk(node.slice)
        ):
            yield inside, "an index that is a mask", node.lineno
        yield from waits(node, inside)


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
    return np.unique(a), x[length - 1], b
"""
    assert [what for _, what, _ in waits(ast.parse(code))] == [
        *("item", "cpu", "tolist", "synchronize"),
        *("an index that is a mask", "an index that is a mask", "nonzero", "tensor"),
    ]
