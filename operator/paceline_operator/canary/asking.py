"""Asking replicas the fixed question, a few at a time over the whole fleet: nothing waits for it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from paceline_kube import JsonObject
from paceline_operator.drift.asking import ask
from paceline_operator.drift.replicas import port_of

from .judge import Answer, Failed, Reading

CANARY_PATH = "/v1/paceline/canary"
TIMEOUT_SECONDS = 70.0
"""The replica itself gives up after 20 s for each of three answers."""
MAX_BODY = 16 * 1024
AT_A_TIME = 8


class Asker:
    """Asks pods over HTTP."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """`timeout` in seconds, for one replica."""
        self._timeout = timeout
        self._gate = asyncio.Semaphore(AT_A_TIME)

    async def __call__(self, pod: JsonObject) -> Reading | str:
        """What a replica says, or in words why that is not known."""
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            return "it has no address"
        try:
            async with self._gate, asyncio.timeout(self._timeout):
                answer = await ask(address, port_of(pod), CANARY_PATH, {}, MAX_BODY)
            if answer.status == 404:
                return "its release knows no canary"
            if answer.status == 503:
                return "it is too busy, or on its way out"
            if answer.status != 200:
                return Failed(f"it answered {answer.status}")
            return reading_of(json.loads(answer.body))
        except TimeoutError:
            return Failed(f"it did not answer within {self._timeout:g} s")
        except (OSError, ValueError) as exc:
            return Failed(str(exc) or type(exc).__name__)


def reading_of(said: Any) -> Reading:
    """Read the body of what a replica said.

    Raises:
        ValueError: it is of another form.
    """
    try:
        prompt, cold, warm, text = (said[name] for name in ("prompt", "cold", "warm", "text"))
        cached = int(said["cachedTokens"])
    except (KeyError, TypeError, ValueError) as exc:
        raise ValueError(f"its answer is of another form: {exc!r}") from None
    if not all(isinstance(one, str) and one for one in (prompt, cold, warm, text)):
        raise ValueError("its answer has no hashes")
    return Reading(Answer(prompt, cold, text), warm if cached > 0 else "")
