"""Clients' prompts and conversations as token ids: checked, bounded, and long texts off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from .chat_template import ChatTemplate, TemplateRejected
from .conversation import chat_messages
from .errors import bad_request, context_overflow, unavailable
from .reasoning import BEGIN, thinks
from .replica import Replica
from .request_models import CompletionRequest, Tool
from .request_parsing import completion_prompts
from .sampling import check_ids
from .tokenizer import Tokenizer, text_size
from .tool_formats import ToolFormat, tool_format

LONG_TEXT_CHARS: Final = 4096
"""Longer texts are tokenised in a thread, so that the event loop goes on delivering other requests' tokens."""
LARGE_TEXT_CHARS: Final = 256 * 1024
"""Of those that are longer still, one at a time is tokenised: each takes some hundred bytes for every character."""
MAX_WAITING_CHARS: Final = 64 * 1024 * 1024
"""Of large texts that are or wait to be tokenised. Beyond that, clients are told to come back."""
UNBOUNDED_FACTOR: Final = 4
"""`/tokenize` takes what does not fit the model, up to as many model lengths."""
MAX_TOKENIZE_CHARS: Final = 4 * 1024 * 1024
_LAST_TOKENS: Final = 16
_OWN_ARGUMENTS: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

T = TypeVar("T")


