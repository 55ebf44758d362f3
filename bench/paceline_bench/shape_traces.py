"""Traces as lines for the router's replay, and the texts on which its estimate of a prompt is measured."""

from __future__ import annotations

import base64
import csv
import datetime
import importlib
import inspect
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PREFILL_TOKENS_PER_S = 8000.0
DECODE_SECONDS_PER_TOKEN = 0.03
"""When a request of a trace would end, on a machine of today: what is learned from it is learned then."""

BYTES_PER_TOKEN = 4.2
SPREAD = 0.13
"""Traces have lengths and no texts: prompts get so many bytes a token, with the spread that was measured on texts."""

TEXTS_EACH = 120

_MODULES = (
    *("argparse", "ast", "csv", "dataclasses", "difflib", "heapq"),
    *("inspect", "logging", "random", "statistics", "textwrap", "unittest.mock"),
)

CHINESE = (
    "推理服务的性能问题,大多不是算力不够,而是资源在请求之间分得太粗。一个很长的提示进来,所有正在生成的会话都要等它;"
    "一个很短的问题排在后面,用户只看到转圈。把长请求和短请求分到不同的池里,各用各的批大小和分块,彼此就不再拖累。"
    "可是每多分一个池,就多一份空闲的成本,所以要先看数据:这种请求占了多少流量,它在的时候别人的尾延迟高了多少。"
    "缓存也是一样,命中率高的时候省下整段预填充,命中率低的时候只是白白占着显存。监控要能回答三个问题:时间花在哪里,"
    "为什么是现在,换一个配置会怎样。回答不了,就不要动生产环境的参数。灰度发布先从一个副本开始,看首字延迟和每字间隔,"
    "预热期的数字不算数;样本太少就说不知道,不能当成没有问题。晚上的流量只有白天的三成,缩容要慢,扩容要快,"
    "模型加载的几分钟也要算进去。最后,所有的结论都要能复现:同样的请求,同样的版本,同样的负载。"
)


class TraceError(ValueError):
    """A trace is missing or has another form; the message says which."""


@dataclass(frozen=True)
class Line:
    """As `paceline_router.shape.replay` reads it."""

    at: float
    ends: float
    prompt_tokens: int
    output_tokens: int
    text: str = ""
    text_bytes: int = 0
    tenant: str = ""

    def encode(self) -> bytes:
        """One line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


def lines_of(requests: list[tuple[float, int, int]], tenant: str, seed: int) -> list[Line]:
    """Lines from arrivals in seconds, prompt and output tokens."""
    chance = random.Random(seed)
    lines = []
    for at, prompt, output in sorted(requests):
        duration = prompt / PREFILL_TOKENS_PER_S + output * DECODE_SECONDS_PER_TOKEN
        size = int(prompt * BYTES_PER_TOKEN * chance.lognormvariate(0, SPREAD))
        lines.append(Line(at, at + duration, prompt, output, text_bytes=size, tenant=tenant))
    return lines


def read_azure(path: Path) -> list[tuple[float, int, int]]:
    """`TIMESTAMP,ContextTokens,GeneratedTokens`."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # Seven digits of a second, of which Python reads six.
    times = [datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    return [
        (at - times[0], int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for at, row in zip(times, rows, strict=True)
    ]


def read_mooncake(path: Path) -> list[tuple[float, int, int]]:
    """JSON lines with `timestamp` in ms, `input_length`, `output_length`."""
    rows = _json_lines(path)
    return [(row["timestamp"] / 1e3, row["input_length"], row["output_length"]) for row in rows]


def read_servingsim(path: Path) -> list[tuple[float, int, int]]:
    """JSON lines with `arrival_time_ns`, `input_toks`, `output_toks`."""
    rows = _json_lines(path)
    return [(row["arrival_time_ns"] / 1e9, row["input_toks"], row["output_toks"]) for row in rows]


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


TRACES: dict[str, tuple[str, Callable[[Path], list[tuple[float, int, int]]]]] = {
    "azure-code": ("azure2023/AzureLLMInferenceTrace_code.csv", read_azure),
    "azure-conv": ("azure2023/AzureLLMInferenceTrace_conv.csv", read_azure),
    "mooncake-conv": ("mooncake/conversation_trace.jsonl", read_mooncake),
    "sharegpt": ("llmservingsim/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl", read_servingsim),
}
"""Each with its file below the folder of traces."""


def read_traces(folder: Path, seed: int) -> dict[str, list[Line]]:
    """Every trace by name.

    Raises:
        TraceError: one is missing or has another form.
    """
    found = {}
    for name, (place, read) in TRACES.items():
        path = folder / place
        try:
            requests = [(at, max(1, prompt), max(1, output)) for at, prompt, output in read(path)]
        except OSError as exc:
            raise TraceError(f"cannot read {path}: {exc.strerror}; --traces names the folder that has it") from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise TraceError(f"{path} does not have the form of {name}: {exc!r}") from exc
        found[name] = lines_of(requests, name, seed)
    return found


def together(traces: dict[str, list[Line]], *, tenants: bool) -> list[Line]:
    """All traces at once, as requests to one service: each a tenant, or all of nobody."""
    lines = [line for trace in traces.values() for line in trace]
    if not tenants:
        lines = [Line(**{**asdict(line), "tenant": ""}) for line in lines]
    return sorted(lines, key=lambda line: line.at)


def texts(seed: int) -> dict[str, list[str]]:
    """Contents of messages by kind, of many lengths; made of what every installation has, and of random numbers."""
    chance = random.Random(seed)
    modules = [importlib.import_module(name) for name in _MODULES]
    sources = [inspect.getsource(module) for module in modules]
    docs = [inspect.getdoc(value) or "" for module in modules for _, value in sorted(vars(module).items())]
    rows = [
        {
            "id": n,
            "name": chance.choice(["ann", "bob", "carol"]),
            "price": round(chance.gauss(50, 20), 2),
            "ok": n % 3 > 0,
        }
        for n in range(800)
    ]
    numbers = "\n".join(",".join(str(round(chance.gauss(0, 100), 2)) for _ in range(8)) for _ in range(800))
    emoji = "".join(chance.choice(["😀", "🎉", "ok ", "👩‍💻", "great ", "🚀"]) for _ in range(8000))
    whole = {
        "English": "\n\n".join(dict.fromkeys(docs)),
        "code": "\n".join(sources),
        "JSON": json.dumps(rows),
        "numbers": numbers,
        "Chinese": CHINESE * 20,
        "emoji": emoji,
        "base64": base64.b64encode(chance.randbytes(60_000)).decode(),
    }
    return {kind: [_piece(text, chance, kind == "Chinese") for _ in range(TEXTS_EACH)] for kind, text in whole.items()}


def _piece(text: str, chance: random.Random, short: bool) -> str:
    size = min(len(text) // 2, int(150 * 80 ** chance.random()) // (3 if short else 1))
    begin = chance.randrange(len(text) - size)
    return text[begin : begin + size]
