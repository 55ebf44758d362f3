"""Requests of every kind that a replica meets, each with what may come of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_bench.http_client import DONE, BrokenAnswer, Response, call
from paceline_bench.models import TINY_CORPUS
from paceline_crds import headers

MODEL = "soak"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = tuple(" ".join(TINY_CORPUS[:2]).split())
REQUEST_SECONDS = 300.0
KEPT_FAULTS = 3
"""Of each kind, in words; all are counted."""
KNOWN_PROMPTS = ("the quick brown fox", "a request comes in, its tokens", "The capital of France is")
KNOWN_TOKENS = 8

MALFORMED: Mapping[str, tuple[str, bytes]] = {
    "empty": (COMPLETIONS, b""),
    "cut off": (COMPLETIONS, b'{"model": "soak", "prompt": "a'),
    "no object": (COMPLETIONS, b"[]"),
    "wrong type": (COMPLETIONS, b'{"model": "soak", "prompt": "a", "stream": "yes"}'),
    "negative": (COMPLETIONS, b'{"model": "soak", "prompt": "a", "max_tokens": -1}'),
    "not a number": (COMPLETIONS, b'{"model": "soak", "prompt": "a", "temperature": NaN}'),
    "infinite": (COMPLETIONS, b'{"model": "soak", "prompt": "a", "temperature": 1e999}'),
    "no UTF-8": (COMPLETIONS, b'{"model": "soak", "prompt": "\xff\xfe"}'),
    "half a surrogate": (COMPLETIONS, b'{"model": "soak", "prompt": "\\ud800"}'),
    "unknown field": (COMPLETIONS, b'{"model": "soak", "prompt": "a", "max_token": 5}'),
    "no such token": (COMPLETIONS, b'{"model": "soak", "prompt": [99999999]}'),
    "deep": (COMPLETIONS, b'{"model": "soak", "prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "no messages": (CHAT, b'{"model": "soak", "messages": []}'),
    "no role": (CHAT, b'{"model": "soak", "messages": [{"content": "a"}]}'),
}


class Unexpected(Exception):
    """An answer that no request of its kind may get."""


@dataclass
class Tally:
    """What came of all requests so far.

    Attributes:
        outcomes: by kind and outcome (a status, `cut` by the client, or `unexpected`).
        faults: the first unexpected ones in words.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """All of them."""
        return self.outcomes.total()

    @property
    def unexpected(self) -> int:
        """Those that got what they must not."""
        return sum(count for (_, outcome), count in self.outcomes.items() if outcome == "unexpected")

    def fault(self, kind: str, words: str) -> None:
        """Enter an unexpected outcome."""
        self.outcomes[kind, "unexpected"] += 1
        if self.outcomes[kind, "unexpected"] <= KEPT_FAULTS:
            self.faults.append(f"{kind}: {words}")


