"""From a body's bytes to a request. Every field is honoured, known to change nothing, or refused by name."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from paceline_crds.errors import CODE_CONTEXT_LENGTH

from . import other_fields
from .errors import ApiError, bad_request
from .request_models import (
    MAX_ANSWERS,
    MAX_PROMPTS,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

MAX_DEPTH: Final = 64
"""Of objects and lists in a body. Deeper ones would fail somewhere inside a template."""

MAX_FIELDS: Final = 128
"""Of a request."""
MAX_MEMBERS: Final = 10_000
"""Of any object in a body."""
MAX_ENTRIES: Final = 2**20
"""Of any list in a body."""
MAX_CONTAINERS: Final = 50_000
"""Objects and lists in a body, the parts of messages among them."""
MAX_MESSAGES: Final = 20_000
MAX_METADATA: Final = 64

R = TypeVar("R", ChatRequest, CompletionRequest)
T = TypeVar("T", TokenizeRequest, DetokenizeRequest)
V = TypeVar("V", bound=BaseModel)


def parse(kind: type[R], body: bytes) -> R:
    """A generation request from its body; `null` is the same as absent.

    Raises:
        ApiError: 400 naming the field at fault.
    """
    given = _without_nulls(json_object(body))
    if isinstance(given.get("stream_options"), dict):
        given["stream_options"] = _without_nulls(given["stream_options"])
    for name in [name for name in given if name not in kind.model_fields]:
        if name in other_fields.LABELS:
            wanted = dict if name == "metadata" else str
            value = given[name]
            if isinstance(value, dict) and len(value) > MAX_METADATA:
                raise bad_request(
                    f"{name!r} has {len(value)} entries; {MAX_METADATA} are allowed.", name, "invalid_value"
                )
            if not isinstance(value, wanted):
                raise bad_request(
                    f"{name!r} must be {'an object' if wanted is dict else 'a string'}.", name, "invalid_value"
                )
        elif name not in other_fields.NEUTRAL:
            continue  # pydantic names it
        elif not other_fields.is_neutral(name, given[name]):
            raise _unsupported(name)
        del given[name]
    if kind is ChatRequest:
        _check_tool_choice(given)
    request = _validated(kind, given)
    _check_together(request)
    return request


def parse_plain(kind: type[T], body: bytes) -> T:
    """A request of `/tokenize` or `/detokenize` from its body; `null` is the same as absent.

    Raises:
        ApiError: 400 naming the field at fault.
    """
    return _validated(kind, _without_nulls(json_object(body)))


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; of two members with the same name the last counts.

    How much is in it is bounded here: what is looked at one by one later holds the event loop for each.

    Raises:
        ApiError: 400 where it is none; `NaN` and broken text are no JSON.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not valid JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    if len(value) > MAX_FIELDS:
        raise bad_request(f"The body has {len(value)} fields; {MAX_FIELDS} are allowed.", None, "invalid_value")
    messages = value.get("messages")
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise bad_request(
            f"'messages' has {len(messages)} messages; {MAX_MESSAGES} are allowed. Shorten the history.",
            "messages",
            CODE_CONTEXT_LENGTH,  # who shortens histories acts on it
        )
    _check_extent(value)
    return value


def _check_extent(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    room = MAX_CONTAINERS
    for _ in range(MAX_DEPTH):
        below = (
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, dict | list)
        )
        level = list(islice(below, room + 1))
        if not level:
            return
        room -= len(level)
        if room < 0:
            raise bad_request(
                f"The body has more than {MAX_CONTAINERS} objects and lists; send fewer and longer texts.",
                None,
                "invalid_value",
            )
        _check_sizes(level)
    raise _too_deep()


def _check_sizes(containers: list[Any]) -> None:
    for item in containers:
        if isinstance(item, dict) and len(item) > MAX_MEMBERS:
            fault = f"An object in the body has {len(item)} members; {MAX_MEMBERS} are allowed."
        elif isinstance(item, list) and len(item) > MAX_ENTRIES:
            fault = f"A list in the body has {len(item)} entries; {MAX_ENTRIES} are allowed."
        else:
            continue
        raise bad_request(fault, None, "invalid_value")


def _too_deep() -> ApiError:
    return bad_request(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _unsupported(name: str) -> ApiError:
    why = other_fields.WHY.get(name, "leave it out, or give it the value that asks for nothing")
    return bad_request(f"{name!r} is not supported by this server: {why}.", name, "unsupported_parameter")


def _check_tool_choice(given: dict[str, Any]) -> None:
    choice = given.get("tool_choice")
    if choice == "required" or isinstance(choice, dict):
        raise bad_request(
            "'tool_choice' may be 'none' or 'auto': a model cannot be made to call a tool, since answers that follow a "
            "schema are not supported yet.",
            "tool_choice",
            "unsupported_parameter",
        )
    for n, tool in enumerate(given["tools"] if isinstance(given.get("tools"), list) else ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("strict") is True:
            raise bad_request(
                f"tools.{n}.function.strict is not supported: answers that follow a schema are not supported yet.",
                f"tools.{n}.function.strict",
                "unsupported_parameter",
            )


def _check_together(request: ChatRequest | CompletionRequest) -> None:
    """What is right alone may be wrong together."""
    if request.stream_options is not None and not request.stream:
        raise bad_request("'stream_options' is only allowed when 'stream' is true.", "stream_options", "invalid_value")
    if request.best_of not in (None, request.n):
        raise _unsupported("best_of")
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request(
            "'prompt_logprobs' comes with the whole answer; leave out 'stream', or use 'echo' with 'logprobs'.",
            "prompt_logprobs",
            "invalid_value",
        )
    if isinstance(request, ChatRequest):
        if request.top_logprobs is not None and not request.logprobs:
            raise bad_request("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs", "invalid_value")
        if request.max_tokens is not None and request.max_completion_tokens is not None:
            raise bad_request(
                "'max_tokens' and 'max_completion_tokens' mean the same; give one of them.",
                "max_tokens",
                "invalid_value",
            )
    limit = max_tokens_of(request)
    if limit is not None and request.min_tokens > limit:
        raise bad_request(f"'min_tokens' is more than the {limit} that are allowed.", "min_tokens", "invalid_value")
    shows_prompt = request.prompt_logprobs is not None or (isinstance(request, CompletionRequest) and request.echo)
    if limit == 0 and not shows_prompt:
        raise bad_request(
            "'max_tokens' may be 0 only together with 'echo' or 'prompt_logprobs'.", "max_tokens", "invalid_value"
        )


def max_tokens_of(request: ChatRequest | CompletionRequest) -> int | None:
    """The bound on an answer, by whichever name it was given."""
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens
    return request.max_tokens


def completion_prompts(prompt: Any, n: int = 1) -> list[str] | list[list[int]]:
    """The prompts of a completion: a string, a list of strings, a list of token ids, or a list of such lists.

    Args:
        n: answers for each.

    Raises:
        ApiError: 400 for anything else, empty ones, and more than `MAX_PROMPTS` or `MAX_ANSWERS`.
    """
    if isinstance(prompt, str) or _are_ids(prompt):
        prompts: list[Any] = [prompt]
    elif isinstance(prompt, list):
        prompts = prompt
    else:
        raise _no_prompt()
    if len(prompts) > MAX_PROMPTS:
        raise bad_request(f"'prompt' may have at most {MAX_PROMPTS} prompts.", "prompt", "invalid_value")
    if not prompts or any(item in ("", []) for item in prompts):
        raise bad_request("'prompt' must not be empty.", "prompt", "invalid_value")
    if len(prompts) * n > MAX_ANSWERS:
        raise bad_request(
            f"{len(prompts)} prompts with 'n' {n} are {len(prompts) * n} answers; a request may have {MAX_ANSWERS}.",
            "n",
            "invalid_value",
        )
    if all(isinstance(item, str) for item in prompts):
        return prompts
    if all(_are_ids(item) for item in prompts):
        return prompts
    raise _no_prompt()


def _are_ids(value: Any) -> bool:
    """Whether it is a list of whole numbers that is not empty."""
    return isinstance(value, list) and set(map(type, value)) == {int}


def _no_prompt() -> ApiError:
    return bad_request(
        "'prompt' must be a string, a list of strings, a list of token ids, or a list of lists of token ids.",
        "prompt",
        "invalid_value",
    )


def _validated(kind: type[V], given: dict[str, Any]) -> V:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _in_words(error) from None


def _in_words(error: ValidationError) -> ApiError:
    """The first fault of a validation, naming the field."""
    fault = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return bad_request(f"Unrecognized request argument supplied: {param}", param, "unknown_parameter")
    if fault["type"] == "missing":
        return bad_request(f"Missing required parameter: {param!r}.", param, "missing_required_parameter")
    message = str(fault["msg"]).removeprefix("Value error, ")
    return bad_request(f"Invalid value for {param!r}: {message[:1].lower()}{message[1:]}.", param, "invalid_value")
