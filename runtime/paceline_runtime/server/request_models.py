"""What clients may ask for, as models: of what is honoured here. What else is taken or refused is in `other_fields`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 1024
MAX_STOP_TOKENS: Final = 128
MAX_PROMPTS: Final = 64
MAX_CHOICES: Final = 16
MAX_ANSWERS: Final = 256
"""Of one request: prompts times `n`."""
MAX_LOGPROBS: Final = 20
MAX_BIASES: Final = 4096
MAX_BAD_WORDS: Final = 128
MAX_TOOLS: Final = 128
MAX_TEMPLATE_ARGUMENTS: Final = 16
MAX_DETOKENIZED: Final = 1_000_000
COMPLETION_MAX_TOKENS: Final = 16
"""`max_tokens` of `/v1/completions` where the client says nothing (chat: as many as fit)."""

_INT64 = 2**63
_INT32 = 2**31


def _stop_list(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise ValueError(f"may have at most {MAX_STOPS} strings, this has {len(stops)}")
    if not all(stops):
        raise ValueError("must not have an empty string")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"strings may have at most {MAX_STOP_CHARS} characters")
    return stops


def _bias_map(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids and numbers")
    if len(value) > MAX_BIASES:
        raise ValueError(f"may have at most {MAX_BIASES} entries, this has {len(value)}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit()) or (key[0] == "0" and key != "0"):
            raise ValueError(f"the key {key[:40]!r} is no token id")
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise ValueError(f"the bias of token {key[:40]} must be a number from -100 to 100")
        if len(key) > 18:
            raise ValueError(f"the key {key[:40]!r} is beyond every vocabulary")
        biases[int(key)] = float(bias)
    return biases


_STOP_SCHEMA: Final = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS},
        {
            "type": "array",
            "maxItems": MAX_STOPS,
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS},
        },
    ]
}
_BIAS_SCHEMA: Final = {
    "type": "object",
    "maxProperties": MAX_BIASES,
    "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,17})$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
_TOKEN_ID_SCHEMA: Final = {"type": "integer", "minimum": 0}
_PROMPT_SCHEMA: Final = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"type": "string", "minLength": 1}},
        {"type": "array", "minItems": 1, "items": _TOKEN_ID_SCHEMA},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_PROMPTS,
            "items": {"type": "array", "minItems": 1, "items": _TOKEN_ID_SCHEMA},
        },
    ]
}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_CONTENT_SCHEMA: Final = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            },
        },
    ]
}
_CALL_SCHEMA: Final = {
    "type": "object",
    "required": ["id", "function"],
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string"},
                "arguments": {"type": "string", "description": "A JSON object."},
            },
        },
    },
}


def _message_schema(roles: list[str], required: list[str], **more: object) -> dict[str, object]:
    return {
        "type": "object",
        "required": ["role", *required],
        "additionalProperties": False,
        "properties": {"role": {"enum": roles}, "content": _CONTENT_SCHEMA, "name": _TEXT_OR_NULL, **more},
    }


_MESSAGES_SCHEMA: Final = {
    "type": "array",
    "minItems": 1,
    "items": {
        "anyOf": [
            _message_schema(["system", "developer", "user"], ["content"]),
            _message_schema(["tool"], ["content", "tool_call_id"], tool_call_id={"type": "string"}),
            _message_schema(
                ["assistant"],
                [],
                content={"anyOf": [*_CONTENT_SCHEMA["anyOf"], {"type": "null"}]},
                reasoning_content=_TEXT_OR_NULL,
                refusal=_TEXT_OR_NULL,
                annotations={},
                tool_calls={
                    "anyOf": [{"type": "array", "items": _CALL_SCHEMA}, {"type": "null"}],
                    "description": "Taken where the model's chat template shows them.",
                },
            ),
        ]
    },
}
_TOKEN_IDS = Annotated[list[int], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Body):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class FunctionDefinition(_Body):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Literal[False] | None = None


class Tool(_Body):
    """One of `tools`."""

    type: Literal["function"]
    function: FunctionDefinition


class GenerationBody(_Body):
    """Fields of both endpoints."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=_INT32)] = 0
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1.0
    logit_bias: Annotated[dict[int, float], BeforeValidator(_bias_map), WithJsonSchema(_BIAS_SCHEMA)] = {}
    allowed_token_ids: Annotated[list[int], Field(min_length=1, fail_fast=True)] | None = None
    bad_words: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
        Field(max_length=MAX_BAD_WORDS, fail_fast=True),
    ] = []
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=_INT32)] = 0
    stop: Annotated[list[str], BeforeValidator(_stop_list), WithJsonSchema(_STOP_SCHEMA)] = []
    stop_token_ids: _TOKEN_IDS = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_token_ids: bool = False
    priority: Annotated[int, Field(ge=-9999, le=9999)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] = ""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage event."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_always(self) -> bool:
        """Whether every event of the stream has the usage so far."""
        return self.include_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats


class ChatRequest(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Field(fail_fast=True), WithJsonSchema(_MESSAGES_SCHEMA)]
    max_tokens: Annotated[int, Field(ge=1, lt=_INT64)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=_INT64)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] = []
    tool_choice: Literal["none", "auto"] = "auto"
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_ARGUMENTS)] = {}


class CompletionRequest(GenerationBody):
    """`POST /v1/completions`."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)]
    max_tokens: Annotated[int, Field(ge=0, lt=_INT64)] = COMPLETION_MAX_TOKENS
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = False


class TokenizeRequest(_Body):
    """`POST /tokenize`: of a `prompt` or of `messages`."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"type": kind}}}
                for name, kind in (("prompt", "string"), ("messages", "array"))
            ]
        },
    )

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Field(fail_fast=True), WithJsonSchema(_MESSAGES_SCHEMA)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] = []
    add_generation_prompt: bool = True
    add_special_tokens: bool = True
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_ARGUMENTS)] = {}


class DetokenizeRequest(_Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[
        list[int],
        Field(max_length=MAX_DETOKENIZED, fail_fast=True),
        WithJsonSchema({"type": "array", "maxItems": MAX_DETOKENIZED, "items": _TOKEN_ID_SCHEMA}),
    ]
