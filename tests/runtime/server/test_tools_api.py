"""Tools and thoughts over HTTP, with small templates that teach what the families' own do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline_runtime.messages import AddRequest, FinishReason

MESSAGES = [{"role": "user", "content": "what is the weather?"}]
TOOLS = [
    {"type": "function", "function": {"name": "get", "description": "the weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "now"}},
]
TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HERMES = "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}" + TURNS.replace(
    "CALL", '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
)
LLAMA = "{% if tools %}{{ tools | tojson }}<|python_tag|>{% endif %}" + TURNS
MISTRAL = "{% if tools %}{{ tools | tojson }}{% endif %}" + TURNS.replace(
    "CALL", '[TOOL_CALLS] [{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}]'
)
THINKS = TURNS + "{# <think> </think> #}{% if add_generation_prompt and enable_thinking %}<think>\n{% endif %}"
ANSWERS = {
    "hermes": (
        HERMES,
        (),
        '<tool_call>\n{"name": "get", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    ),
    "llama": (
        LLAMA,
        ("<|python_tag|>",),
        '<|python_tag|>{"name": "get", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}',
    ),
    "mistral": (
        MISTRAL,
        ("[TOOL_CALLS]",),
        '[TOOL_CALLS] [{"name": "get", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
    ),
}


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "org/tiny", "messages": MESSAGES, **more}


def says(text: str, cut: int | None = None) -> Any:
    """A script that answers with `text`, cut after so many tokens by `max_tokens`."""

    async def script(core: Any, request: AddRequest) -> None:
        ids = core.encode(text)
        if cut is None:
            await core.say(request, text)
        else:
            for token_id in ids[: cut - 1]:
                core.output(request, [token_id])
            core.output(request, ids[cut - 1 : cut], FinishReason.LENGTH)

    return script


async def both_ways(front: Any, **more: Any) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """The whole answer, the same put together from a stream as the SDK's users do, and the stream's deltas."""
    whole = (await front.http.post("/v1/chat/completions", json=chat(**more))).json()["choices"][0]
    text = (await front.http.post("/v1/chat/completions", json=chat(stream=True, **more))).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events]
    content, thoughts, calls = "", "", []
    for delta in (choice["delta"] for choice in choices):
        content += delta.get("content") or ""
        thoughts += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                assert call["type"] == "function"
                assert call["id"]
                assert call["function"]["arguments"] == ""
                calls.append({"name": call["function"]["name"], "arguments": ""})
            else:
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
                calls[call["index"]]["arguments"] += call["function"]["arguments"]
    streamed = {
        "content": content,
        "reasoning": thoughts,
        "calls": calls,
        "finish_reason": choices[-1]["finish_reason"],
    }
    return whole, streamed, [choice["delta"] for choice in choices]


def of_whole(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [call["function"] for call in message.get("tool_calls", ())],
        "finish_reason": choice["finish_reason"],
    }


@pytest.mark.parametrize("family", ANSWERS)
async def test_parallel_calls_come_whole_and_in_deltas(front_end: Any, family: str) -> None:
    """C172: the first delta of a call has index, id, type, name and empty arguments; later ones arguments only."""
    template, specials, answer = ANSWERS[family]
    async with front_end(says(answer), template=template, specials=specials) as front:
        whole, streamed, _ = await both_ways(front, tools=TOOLS)
        want = [{"name": "get", "arguments": '{"city": "Paris"}'}, {"name": "now", "arguments": "{}"}]
        assert of_whole(whole) == streamed == {
            "content": "", "reasoning": "", "calls": want, "finish_reason": "tool_calls"
        }  # fmt: skip
        assert whole["message"]["content"] is None
        ids = [call["id"] for call in whole["message"]["tool_calls"]]
        assert len(set(ids)) == 2
        if family == "mistral":
            assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids)
        prompt = front.replica.tokenizer.decode_all(front.core.requests[0].prompt_token_ids)
        assert '"name": "get"' in prompt
        answer_of_sdk = await front.sdk.chat.completions.create(**chat(tools=TOOLS))
        assert [call.function.name for call in answer_of_sdk.choices[0].message.tool_calls] == ["get", "now"]
        async with front.sdk.chat.completions.stream(**chat(tools=TOOLS)) as stream:
            final = await stream.get_final_completion()
        assert [call.function.arguments for call in final.choices[0].message.tool_calls] == ['{"city": "Paris"}', "{}"]


async def test_a_call_cut_anywhere_is_told_the_same_both_ways(front_end: Any) -> None:
    """C171."""
    template, specials, answer = ANSWERS["hermes"]
    async with front_end(template=template, specials=specials) as front:
        tokens = len(front.core.encode(answer))
        for cut in range(1, tokens, 3):
            front.core.script = says(answer, cut)
            whole, streamed, _ = await both_ways(front, tools=TOOLS)
            assert of_whole(whole) == streamed
            assert whole["finish_reason"] == "length"


async def test_one_call_is_enough_for_who_wants_no_parallel_ones(front_end: Any, eventually: Any) -> None:
    template, specials, answer = ANSWERS["hermes"]
    async with front_end(says(answer + "and on" * 20), template=template, specials=specials) as front:
        whole, streamed, _ = await both_ways(front, tools=TOOLS, parallel_tool_calls=False)
        assert of_whole(whole) == streamed
        assert [call["name"] for call in streamed["calls"]] == ["get"]
        assert whole["finish_reason"] == "tool_calls"
        await eventually(lambda: len(front.core.aborted) == 2)


async def test_with_tool_choice_none_tools_are_not_shown_and_nothing_is_a_call(front_end: Any) -> None:
    template, specials, answer = ANSWERS["hermes"]
    async with front_end(says(answer), template=template, specials=specials) as front:
        whole, _, _ = await both_ways(front, tools=TOOLS, tool_choice="none")
        assert whole["message"]["content"] == answer
        assert "tool_calls" not in whole["message"]
        assert b"get" not in bytes(front.replica.tokenizer.decode(front.core.requests[0].prompt_token_ids), "utf-8")


async def test_text_before_a_call_is_content(front_end: Any) -> None:
    template, specials, answer = ANSWERS["hermes"]
    async with front_end(says("let me see " + answer), template=template, specials=specials) as front:
        whole, streamed, _ = await both_ways(front, tools=TOOLS)
        assert of_whole(whole) == streamed
        assert whole["message"]["content"] == "let me see"


async def test_a_model_whose_template_has_no_tools_says_so(front_end: Any) -> None:
    async with front_end() as front:
        response = await front.http.post("/v1/chat/completions", json=chat(tools=TOOLS))
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "tools")
        assert "chat template has no place" in error["message"]
        assert (await front.http.post("/v1/chat/completions", json=chat(tools=[]))).status_code == 200


async def test_a_model_that_calls_in_an_unknown_way_says_so(front_end: Any) -> None:
    async with front_end(template="{{ tools }}<tool_call><function=x>" + TURNS) as front:
        response = await front.http.post("/v1/chat/completions", json=chat(tools=TOOLS))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "web_search"}], "tools.0.type"),
        ([{"type": "function"}], "tools.0.function"),
        ([{"type": "function", "function": {"name": "two words"}}], "tools.0.function.name"),
        ([{"type": "function", "function": {"name": "f", "strict": True}}], "tools.0.function.strict"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "tools.0.function.parameters"),
        ({}, "tools"),
    ],
)
async def test_tools_that_are_none_are_refused_by_their_path(front_end: Any, tools: Any, param: str) -> None:
    async with front_end(template=HERMES) as front:
        response = await front.http.post("/v1/chat/completions", json=chat(tools=tools))
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_history_with_calls_and_their_results_is_shown_to_the_model(front_end: Any) -> None:
    """C174: `content: null` beside calls, results as text parts, arguments as the string that clients keep."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": '{"city": "Paris"}'}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "5"}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "thanks"},
    ]
    async with front_end(template=HERMES) as front:
        response = await front.http.post("/v1/chat/completions", json=chat(messages=history, tools=TOOLS[1:]))
        assert response.status_code == 200
        prompt = front.replica.tokenizer.decode_all(front.core.requests[0].prompt_token_ids)
        assert '<tool_call>{"name": "get", "arguments": {"city": "Paris"}}</tool_call>' in prompt
        assert "<|im_start|>tool\n5<|im_end|>" in prompt
        for wrong, param in (
            ({**call, "function": {"name": "get", "arguments": "{"}}, "messages.1.tool_calls.0.function.arguments"),
            ({**call, "function": {}}, "messages.1.tool_calls.0.function"),
            ({**call, "type": "custom"}, "messages.1.tool_calls.0.type"),
        ):
            history[1] = {"role": "assistant", "tool_calls": [wrong]}
            response = await front.http.post("/v1/chat/completions", json=chat(messages=history, tools=TOOLS[1:]))
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        response = await front.http.post("/v1/chat/completions", json=chat(messages=[{"role": "tool", "content": "5"}]))
        assert response.json()["error"]["param"] == "messages.0.tool_call_id"


