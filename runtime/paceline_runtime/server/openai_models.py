"""The bodies of OpenAI's API that this server answers with."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

OpenAIFinish = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Parts of the prompt's tokens."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request, summed over its choices. The token that ends an answer is counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


# --- log-probabilities ---


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that might have been chosen. `bytes` is what it stands for; joined they are the text."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobEntry(msgspec.Struct, frozen=True):
    """A token of the answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of chats."""

    content: list[TokenLogprobEntry]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of text completions; `null` for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, frozen=True):
    """One entry of `prompt_logprobs`, vLLM's form."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]

# --- chats ---


class CalledFunction(msgspec.Struct, frozen=True):
    """A function and the JSON of its arguments, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model wants made."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `content` is `null` only where there are tool calls and no text."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a chat completion."""

    index: int
    message: ChatMessage
    finish_reason: OpenAIFinish
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a call: the name comes once, the arguments in pieces."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the call at `index`; `id` and `type` come once."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one answer of a streamed chat completion."""

    index: int
    delta: ChatDelta
    finish_reason: OpenAIFinish | None = None
    logprobs: ChatLogprobs | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat completion. `usage` is there only where the client asked for it."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


# --- text completions ---


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One text, or a piece of it in a stream."""

    index: int
    text: str
    finish_reason: OpenAIFinish | None = None
    logprobs: CompletionLogprobs | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /v1/completions`, and one event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | UnsetType | None = UNSET


# --- models ---


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `GET /v1/models`. `max_model_len` is our addition: tokens of prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int


class Tokens(msgspec.Struct, frozen=True):
    """`POST /tokenize`, vLLM's form."""

    count: int
    max_model_len: int
    tokens: list[int]


class Text(msgspec.Struct, frozen=True):
    """`POST /detokenize`, vLLM's form."""

    prompt: str


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[Model]
