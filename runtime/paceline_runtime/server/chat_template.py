"""Renders a conversation with the model's own Jinja template, in a sandbox, as Hugging Face transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRejected(ValueError):
    """The template refuses this conversation; the message is the template's own."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks answers for training; when serving it is just its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 reads a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which a prompt is not.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """A compiled template.

    Args:
        source: the Jinja source.
        special_tokens: names the template may refer to, e.g. `bos_token`.

    Raises:
        ValueError: when the source is no valid template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self.names = frozenset(jinja2.meta.find_undeclared_variables(environment.parse(source)))
            """What the template refers to and does not define itself."""
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the model's chat template is not valid Jinja: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.source = source
        self.takes_tools = "tools" in self.names
        """Whether the template shows tools to the model; another would drop them unseen."""

    @property
    def reads_tool_calls(self) -> bool:
        """Whether the template shows the tool calls of earlier answers; another would drop them unseen."""
        return "tool_calls" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text.

        Args:
            tools: definitions of tools in OpenAI's form.
            arguments: further names for the template, e.g. `enable_thinking`; they hide none of its own.

        Raises:
            TemplateRejected: when the template refuses the conversation or cannot work with it.
        """
        try:
            return self._template.render(
                {
                    **(arguments or {}),
                    **self._special_tokens,
                    "messages": messages,
                    "tools": tools or None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except jinja2.TemplateError as error:
            raise TemplateRejected(f"the model's chat template refuses these messages: {error.message}") from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            # Templates are programs; what they cannot work with shows as a Python error from inside them.
            raise TemplateRejected(f"the model's chat template cannot work with these messages: {error}") from error
