"""Token counts from an answer's `usage`, without decoding the answer."""

from __future__ import annotations

import re
from typing import Final

_REACH: Final = 512
"""Bytes after `"usage"` within which both numbers are."""

_USUAL: Final = re.compile(
    rb'"usage":\{"prompt_tokens":([0-9]{1,9}),(?:"total_tokens":[0-9]{1,9},)?"completion_tokens":([0-9]{1,9})[,}]'
)
"""As OpenAI and vLLM write it."""

_PROMPT: Final = re.compile(rb'"prompt_tokens"\s*:\s*([0-9]{1,9})\s*[,}]')
_COMPLETION: Final = re.compile(rb'"completion_tokens"\s*:\s*([0-9]{1,9})\s*[,}]')


def usage_of(answer: bytes) -> tuple[int, int] | None:
    """Tokens of prompt and completion as the replica counted them; None when it does not say.

    Args:
        answer: a whole JSON answer, or a part of a stream that has its last event.
    """
    # In a text that a model wrote or a client sent, the quotes around the word would be escaped.
    at = answer.rfind(b'"usage"')
    if at < 0:
        return None
    usual = _USUAL.match(answer, at)
    if usual is not None:
        return int(usual[1]), int(usual[2])
    prompt = _PROMPT.search(answer, at, at + _REACH)
    completion = _COMPLETION.search(answer, at, at + _REACH)
    if prompt is None or completion is None:
        return None
    return int(prompt[1]), int(completion[1])
