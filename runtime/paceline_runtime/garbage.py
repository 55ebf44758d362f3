"""When Python's garbage collector runs in a process that serves: rarely, and over little."""

from __future__ import annotations

import gc


def settle() -> None:
    """Keep collections short and rare from now on. To be called when all that stays is loaded.

    Modules, weights and tokenizer live for ever, and what a token makes has no cycles: looking through them again and
    again would hold single steps and streams up by milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
