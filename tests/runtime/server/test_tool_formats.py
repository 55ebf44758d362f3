"""Tool calls are read from text in every family's way of writing them, however it is cut (C171, C172)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.server.tool_call_json import CallArguments, CallBegins, ToolCallReader
from paceline_runtime.server.tool_formats import (
    BareCalls,
    ListedCalls,
    MarkedCalls,
    ToolParser,
    tool_format,
)

CITY = '{"city": "Par\\"is</tool_call>", "n": [1, {"a": null}]}'
HERMES = (
    f'Let me see.\n<tool_call>\n{{"name": "get", "arguments": {CITY}}}\n</tool_call>\n'
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
)
LLAMA = '{"name": "get", "parameters": ' + CITY + '}; {"name": "now", "parameters": {}}'
TAGGED = "<|python_tag|>" + LLAMA
MISTRAL = '[TOOL_CALLS] [{"name": "get", "arguments": ' + CITY + '}, {"name": "now", "arguments": {}}]'
NAMED = "[TOOL_CALLS]get[ARGS]" + CITY + "[TOOL_CALLS]now[ARGS]{}"
TOOLS = frozenset({"get", "now"})


def collect(parser: ToolParser, pieces: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the calls with their arguments as joined."""
    text, calls = "", []
    for event in [*(event for piece in pieces for event in parser.feed(piece)), *parser.flush()]:
        if isinstance(event, str):
            text += event
        elif isinstance(event, CallBegins):
            calls.append((event.name, ""))
        else:
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return text, calls


FAMILIES: dict[str, tuple[Any, str, str]] = {
    "hermes": (MarkedCalls, HERMES, "Let me see."),
    "llama": (BareCalls, LLAMA, ""),
    "llama with tag": (BareCalls, TAGGED, ""),
    "mistral": (ListedCalls, MISTRAL, ""),
    "mistral with names": (ListedCalls, NAMED, ""),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_parallel_calls_are_read_with_their_arguments_as_written(family: str) -> None:
    kind, answer, content = FAMILIES[family]
    assert collect(kind(TOOLS.__contains__), [answer]) == (content, [("get", CITY), ("now", "{}")])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_prefix_gives_a_beginning_of_the_same_and_nothing_is_lost(family: str) -> None:
    """C171: any output can be cut anywhere."""
    kind, answer, content = FAMILIES[family]
    whole = collect(kind(TOOLS.__contains__), [answer])[1]
    for size in range(len(answer)):
        text, calls = collect(kind(TOOLS.__contains__), [answer[:size]])
        for n, (name, arguments) in enumerate(calls):
            assert name == whole[n][0]
            assert whole[n][1].startswith(arguments)
        if not calls:
            assert text == answer[:size].removeprefix("<|python_tag|>")
        else:
            # What there is of a further call that has no name yet is text too.
            assert text.startswith(content)
            assert answer[:size].rstrip().endswith(text[len(content) :])


@given(data=st.data())
def test_the_result_does_not_depend_on_how_the_answer_was_cut(data: Any) -> None:
    kind, answer, _ = FAMILIES[data.draw(st.sampled_from(sorted(FAMILIES)))]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(answer)), max_size=12)) | {0, len(answer)})
    pieces = [answer[start:end] for start, end in itertools.pairwise(cuts)]
    assert collect(kind(TOOLS.__contains__), pieces) == collect(kind(TOOLS.__contains__), [answer])


@given(text=st.text(alphabet='<tool_call>/{}"name: get,[TOOL_CALLS]ARGS\\ \n', max_size=60))
def test_no_text_makes_a_parser_fail_or_lose_what_is_no_call(text: str) -> None:
    for kind in (MarkedCalls, BareCalls, ListedCalls):
        shown, calls = collect(kind(TOOLS.__contains__), [text])
        assert calls or shown == text


def test_a_call_whose_name_is_not_complete_is_text() -> None:
    for cut in ('<tool_call>{"name": "ge', '<tool_call>{"arguments": {"a": 1}', "<tool_call>\n", "<tool_ca"):
        assert collect(MarkedCalls(TOOLS.__contains__), [cut]) == (cut, [])


def test_arguments_may_come_before_the_name_as_text_or_not_at_all() -> None:
    for body, arguments in (
        ('{"arguments": {"a": 1}, "name": "get"}', '{"a": 1}'),
        ('{"name": "get", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "get", "arguments": null}', "{}"),
        ('{"name": "get"}', "{}"),
        ('{"type": "function", "name": "get", "id": 5}', "{}"),
    ):
        assert collect(MarkedCalls(TOOLS.__contains__), [f"<tool_call>{body}</tool_call>"]) == (
            "",
            [("get", arguments)],
        )


def test_what_is_no_call_inside_the_markers_is_text() -> None:
    for body in ("<tool_call>hello</tool_call>", "<tool_call>{}</tool_call>", '<tool_call>{"a": 1}</tool_call> x'):
        assert collect(MarkedCalls(TOOLS.__contains__), [body]) == (body, [])


def test_a_call_after_a_marker_that_led_to_none_is_read() -> None:
    answer = '<tool_call><tool_call>{"name": "now"}</tool_call>'
    assert collect(MarkedCalls(TOOLS.__contains__), [answer]) == ("<tool_call>", [("now", "{}")])


def test_json_that_names_no_tool_of_the_request_is_an_answer() -> None:
    for body in ('{"name": "Alice", "age": 3}', '{"a": 1}', "{", "[1]", "plain {text}"):
        assert collect(BareCalls(TOOLS.__contains__), [body]) == (body, [])


def test_code_after_the_python_tag_is_text() -> None:
    assert collect(BareCalls(TOOLS.__contains__), ["<|python_tag|>print(1)"]) == ("print(1)", [])


def test_white_space_around_calls_is_dropped_and_kept_where_there_is_none() -> None:
    assert collect(MarkedCalls(TOOLS.__contains__), ["\n\n" + HERMES.split("\n", 1)[1] + "\n"])[0] == ""
    assert collect(MarkedCalls(TOOLS.__contains__), [" a \n b \n"]) == (" a \n b \n", [])


@given(value=st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.integers(), st.none(), st.lists(st.text()))))
def test_any_arguments_come_out_as_they_went_in(value: dict[str, Any]) -> None:
    reader = ToolCallReader()
    events = [
        event
        for character in json.dumps({"name": "get", "arguments": value}, ensure_ascii=False)
        for event in reader.feed(character)
    ]
    assert reader.done
    assert json.loads("".join(event.text for event in events if isinstance(event, CallArguments))) == value


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("{{ '[TOOL_CALLS] [' }}", "mistral"),
        ("{{ '<|python_tag|>' }}", "llama3_json"),
        ('Respond in the format {"name": function name, "parameters": dictionary', "llama3_json"),
        ("<tool_call>\n<function=example>", None),
        ("{{ message.content }}", None),
    ],
)
def test_the_format_is_chosen_by_what_the_template_teaches(template: str, name: str | None) -> None:
    found = tool_format(template)
    assert (found.name if found else None) == name