async def test_control_tokens_in_tools_are_only_text(front_end: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "<|im_end|>", "parameters": {"<|im_end|>": 1}}}
    async with front_end(template=HERMES) as front:
        assert (await front.http.post("/v1/chat/completions", json=chat(tools=[tool]))).status_code == 200
        ids = front.core.requests[0].prompt_token_ids
        assert ids.count(front.core.eos) == 1
        assert front.replica.tokenizer.decode_all(ids).count("<|im_end|>") == 3


@pytest.mark.parametrize(
    ("arguments", "answer", "want"),
    [
        ({}, "<think>hm\n</think>\n\nyes", ("hm", "yes")),
        ({"enable_thinking": True}, "hm</think>yes", ("hm", "yes")),
        ({"enable_thinking": True}, "hm", ("hm", "")),
        ({}, "no thoughts", ("", "no thoughts")),
    ],
)
async def test_thoughts_are_a_field_of_their_own(
    front_end: Any, arguments: dict[str, Any], answer: str, want: tuple[str, str]
) -> None:
    async with front_end(says(answer), template=THINKS) as front:
        whole, streamed, _ = await both_ways(front, chat_template_kwargs=arguments, logprobs=False)
        assert of_whole(whole) == streamed
        assert (streamed["reasoning"], streamed["content"]) == want
        assert ("reasoning_content" in whole["message"]) == bool(want[0])


async def test_thoughts_of_earlier_answers_reach_the_template(front_end: Any) -> None:
    history = [*MESSAGES, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}, *MESSAGES]
    async with front_end(template=THINKS) as front:
        assert (await front.http.post("/v1/chat/completions", json=chat(messages=history))).status_code == 200
        assert "(hm)yes" in front.replica.tokenizer.decode(front.core.requests[0].prompt_token_ids)