class Traffic:
    """Makes requests to one replica and holds each to what its kind may get.

    Args:
        port: of the replica on this machine.
        max_model_len: its limit in tokens, which over-long requests pass.
        seed: of everything random here.
    """

    def __init__(self, port: int, max_model_len: int, seed: int) -> None:
        self._port = port
        self._max_model_len = max_model_len
        self._rng = random.Random(seed)
        self._known: dict[str, str] = {}
        self._conversations = [self._words(120) for _ in range(8)]
        self.tally = Tally()
        self.kinds: dict[str, tuple[int, Callable[[], Awaitable[str]]]] = {
            "short": (30, self._short),
            "long": (12, self._long),
            "chat": (10, self._chat),
            "sampled": (8, self._sampled),
            "several": (6, self._several),
            "cancelled": (12, self._cancelled),
            "malformed": (8, self._malformed),
            "over-long": (3, self._over_long),
            "slow reader": (3, self._slow_reader),
            "deadline": (4, self._deadline),
            "known answer": (4, self._known_answer),
        }

    async def learn(self) -> None:
        """Ask for the answers that must stay the same, of a replica that has nothing else to do."""
        for prompt in KNOWN_PROMPTS:
            self._known[prompt] = await self._answer_to(prompt)

    def draw(self, mix: Sequence[str] | None = None) -> str:
        """A kind at random, by weight; only of those in `mix` where it is given."""
        names = list(mix or self.kinds)
        return self._rng.choices(names, weights=[self.kinds[name][0] for name in names])[0]

    async def run(self, kind: str) -> None:
        """One request of a kind; what came of it goes into the tally."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                outcome = await self.kinds[kind][1]()
        except TimeoutError:
            self.tally.fault(kind, f"no end after {REQUEST_SECONDS:g} s")
        except (Unexpected, BrokenAnswer, OSError, ValueError, KeyError) as error:
            self.tally.fault(kind, f"{type(error).__name__}: {error}")
        else:
            self.tally.outcomes[kind, outcome] += 1

    # --- kinds ---

    async def _short(self) -> str:
        stream = self._rng.random() < 0.5
        body = self._completion(self._words(self._rng.randint(3, 15)), self._rng.randint(2, 12), stream=stream)
        return await self._complete(COMPLETIONS, body)

    async def _long(self) -> str:
        # Beginnings repeat, so that the prefix cache has something to find and to forget.
        prompt = self._rng.choice(self._conversations) + " " + self._words(self._rng.randint(20, 200))
        return await self._complete(COMPLETIONS, self._completion(prompt, self._rng.randint(30, 120), stream=True))

    async def _chat(self) -> str:
        messages = [{"role": "user", "content": self._words(self._rng.randint(5, 60))}]
        body = {"model": MODEL, "messages": messages, "max_tokens": self._rng.randint(5, 40), "stream": True}
        return await self._complete(CHAT, body | {"stream_options": {"include_usage": True}})

    async def _sampled(self) -> str:
        body = self._completion(self._words(10), self._rng.randint(5, 40), stream=self._rng.random() < 0.5)
        body |= {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "seed": self._rng.randrange(1000), "logprobs": 2}
        body |= {"frequency_penalty": 0.5, "presence_penalty": 0.2, "stop": ["zzzz", "\n\n\n"], "ignore_eos": False}
        return await self._complete(COMPLETIONS, body)

    async def _several(self) -> str:
        count = self._rng.randint(2, 4)
        body = self._completion(self._words(30), self._rng.randint(5, 30), stream=False)
        return await self._complete(COMPLETIONS, body | {"n": count, "temperature": 1.0}, choices=count)

    async def _cancelled(self) -> str:
        body = self._completion(self._words(self._rng.randint(5, 150)), 200, stream=self._rng.random() < 0.7)
        patience, events = self._rng.choice((0.0, 0.02, 0.2, 1.0)), self._rng.randint(0, 20)
        try:
            async with (
                asyncio.timeout(patience or None),
                call(self._port, "POST", COMPLETIONS, body, self._headers()) as response,
            ):
                if response.status != 200:
                    return await self._refusal(response)
                if body["stream"]:
                    async for _ in response.events():
                        events -= 1
                        if events < 0:
                            break
        except TimeoutError:
            pass
        return "cut"

    async def _malformed(self) -> str:
        name = self._rng.choice(list(MALFORMED))
        path, body = MALFORMED[name]
        async with call(self._port, "POST", path, body) as response:
            if response.status != 400:
                raise Unexpected(f"{name}: status {response.status}, {await _start_of(response)}")
            _error_of(await response.body())
        return "400"

    async def _over_long(self) -> str:
        body = self._completion(self._words(2 * self._max_model_len), 5, stream=self._rng.random() < 0.5)
        async with call(self._port, "POST", COMPLETIONS, body, self._headers()) as response:
            if response.status != 400:
                raise Unexpected(f"status {response.status}, {await _start_of(response)}")
            code = _error_of(await response.body()).get("code")
        if code != "context_length_exceeded":
            raise Unexpected(f"code {code!r}")
        return "400"

    async def _slow_reader(self) -> str:
        body = self._completion(self._words(10), self._rng.randint(20, 60), stream=True)
        return await self._complete(COMPLETIONS, body, pause=self._rng.choice((0.01, 0.05)), receive_buffer=1024)

    async def _deadline(self) -> str:
        body = self._completion(self._words(50), 60, stream=False)
        left = {headers.DEADLINE_MS: str(self._rng.choice((1, 50, 300, 3000)))}
        async with call(self._port, "POST", COMPLETIONS, body, self._headers() | left) as response:
            if response.status == 504:
                _error_of(await response.body())
                return "504"
            if response.status != 200:
                return await self._refusal(response)
            await response.body()
        return "200"

    async def _known_answer(self) -> str:
        prompt = self._rng.choice(KNOWN_PROMPTS)
        answer = await self._answer_to(prompt)
        if answer != self._known[prompt]:
            raise Unexpected(f"{prompt!r} was answered {answer!r}, at the beginning {self._known[prompt]!r}")
        return "200"

    # --- parts ---

    async def _answer_to(self, prompt: str) -> str:
        """The greedy answer, asked for until the queue has room."""
        body = self._completion(prompt, KNOWN_TOKENS, stream=False)
        while True:
            async with call(self._port, "POST", COMPLETIONS, body) as response:
                if response.status == 200:
                    text: str = json.loads(await response.body())["choices"][0]["text"]
                    return text
                await self._refusal(response)
            await asyncio.sleep(0.5)

    async def _complete(
        self,
        path: str,
        body: dict[str, Any],
        *,
        choices: int = 1,
        pause: float = 0.0,
        receive_buffer: int | None = None,
    ) -> str:
        """Send, read to the end, and hold the answer to what was asked for."""
        async with call(self._port, "POST", path, body, self._headers(), receive_buffer=receive_buffer) as response:
            if response.status != 200:
                return await self._refusal(response)
            if not body["stream"]:
                answer = json.loads(await response.body())
                if len(answer["choices"]) != choices or any(not c["finish_reason"] for c in answer["choices"]):
                    raise Unexpected(f"{len(answer['choices'])} choices: {answer}"[:300])
                return "200"
            ended = usage = False
            async for _, data in response.events():
                if data == DONE:
                    ended = True
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise Unexpected(f"the stream ended with {event['error']}")
                usage |= bool(event.get("usage"))
                if pause:
                    await asyncio.sleep(pause)
            if not ended or not usage:
                raise Unexpected(f"the stream ended without {'usage' if ended else '[DONE]'}")
        return "200"

    async def _refusal(self, response: Response) -> str:
        """A full queue may be said, with when to come again; nothing else may."""
        if response.status not in (429, 503) or "retry-after" not in response.headers:
            raise Unexpected(f"status {response.status}, {await _start_of(response)}")
        _error_of(await response.body())
        return str(response.status)

    def _completion(self, prompt: str, tokens: int, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        body |= {"ignore_eos": True, "stream": stream}
        return body | ({"stream_options": {"include_usage": True}} if stream else {})

    def _headers(self) -> dict[str, str]:
        rng = self._rng
        found = {}
        if rng.random() < 0.7:
            # Few tenants with many requests, and many with one each: those must not stay in anybody's memory.
            found[headers.TENANT] = rng.choice("abc") if rng.random() < 0.9 else f"once-{rng.getrandbits(40)}"
        if rng.random() < 0.3:
            found[headers.PRIORITY] = rng.choice(("high", "normal", "low"))
        if rng.random() < 0.3:
            found[headers.SESSION] = f"session-{rng.randrange(1000)}"
        return found

    def _words(self, count: int) -> str:
        return " ".join(self._rng.choices(WORDS, k=count))


async def _start_of(response: Response) -> str:
    return (await response.body())[:200].decode(errors="replace")


def _error_of(body: bytes) -> dict[str, Any]:
    """The error object of OpenAI's form.

    Raises:
        Unexpected: it is none.
    """
    try:
        error = json.loads(body)["error"]
        if error["message"] and error["type"]:
            found: dict[str, Any] = error
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise Unexpected(f"an error without OpenAI's form: {body[:200]!r}")
