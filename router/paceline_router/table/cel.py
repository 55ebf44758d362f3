"""The part of CEL (cel.dev) in which the rules of the CRDs are written, for a file that no API server checks.

Only what those rules use: whatever else an expression has is a `CelError` when it is read, never a rule passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from paceline_crds.durations import parse_duration

Scope: TypeAlias = Mapping[str, Any]
Evaluation: TypeAlias = Callable[[Scope], Any]


class CelError(ValueError):
    """The expression has something that is not read here."""


class CelValueError(ValueError):
    """A value is missing, or of another type than the expression wants."""


_TOKEN = re.compile(
    r"\s*(?:(?P<text>r?'(?:[^'\\]|\\.)*'|r?\"(?:[^\"\\]|\\.)*\")|(?P<number>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!?:.,()\[\]]))"
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}

_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<=": lambda left, right: left <= right,
    ">=": lambda left, right: left >= right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "in": lambda left, right: left in right,
}

_METHODS: dict[str, Callable[..., Any]] = {
    # RE2's $ is the end of the text, Python's also the place before a last line break.
    "matches": lambda text, pattern: re.search(re.sub(r"(?<!\\)\$", r"\\Z", pattern), text) is not None,
    "lowerAscii": lambda text: text.lower(),
    "startsWith": lambda text, prefix: text.startswith(prefix),
    "endsWith": lambda text, suffix: text.endswith(suffix),
    "size": len,
    "isSorted": lambda items: list(items) == sorted(items),
    "format": lambda text, values: text.replace("%d", "%s") % tuple(values),
    "getHours": lambda moment, zone: moment.astimezone(ZoneInfo(zone)).hour,
}

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "size": len,
    "timestamp": datetime.fromisoformat,
    "duration": parse_duration,
}

_MACROS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "all": lambda items, holds: all(map(holds, items)),
    "exists": lambda items, holds: any(map(holds, items)),
    "exists_one": lambda items, holds: sum(map(bool, map(holds, items))) == 1,
    "filter": lambda items, holds: [item for item in items if holds(item)],
    "map": lambda items, made: [made(item) for item in items],
}

_WRONG_VALUE = (KeyError, IndexError, TypeError, AttributeError)
_CONSTANTS = {"true": True, "false": False, "null": None}


def compile_cel(expression: str) -> Evaluation:
    """Read an expression; what comes back evaluates it for the values of its names.

    Raises:
        CelError: it has something that is not read here. The evaluation raises `CelValueError`.
    """
    evaluation = _Reader(expression).read()

    def evaluate(scope: Scope) -> Any:
        try:
            return evaluation(scope)
        except _WRONG_VALUE as exc:
            raise CelValueError(f"{expression}: {exc!r}") from exc

    return evaluate


def _decided_by(parts: list[Evaluation], decisive: bool) -> Evaluation:
    """`||` (decided by true) and `&&` (by false): a part that decides does so whatever errors the others are."""

    def evaluate(scope: Scope) -> bool:
        error: Exception | None = None
        for part in parts:
            try:
                if bool(part(scope)) is decisive:
                    return decisive
            except _WRONG_VALUE as exc:
                error = exc
        if error is not None:
            raise error
        return not decisive

    return evaluate


class _Reader:
    """Recursive descent; each method reads one level of precedence and returns its evaluation."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while expression[at:].strip():
            match = _TOKEN.match(expression, at)
            if match is None:
                raise CelError(f"{expression[at:]!r} is not read here, in: {expression}")
            kind = str(match.lastgroup)
            self._tokens.append((kind, match[kind]))
            at = match.end()
        self._tokens.append(("end", ""))
        self._at = 0

    def read(self) -> Evaluation:
        found = self._choice()
        if self._peek()[0] != "end":
            raise self._unknown()
        return found

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> str | None:
        """The next token if it is one of these (outside of quotes)."""
        kind, text = self._peek()
        if kind == "text" or text not in texts:
            return None
        self._at += 1
        return text

    def _need(self, text: str) -> None:
        if self._take(text) is None:
            raise self._unknown()

    def _name(self) -> str:
        kind, text = self._peek()
        if kind != "name":
            raise self._unknown()
        self._at += 1
        return text

    def _unknown(self) -> CelError:
        return CelError(f"{self._peek()[1] or 'the end'!r} is not expected there, in: {self._expression}")

    def _choice(self) -> Evaluation:
        condition = self._either()
        if self._take("?") is None:
            return condition
        yes = self._choice()
        self._need(":")
        no = self._choice()
        return lambda scope: yes(scope) if condition(scope) else no(scope)

    def _either(self) -> Evaluation:
        parts = [self._both()]
        while self._take("||"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else _decided_by(parts, True)

    def _both(self) -> Evaluation:
        parts = [self._relation()]
        while self._take("&&"):
            parts.append(self._relation())
        return parts[0] if len(parts) == 1 else _decided_by(parts, False)

    def _relation(self) -> Evaluation:
        left = self._unary()
        sign = self._take(*_RELATIONS)
        if sign is None:
            return left
        relation, right = _RELATIONS[sign], self._unary()
        return lambda scope: relation(left(scope), right(scope))

    def _unary(self) -> Evaluation:
        if self._take("!"):
            operand = self._unary()
            return lambda scope: not operand(scope)
        return self._members(self._primary())

    def _members(self, found: Evaluation) -> Evaluation:
        while True:
            if self._take("."):
                found = self._member(found, self._name())
            elif self._take("["):
                found = self._item(found, self._choice())
                self._need("]")
            else:
                return found

    def _member(self, owner: Evaluation, name: str) -> Evaluation:
        if not self._take("("):
            return lambda scope: owner(scope)[name]
        if name in _MACROS:
            macro, variable = _MACROS[name], self._name()
            self._need(",")
            body = self._choice()
            self._need(")")
            return lambda scope: macro(owner(scope), lambda item: body({**scope, variable: item}))
        if name not in _METHODS:
            raise CelError(f"the method {name} is not known here, in: {self._expression}")
        method, arguments = _METHODS[name], self._list(")")
        return lambda scope: method(owner(scope), *(argument(scope) for argument in arguments))

    @staticmethod
    def _item(owner: Evaluation, key: Evaluation) -> Evaluation:
        return lambda scope: owner(scope)[key(scope)]

    def _primary(self) -> Evaluation:
        kind, text = self._peek()
        self._at += 1
        if kind == "text":
            constant: Any = text[2:-1] if text[0] == "r" else _ESCAPE.sub(_unescaped, text[1:-1])
            return lambda scope: constant
        if kind == "number":
            constant = int(text)
            return lambda scope: constant
        if text == "(":
            found = self._choice()
            self._need(")")
            return found
        if text == "[":
            items = self._list("]")
            return lambda scope: [item(scope) for item in items]
        if kind != "name":
            self._at -= 1
            raise self._unknown()
        if text in _CONSTANTS:
            constant = _CONSTANTS[text]
            return lambda scope: constant
        if self._take("("):
            return self._call(text)
        return lambda scope: scope[text]

    def _call(self, function: str) -> Evaluation:
        if function in _FUNCTIONS:
            operand, made = self._choice(), _FUNCTIONS[function]
            self._need(")")
            return lambda scope: made(operand(scope))
        if function != "has":
            raise CelError(f"the function {function} is not known here, in: {self._expression}")
        path = [self._name()]
        while self._take("."):
            path.append(self._name())
        self._need(")")
        if len(path) < 2:
            raise self._unknown()

        def has(scope: Scope) -> bool:
            value: Any = scope
            for name in path[:-1]:
                value = value[name]
            return path[-1] in value

        return has

    def _list(self, end: str) -> list[Evaluation]:
        found: list[Evaluation] = []
        while not self._take(end):
            if found:
                self._need(",")
            found.append(self._choice())
        return found


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)
