"""How families of models write tool calls into their answers, and how to read them from a stream of text.

Sources: the chat templates of Qwen 2.5 and Hermes (`<tool_call>`), Llama 3.1 and 3.2 (a bare JSON object, or one after
`<|python_tag|>`) and Mistral (`[TOOL_CALLS]`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from .stop import possible_start
from .tool_call_json import CallArguments, CallBegins, CallEvent, ToolCallReader

ToolEvent = str | CallBegins | CallArguments
"""A piece of the answer's text, or of a tool call."""

_SPACE: Final = " \t\r\n"


class ToolParser(Protocol):
    """Splits an answer into text and tool calls. What it gives does not depend on how the text was cut."""

    def feed(self, text: str) -> list[ToolEvent]:
        """Add text; what is now certain."""
        ...

    def flush(self) -> list[ToolEvent]:
        """The end: what was held back. A call whose name is not complete is text."""
        ...


class _Reader(ABC):
    """The state that all formats share: characters are taken one by one, white space before a call is dropped."""

    def __init__(self, is_tool: Callable[[str], bool]) -> None:
        self._is_tool = is_tool
        self._call: ToolCallReader | None = None
        self._held = ""
        self._space = ""
        self._called = False

    def feed(self, text: str) -> list[ToolEvent]:
        events: list[ToolEvent] = []
        for character in text:
            events += self._take(character)
        return _joined(events)

    def flush(self) -> list[ToolEvent]:
        events: list[ToolEvent] = []
        held, self._held = self._held, ""
        events += self._text(held)
        if self._space and not self._called:
            events.append(self._space)
        return _joined(events)

    @abstractmethod
    def _take(self, character: str) -> list[ToolEvent]:
        """What one more character of the answer shows."""

    def _text(self, text: str) -> list[ToolEvent]:
        """Text of the answer; white space waits for what follows it, since it may only lead to a call."""
        if not text:
            return []
        shown = (self._space + text).rstrip(_SPACE)
        whole = self._space + text
        self._space = whole[len(shown) :]
        return [shown] if shown else []

    def _begin(self) -> ToolCallReader:
        self._call = ToolCallReader(self._is_tool)
        return self._call

    def _pass_on(self, events: list[CallEvent]) -> list[ToolEvent]:
        if any(isinstance(event, CallBegins) for event in events):
            self._called, self._space = True, ""
        return [*events]


class MarkedCalls(_Reader):
    """`<tool_call>{…}</tool_call>`, any number of them, text before and between."""

    begin: Final = "<tool_call>"
    end: Final = "</tool_call>"

    def __init__(self, is_tool: Callable[[str], bool]) -> None:
        # The marker says that this is a call, whatever it names.
        super().__init__(lambda _: True)
        self._after = ""

    def _take(self, character: str) -> list[ToolEvent]:
        call = self._call
        if call is None:
            return self._take_text(character)
        if call.done or call.broken or call.in_string:
            return self._take_call(call, character)
        # A call that ends before its object does is what there is of it.
        self._after += character
        if self.end.startswith(self._after):
            return self._leave() if self._after == self.end else []
        after, self._after = self._after, ""
        events: list[ToolEvent] = []
        for one in after:
            # What begins like the end marker and is not it goes the way of its first character.
            events += self._take_call(call, one) if self._call is call else self._take(one)
        return events

    def _take_call(self, call: ToolCallReader, character: str) -> list[ToolEvent]:
        if call.done or call.broken:
            return self._take_end(character) if call.name is not None else self._give_up(character)
        return self._pass_on(call.feed(character))

    def _take_text(self, character: str) -> list[ToolEvent]:
        self._held += character
        at = self._held.find(self.begin)
        if at >= 0:
            events = self._text(self._held[:at])
            self._held = ""
            self._begin()
            return events
        keep = possible_start(self._held, (self.begin,))
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._text(ready)

    def _take_end(self, character: str) -> list[ToolEvent]:
        """Everything up to the end marker belongs to the call and means nothing."""
        self._after = (self._after + character)[-len(self.end) :]
        return self._leave() if self._after == self.end else []

    def _leave(self) -> list[ToolEvent]:
        call, self._call, self._after = self._call, None, ""
        assert call is not None
        return [*call.finish()] if call.name is not None else self._text(self.begin + call.raw + self.end)

    def _give_up(self, character: str) -> list[ToolEvent]:
        call, self._call, self._after = self._call, None, ""
        assert call is not None
        events = self._text(self.begin)
        for one in call.raw + character:  # a call may begin in what was none
            events += self._take(one)
        return events

    def flush(self) -> list[ToolEvent]:
        call, after = self._call, self._after
        events: list[ToolEvent] = []
        if call is not None and call.name is None:
            events += self._text(self.begin + call.raw + after)
        self._call, self._after = None, ""
        return _joined([*events, *super().flush()])


