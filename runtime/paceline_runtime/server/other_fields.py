"""Fields of OpenAI's and vLLM's requests that are not honoured: what of them is taken, and what is refused by name."""

from __future__ import annotations

from typing import Any, Final

from .request_models import ChatRequest, CompletionRequest

LABELS: Final = {
    "user": {"type": "string"},
    "metadata": {"type": "object"},
    "safety_identifier": {"type": "string"},
    "prompt_cache_key": {"type": "string"},
    "prompt_cache_retention": {"type": "string"},
}
"""For the provider's own records: they are taken and change nothing in the answer. By name, with their schema."""

NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "suffix": ("",),
    "length_penalty": (1, 1.0),
    "use_beam_search": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "request_id": (),
    "continue_final_message": (False,),
    "chat_template": (),
    "documents": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "web_search_options": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    # Known to one of the two endpoints only.
    "echo": (False,),
    "max_completion_tokens": (),
    "messages": (),
    "prompt": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (),
    "parallel_tool_calls": (True, False),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
}
"""Features that are not there: taken only with a value that asks for nothing, of which there may be none."""

WHY: Final = {
    "response_format": "answers that follow a schema are not supported yet",
    "structured_outputs": "answers that follow a schema are not supported yet",
    "suffix": "the model continues a text; it does not fill gaps",
    "best_of": "give it the value of 'n', or leave it out: answers are not made to be thrown away",
}


def is_neutral(name: str, value: Any) -> bool:
    """Whether this value of a field that is not honoured asks for nothing."""
    return any(type(value) is type(taken) and value == taken for taken in NEUTRAL[name])


def schemas(kind: type[ChatRequest] | type[CompletionRequest]) -> dict[str, Any]:
    """JSON schemas of the fields that this endpoint takes besides those of its model."""
    taken = {name: {"enum": list(values)} for name, values in NEUTRAL.items() if values}
    return {name: schema for name, schema in {**LABELS, **taken}.items() if name not in kind.model_fields}
