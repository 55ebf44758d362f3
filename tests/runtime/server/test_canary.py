"""The output canary: a question whose answer must not change, asked as everybody asks and counted as nobody's."""

from __future__ import annotations

import asyncio
from typing import Any

from paceline_runtime.messages import AddRequest, FinishReason
from paceline_runtime.server import canary
from paceline_runtime.server.replica import Phase

PATH = "/v1/paceline/canary"


def answering(tokens: list[int], warm: list[int] | None = None, cached: int = 64) -> Any:
    """An engine that says `tokens`; `warm` where the prompt is in the cache, which it is from the second time on."""
    seen: set[str] = set()

    async def script(core: Any, request: AddRequest) -> None:
        hit = request.cache_salt in seen
        seen.add(request.cache_salt)
        said = warm if hit and warm is not None else tokens
        core.output(request, said, FinishReason.LENGTH, num_cached_tokens=cached if hit else 0)

    return script


TOKENS = list(range(10, 10 + canary.ANSWER_TOKENS))


async def test_it_asks_once_computed_and_once_from_the_cache_and_is_nobodys_request(front_end: Any) -> None:
    async with front_end(answering(TOKENS)) as front:
        body = (await front.http.get(PATH)).json()
        assert body["cold"] == body["warm"]
        assert (body["cachedTokens"], body["answerTokens"]) == (64, canary.ANSWER_TOKENS)
        cold, first, warm = front.core.requests
        assert cold.cache_salt
        assert first.cache_salt == warm.cache_salt == ""
        assert all(not one.counted and one.sampling.temperature == 0.0 for one in front.core.requests)
        text = (await front.http.get("/metrics")).text
        assert 'paceline_requests_received_total{endpoint="completions",model_name="org/tiny"} 0.0' in text
        assert 'vllm:time_to_first_token_seconds_count{model_name="org/tiny"} 0.0' in text


async def test_no_text_and_no_token_leaves_the_replica(front_end: Any) -> None:
    async with front_end(answering(TOKENS)) as front:
        body = (await front.http.get(PATH)).json()
        hashes = [body[name] for name in ("prompt", "cold", "warm", "text")]
        assert all(len(one) == 16 and int(one, 16) >= 0 for one in hashes)
        assert set(body) == {"v", "prompt", "cold", "warm", "text", "promptTokens", "cachedTokens", "answerTokens"}


async def test_a_cache_that_changes_the_answer_shows_in_the_second_hash_only(front_end: Any) -> None:
    async with front_end(answering(TOKENS)) as sound, front_end(answering(TOKENS, warm=TOKENS[::-1])) as spoilt:
        one, other = [(await front.http.get(PATH)).json() for front in (sound, spoilt)]
        assert one["cold"] == other["cold"]
        assert other["warm"] != other["cold"]


async def test_another_answer_has_other_hashes_and_the_same_prompt(front_end: Any) -> None:
    async with front_end(answering(TOKENS)) as sound, front_end(answering([9, *TOKENS[1:]])) as wrong:
        one, other = [(await front.http.get(PATH)).json() for front in (sound, wrong)]
        assert one["prompt"] == other["prompt"]
        assert one["cold"] != other["cold"]
        assert one["text"] != other["text"]


async def test_many_who_ask_at_once_cost_one_question(front_end: Any) -> None:
    async with front_end(answering(TOKENS)) as front:
        answers = await asyncio.gather(*(front.http.get(PATH) for _ in range(5)))
        assert len({answer.text for answer in answers}) == 1
        assert len(front.core.requests) == 3


async def test_a_replica_that_drains_or_answers_too_late_says_503(front_end: Any) -> None:
    async def late(core: Any, request: AddRequest) -> None:
        core.output(request, [], FinishReason.DEADLINE, message="too late")

    async with front_end(late) as front:
        answer = await front.http.get(PATH)
        assert answer.status_code == 503
        assert "No answer came" in answer.json()["error"]["message"]
        front.replica.phase = Phase.DRAINING
        assert (await front.http.get(PATH)).status_code == 503