class BareCalls(_Reader):
    """A JSON object at the beginning of the answer, or after `<|python_tag|>`; several are parted by `;` or `,`.

    Without the tag, an object is a call only if it names one of the request's tools: a user may have asked for JSON.
    """

    tag: Final = "<|python_tag|>"

    def __init__(self, is_tool: Callable[[str], bool]) -> None:
        super().__init__(is_tool)
        self._plain = False
        self._tagged = False
        self._lead = ""

    def _take(self, character: str) -> list[ToolEvent]:
        if self._plain:
            return self._text(character)
        call = self._call
        if call is None:
            return self._take_lead(character)
        events = self._pass_on(call.feed(character))
        if call.done:
            self._call = None
        elif call.broken:
            events += self._give_up()
        return events

    def _take_lead(self, character: str) -> list[ToolEvent]:
        """Before an object."""
        self._held += character
        body = self._held.lstrip(_SPACE + (";," if self._called else ""))
        if body.startswith("{"):
            self._lead, self._held = self._held[:-1], ""
            self._begin().feed("{")
            return []
        if not body or (not self._tagged and self.tag.startswith(body) and body != self.tag):
            return []
        if body == self.tag:
            self._tagged, self._held = True, ""
            return []
        self._plain = True
        held, self._held = self._held, ""
        return self._text(held)

    def _begin(self) -> ToolCallReader:
        self._call = ToolCallReader((lambda _: True) if self._tagged else self._is_tool)
        return self._call

    def _give_up(self) -> list[ToolEvent]:
        call, self._call = self._call, None
        assert call is not None
        self._plain = True
        return [] if call.name is not None else self._text(self._lead + call.raw)

    def flush(self) -> list[ToolEvent]:
        events: list[ToolEvent] = []
        if self._call is not None:
            events = self._give_up()
        if self._called and not self._held.strip(_SPACE + ";,"):
            self._held = ""
        return _joined([*events, *super().flush()])


class ListedCalls(_Reader):
    """`[TOOL_CALLS] [{…}, {…}]`, or `[TOOL_CALLS]name[ARGS]{…}` once for each call."""

    begin: Final = "[TOOL_CALLS]"
    arguments: Final = "[ARGS]"

    def __init__(self, is_tool: Callable[[str], bool]) -> None:
        super().__init__(lambda _: True)
        self._inside = False
        self._listed = False
        self._head = ""
        """What came after the marker and belongs to no call yet."""

    def _take(self, character: str) -> list[ToolEvent]:
        if self._call is not None:
            events = self._pass_on(self._call.feed(character))
            if self._call.done or self._call.broken or (not self._listed and self._call.after_value):
                events += self._end_call()
            return events
        if self._inside:
            return self._take_head(character)
        self._held += character
        at = self._held.find(self.begin)
        if at >= 0:
            events = self._text(self._held[:at])
            self._held, self._head, self._inside, self._listed = "", "", True, False
            return events
        keep = possible_start(self._held, (self.begin,))
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._text(ready)

    def _take_head(self, character: str) -> list[ToolEvent]:
        self._head += character
        body = self._head.lstrip(_SPACE)
        if self._listed:
            if character == "{":
                self._begin().feed("{")
            elif character == "]":
                self._inside, self._head = False, ""
            elif character not in _SPACE + ",":
                return self._give_up()
            return []
        if body == "[":
            self._listed = True
        elif character == "{":
            return self._begin_named(body[:-1].removesuffix(self.arguments).strip(_SPACE))
        elif not _may_be_name(body, self.arguments):
            return self._give_up()
        return []

    def _begin_named(self, name: str) -> list[ToolEvent]:
        if not name:
            return self._give_up()
        call = self._begin()
        events: list[CallEvent] = []
        for character in '{"name":"' + name + '","arguments":{':
            events += call.feed(character)
        call.raw = self._head
        return self._pass_on(events)

    def _end_call(self) -> list[ToolEvent]:
        call, self._call = self._call, None
        assert call is not None
        if call.name is None:
            self._head += call.raw[1:]
            return self._give_up()
        if not self._listed:
            self._inside = False
        self._head = ""
        return []

    def _give_up(self) -> list[ToolEvent]:
        head, self._head, self._inside = self._head, "", False
        return self._text(head if self._called else self.begin + head)

    def flush(self) -> list[ToolEvent]:
        events: list[ToolEvent] = []
        if self._call is not None:
            events = self._end_call()
        elif self._inside and not (self._called and not self._head.strip(_SPACE + ",")):
            events = self._give_up()
        self._inside = False
        return _joined([*events, *super().flush()])


def _may_be_name(text: str, suffix: str) -> bool:
    """Whether this can still become `name[ARGS]` before a brace."""
    name, bracket, rest = text.partition("[")
    return all(c.isalnum() or c in "_-. " for c in name) and suffix.startswith(bracket + rest)


def _joined(events: list[ToolEvent]) -> list[ToolEvent]:
    """Neighbours of the same kind as one."""
    out: list[ToolEvent] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, str) and isinstance(last, str):
            out[-1] = last + event
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            out[-1] = CallArguments(last.text + event.text)
        else:
            out.append(event)
    return out


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One family's way of calling tools.

    Attributes:
        markers: special tokens that must be seen in the text although special tokens are not shown.
        id_length: characters of a call's id; `None` is OpenAI's form.
    """

    name: str
    parser: Callable[[Callable[[str], bool]], ToolParser]
    markers: frozenset[str] = frozenset()
    id_length: int | None = None


FORMATS: Final = (
    ToolFormat("mistral", ListedCalls, frozenset({ListedCalls.begin, ListedCalls.arguments}), id_length=9),
    ToolFormat("hermes", MarkedCalls, frozenset({MarkedCalls.begin, MarkedCalls.end})),
    ToolFormat("llama3_json", BareCalls, frozenset({BareCalls.tag})),
)


def tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; `None` where it is none of those known."""
    mistral, hermes, llama = FORMATS
    if ListedCalls.begin in template:
        return mistral
    if MarkedCalls.begin in template and "<function=" not in template:
        return hermes
    if BareCalls.tag in template or 'Respond in the format {"name": function name, "parameters"' in template:
        return llama
    return None
