"""One tool call as models write it, `{"name": …, "arguments": {…}}`, read character by character."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})
_SPACE: Final = " \t\r\n"


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A tool call, as soon as its name is known."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments' JSON of the call that began last."""

    text: str


CallEvent = CallBegins | CallArguments


class _At(enum.Enum):
    OPEN = enum.auto()
    KEY = enum.auto()
    COLON = enum.auto()
    VALUE = enum.auto()
    AFTER = enum.auto()
    DONE = enum.auto()
    BROKEN = enum.auto()


class ToolCallReader:
    """Reads one JSON object; events come as early as they are certain.

    The arguments are passed on as the model writes them, so an answer that is cut off has delivered what there was.
    A model that writes them as a string (JSON within JSON) has them unpacked; `null` and none at all are `{}`.

    Args:
        is_tool: which names are calls; another makes the object plain text (`broken`).

    Attributes:
        raw: all characters taken so far.
        name: of the tool, once known.
    """

    def __init__(self, is_tool: Callable[[str], bool] = lambda _: True) -> None:
        self._is_tool = is_tool
        self._at = _At.OPEN
        self._key = ""
        self._buffer = ""
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._held: list[str] = []
        self._sent_arguments = False
        self.raw = ""
        self.name: str | None = None

    @property
    def done(self) -> bool:
        """The object is complete."""
        return self._at is _At.DONE

    @property
    def broken(self) -> bool:
        """This is no tool call, or no JSON any more."""
        return self._at is _At.BROKEN

    @property
    def after_value(self) -> bool:
        """A member of the object has just ended."""
        return self._at is _At.AFTER

    @property
    def in_string(self) -> bool:
        """Whether the next character is inside a JSON string, where a marker is only text."""
        return self._in_string

    def feed(self, character: str) -> list[CallEvent]:
        """Take one character; do not call it once `done` or `broken`."""
        self.raw += character
        if self._at is _At.VALUE and self._buffer:
            return self._go_on(character)
        if self._at is _At.KEY and self._buffer:
            return self._go_on_key(character)
        if character in _SPACE:
            return []
        if self._at is _At.OPEN and character == "{":
            self._at = _At.KEY
        elif self._at is _At.KEY and character == '"':
            self._buffer, self._in_string = character, True
        elif self._at is _At.KEY and character == "}":
            return self._close()
        elif self._at is _At.COLON and character == ":":
            self._at = _At.VALUE
        elif self._at is _At.VALUE and character not in ",:]}":
            return self._begin_value(character)
        elif self._at is _At.AFTER and character == ",":
            self._at = _At.KEY
        elif self._at is _At.AFTER and character == "}":
            return self._close()
        else:
            self._at = _At.BROKEN
        return []

    def finish(self) -> list[CallEvent]:
        """The model says that the call ends here, whether its object is complete or not."""
        if self.name is None or self.done or self._sent_arguments or self._buffer:
            return []
        return self._arguments("{}")

    def _go_on_key(self, character: str) -> list[CallEvent]:
        self._buffer += character
        self._track(character)
        if not self._in_string:
            self._key, self._buffer = str(_decoded(self._buffer)), ""
            self._at = _At.COLON
        return []

    def _begin_value(self, character: str) -> list[CallEvent]:
        self._buffer = character
        self._track(character)
        return self._pass_on(character)

    def _go_on(self, character: str) -> list[CallEvent]:
        if not self._in_string and self._depth == 0 and self._buffer[0] not in '"{[' and character in ",}" + _SPACE:
            # A number, `true`, `false` or `null` ends at what follows it.
            events = self._end_value()
            if self.broken or character in _SPACE:
                return events
            self._at = _At.AFTER
            if character == ",":
                self._at = _At.KEY
                return events
            return [*events, *self._close()]
        self._buffer += character
        self._track(character)
        events = self._pass_on(character)
        if not self._in_string and self._depth == 0 and self._buffer[0] in '"{[':
            events += self._end_value()
        return events

    def _track(self, character: str) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def _pass_on(self, text: str) -> list[CallEvent]:
        """A piece of an object or list that is the arguments."""
        if self._key not in ARGUMENT_KEYS or self._buffer[0] not in "{[":
            return []
        return self._arguments(text)

    def _arguments(self, text: str) -> list[CallEvent]:
        if self.name is None:
            self._held.append(text)
            return []
        self._sent_arguments = True
        return [CallArguments(text)]

    def _end_value(self) -> list[CallEvent]:
        value, self._buffer, self._at = self._buffer, "", _At.AFTER
        if self._key == "name":
            name = _decoded(value)
            if self.name is not None or not isinstance(name, str) or not name or not self._is_tool(name):
                self._at = _At.BROKEN
                return []
            self.name = name
            events: list[CallEvent] = [CallBegins(name)]
            held, self._held = "".join(self._held), []
            return events + (self._arguments(held) if held else [])
        if self._key in ARGUMENT_KEYS and value[0] == '"':
            text = _decoded(value)
            return self._arguments(text) if isinstance(text, str) and text else []
        return []

    def _close(self) -> list[CallEvent]:
        if self.name is None:
            self._at = _At.BROKEN
            return []
        self._at = _At.DONE
        return [] if self._sent_arguments else self._arguments("{}")


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return None
