"""YAML from a file that anybody may have written: nothing in it can hold its reader up for long, or fill the memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import yaml

if TYPE_CHECKING:
    from yaml import SafeLoader as _Base
else:
    # That of libyaml is several times as fast; PyYAML can be built without it.
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_BYTES: Final = 16 * 1024 * 1024

MAX_DEPTH: Final = 32
"""Mappings and lists within each other; a routes file has about ten."""

NODE_BYTES: Final = 128
MAX_WRITTEN_OUT: Final = 64 * 1024 * 1024
"""Bytes with every alias written out, where each value counts for its characters and `NODE_BYTES`: half a million
values, which is a file of some ten thousand services.
"""


Mark: TypeAlias = tuple[int, int, int, int]


class FileFault(ValueError):
    """The file is not taken; the message says why, without its name."""


class _Loader(_Base):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As in `SafeLoader`, but every key once, of which YAML would take the last: the API server is as strict."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise FileFault(f"line {line}: the field {key.value} is there twice; write it once")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """What is in the file, in which every key is there once.

    Raises:
        OSError: it cannot be read.
        FileFault: see `read_text`; or it is no YAML, or has a key twice.
    """
    text = read_text(path)
    try:
        return yaml.load(text, _Loader)
    except FileFault:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        # Dates and numbers that there are not are a ValueError.
        raise FileFault(f"not YAML: {exc}") from exc


def read_text(path: Path) -> str:
    """The text of a file that is safe to give to a YAML parser.

    Raises:
        OSError: it cannot be read.
        FileFault: it is no regular file, larger than `MAX_BYTES`, no YAML, nested deeper than `MAX_DEPTH`, or larger
            than `MAX_WRITTEN_OUT` with its aliases written out.
    """
    # Whoever opens a FIFO otherwise waits until somebody writes to it.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        check_kind(os.fstat(file.fileno()))
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise FileFault(f"it is larger than {MAX_BYTES >> 20} MiB; divide it over several routers")
    try:
        text = data.decode()
        _measure(text)
    except UnicodeDecodeError as exc:
        raise FileFault(f"not YAML: it is not in UTF-8 ({exc.reason} at byte {exc.start})") from None
    except yaml.YAMLError as exc:
        raise FileFault(f"not YAML: {exc}") from exc
    return text


def mark_of(found: os.stat_result) -> Mark:
    """What differs once a file has been written, replaced, or made readable."""
    return found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino


def check_kind(found: os.stat_result) -> None:
    """Refuse what is no regular file.

    Raises:
        FileFault: it is none.
    """
    if not stat.S_ISREG(found.st_mode):
        raise FileFault("it is no regular file (but a directory, a pipe or a device); name a file with text in it")


def _measure(text: str) -> None:
    """Go through the parser's events, which are made one at a time, before anything is built of them."""
    anchors: dict[str, tuple[int, int]] = {}  # size and height of what each stands for
    within: list[tuple[str | None, int, int]] = []  # the same of the collections that are open
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            within.append((event.anchor, NODE_BYTES, 1))
            if len(within) > MAX_DEPTH:
                raise _too_deep(event)
            continue
        if isinstance(event, yaml.ScalarEvent):
            anchor, size, height = event.anchor, NODE_BYTES + len(event.value), 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size, height = within.pop()
        elif isinstance(event, yaml.AliasEvent):
            made = anchors.get(event.anchor or "")
            if made is None:
                raise FileFault(f"{_line(event)}: *{event.anchor} stands for nothing that ends before it; write it out")
            anchor, (size, height) = None, made
        else:
            continue
        if anchor is not None:
            anchors[anchor] = size, height
        if within:
            name, total, depth = within[-1]
            within[-1] = name, total + size, max(depth, height + 1)
            if len(within) + height > MAX_DEPTH + 1:
                raise _too_deep(event)
            if total + size > MAX_WRITTEN_OUT:
                raise FileFault(
                    f"{_line(event)}: with its aliases (*name) written out it has more than "
                    f"{MAX_WRITTEN_OUT >> 20} MiB; use fewer of them"
                )


def _too_deep(event: yaml.Event) -> FileFault:
    return FileFault(f"{_line(event)}: mappings and lists are nested deeper than {MAX_DEPTH}, which no field needs")


def _line(event: yaml.Event) -> str:
    return "somewhere" if event.start_mark is None else f"line {event.start_mark.line + 1}"