class PromptEncoder:
    """Makes token ids of what clients send to one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")
        self._large_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize-large")
        self._waiting_chars = 0

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises: ApiError: 503 before it is loaded."""
        return self._replica.tokenizer

    @property
    def vocab_size(self) -> int:
        """Ids below this are tokens, of the tokenizer and of the model."""
        return min(self._replica.tokenizer.vocab_size, self._replica.ready.model.vocab_size)

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Do it in a thread, if it is much; very much only one at a time.

        Args:
            size: characters or tokens.

        Raises:
            ApiError: 503 when too much waits already.
        """
        if size <= LONG_TEXT_CHARS:
            return work()
        loop = asyncio.get_running_loop()
        if size <= LARGE_TEXT_CHARS:
            return await loop.run_in_executor(self._threads, work)
        if self._waiting_chars and self._waiting_chars + size > MAX_WAITING_CHARS:
            raise unavailable("Too many long texts wait to be tokenised; try again soon.")
        self._waiting_chars += size
        try:
            return await loop.run_in_executor(self._large_thread, work)
        finally:
            self._waiting_chars -= size

    async def any_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text that need not fit the model.

        Raises:
            ApiError: 400 when it is far longer than the model takes.
        """
        self._check_unbounded(len(text), "prompt")
        return await self._text(text, add_special_tokens=add_special_tokens)

    async def _text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        tokenizer = self.tokenizer
        return await self.off_loop(len(text), lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def tool_format(self, tools: Sequence[Tool]) -> ToolFormat | None:
        """How this model calls tools; `None` where there are none.

        Raises:
            ApiError: 400 when the model cannot be shown tools, or writes calls in a way that is not known here.
        """
        if not tools:
            return None
        template = self.tokenizer.tool_template
        if template is None or not template.takes_tools:
            raise bad_request(
                "This model cannot call tools: its chat template has no place for them. Leave out 'tools', or use a "
                "model that was trained for them.",
                "tools",
                "unsupported_parameter",
            )
        found = tool_format(template.source)
        if found is None:
            raise bad_request(
                "How this model writes tool calls is not known here; known are the ways of Qwen and Hermes "
                "(<tool_call>), Llama 3 (JSON) and Mistral ([TOOL_CALLS]).",
                "tools",
                "unsupported_parameter",
            )
        return found

    def thinking(self, prompt: Sequence[int]) -> bool | None:
        """Whether the answer to a chat begins within thoughts; `None` for models that do not think aloud."""
        template = self.tokenizer.chat_template
        if template is None or not thinks(template.source):
            return None
        return self.tokenizer.decode_all(prompt[-_LAST_TOKENS:]).rstrip().endswith(BEGIN)

    async def chat(
        self,
        given: Sequence[dict[str, Any]],
        *,
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = True,
        arguments: dict[str, Any] | None = None,
        bounded: bool = True,
    ) -> list[int]:
        """Token ids of a conversation.

        Args:
            arguments: `chat_template_kwargs`.
            bounded: whether it must fit the model; else it may be some times as long.

        Raises:
            ApiError: 400 naming the part at fault.
        """
        tokenizer, limit = self.tokenizer, self._replica.max_model_len
        template = tokenizer.tool_template if tools else tokenizer.chat_template
        if template is None:
            raise bad_request(
                "This model has no chat template; use /v1/completions.", "messages", "chat_template_missing"
            )
        _check_arguments(arguments or {}, template)
        if bounded and len(given) > limit:
            raise context_overflow(f"more than {len(given)}", limit, "messages")
        if not bounded:
            self._check_unbounded(text_size(given), "messages")
        messages = chat_messages(given, reads_tool_calls=template.reads_tool_calls)
        shown = [tool.model_dump(exclude_none=True) for tool in tools]
        if bounded:
            self._check_chars(sum(len(message["content"]) for message in messages) + len(messages), "messages")
        try:
            token_ids = await self.off_loop(
                text_size([messages, shown, arguments or {}]),
                lambda: tokenizer.encode_chat(
                    messages, tools=shown, add_generation_prompt=add_generation_prompt, arguments=arguments
                ),
            )
        except TemplateRejected as error:
            raise bad_request(str(error), "messages", "template_rejected") from None
        if bounded:
            self._check_length(len(token_ids), 1, "messages")
        if bounded and not token_ids:
            raise bad_request("The conversation has no tokens.", "messages", "invalid_value")
        return token_ids

    async def prompts(self, body: CompletionRequest) -> list[tuple[list[int], str]]:
        """Token ids and, where the client wants it back, text of each prompt.

        Raises:
            ApiError: 400 for what is no prompt or does not fit.
        """
        result: list[tuple[list[int], str]] = []
        for prompt in completion_prompts(body.prompt, body.n):
            if isinstance(prompt, str):
                self._check_chars(len(prompt), "prompt")
                token_ids, text = await self._text(prompt), prompt
                if not token_ids:
                    raise bad_request("'prompt' has no tokens.", "prompt", "invalid_value")
            else:
                self._check_length(len(prompt), min(body.max_tokens, 1), "prompt")
                check_ids(prompt, self.vocab_size, "prompt")
                token_ids, text = prompt, await self._echo(prompt) if body.echo else ""
            self._check_length(len(token_ids), min(body.max_tokens, 1), "prompt")
            result.append((token_ids, text))
        return result

    async def _echo(self, token_ids: list[int]) -> str:
        tokenizer = self.tokenizer
        return await self.off_loop(len(token_ids), lambda: tokenizer.decode(token_ids))

    def _check_unbounded(self, chars: int, param: str) -> None:
        most = self._replica.max_model_len * UNBOUNDED_FACTOR * self.tokenizer.longest_token_chars
        most = min(most, MAX_TOKENIZE_CHARS)
        if chars > most:
            raise bad_request(
                f"{param!r} has {chars} characters; at most {most} are tokenised here, far more than this model takes.",
                param,
                "invalid_value",
            )

    def _check_chars(self, chars: int, param: str) -> None:
        # No token is longer than this, so the text cannot fit: said without tokenising megabytes.
        limit = self._replica.max_model_len
        least = chars // self.tokenizer.longest_token_chars
        if least > limit:
            raise context_overflow(f"more than {least}", limit, param)

    def _check_length(self, tokens: int, answer_tokens: int, param: str) -> None:
        if tokens + answer_tokens > self._replica.max_model_len:
            raise context_overflow(str(tokens), self._replica.max_model_len, param)


def _check_arguments(arguments: dict[str, Any], template: ChatTemplate) -> None:
    for name in arguments:
        if name in _OWN_ARGUMENTS:
            raise bad_request(
                f"chat_template_kwargs.{name} is given by a field of its own.",
                f"chat_template_kwargs.{name}",
                "invalid_value",
            )
        if name not in template.names:
            raise bad_request(
                f"The model's chat template knows no {name[:64]!r}.", f"chat_template_kwargs.{name}", "invalid_value"
            )
