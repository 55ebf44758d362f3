"""`/v1/chat/completions`, `/v1/completions`, `/v1/models`, `/tokenize`, `/detokenize`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from paceline_runtime.messages import SamplingParams

from . import openapi
from .body import read_json_body, take_apart
from .chat_shape import ChatShape
from .completion_shape import CompletionShape
from .errors import ApiError, bad_request, model_not_found
from .generation import Answer, AnswerOptions, GenerationRequest, usage_of
from .metrics import Ended
from .openai_models import ChatCompletion, Completion, Model, ModelList, Text, Tokens
from .prompt_encoding import PromptEncoder
from .replica import Replica
from .request_models import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationBody,
    TokenizeRequest,
)
from .request_parsing import parse, parse_plain
from .sampling import check_ids, sampling_params
from .serving import answer
from .shape import ShapeOptions
from .sse import DONE, HEADERS
from .tool_formats import ToolFormat

B = TypeVar("B", ChatRequest, CompletionRequest)


class OpenAIRoutes:
    """The routes of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._encoder = PromptEncoder(replica)
        self.router = APIRouter()
        add = self.router.add_api_route
        for path, route, kind, answers in (
            ("/v1/chat/completions", self.chat_completions, ChatRequest, openapi.answers(ChatCompletion, streams=True)),
            ("/v1/completions", self.completions, CompletionRequest, openapi.answers(Completion, streams=True)),
            ("/tokenize", self.tokenize, TokenizeRequest, openapi.answers(Tokens)),
            ("/detokenize", self.detokenize, DetokenizeRequest, openapi.answers(Text)),
        ):
            extra = openapi.body_of(kind, replica.model_name)
            add(path, route, methods=["POST"], openapi_extra=extra, responses=answers, response_class=Response)
        for path, reading, answers in (
            ("/v1/models", self.models, openapi.answers(ModelList)),
            ("/v1/models/{model_id:path}", self.model, openapi.answers(Model)),
        ):
            add(path, reading, methods=["GET"], responses=answers, response_class=Response)

    # --- generation ---

    async def chat_completions(self, request: Request) -> Response:
        """A chat completion."""
        replica, encoder = self._replica, self._encoder
        replica.metrics.received(ChatShape.endpoint)
        try:
            body = await self._parsed(ChatRequest, request)
            tools = body.tools if body.tool_choice == "auto" else []
            calls = encoder.tool_format(tools)
            prompt = await encoder.chat(
                body.messages,
                tools=tools,
                add_generation_prompt=body.add_generation_prompt,
                arguments=body.chat_template_kwargs,
            )
            sampling = await self._sampling(body)
        except ApiError as error:
            replica.metrics.refused(error.status)
            raise
        wanted = GenerationRequest(
            prompts=[prompt],
            sampling=sampling,
            n=body.n,
            options=_options(body, calls, encoder.thinking(prompt)),
            stream=body.stream,
            include_usage=body.include_usage,
        )
        shape = ChatShape(self._shape_options(request, body, [prompt], sampling.logprobs))
        return await answer(
            replica, request, wanted, shape, priority=body.priority, cache_salt=body.cache_salt, param="messages"
        )

    async def completions(self, request: Request) -> Response:
        """A text completion."""
        replica, encoder = self._replica, self._encoder
        replica.metrics.received(CompletionShape.endpoint)
        try:
            body = await self._parsed(CompletionRequest, request)
            prompts = await encoder.prompts(body)
            sampling = await self._sampling(body)
        except ApiError as error:
            replica.metrics.refused(error.status)
            raise
        wanted = GenerationRequest(
            prompts=[token_ids for token_ids, _ in prompts],
            sampling=sampling,
            n=body.n,
            options=_options(body, None, None),
            stream=body.stream,
            include_usage=body.include_usage,
        )
        options = self._shape_options(request, body, wanted.prompts, body.logprobs)
        shape = CompletionShape(options, echo=[text for _, text in prompts] if body.echo else [])
        if body.max_tokens == 0 and sampling.prompt_logprobs is None:
            return self._echo_only(wanted, shape)
        return await answer(
            replica, request, wanted, shape, priority=body.priority, cache_salt=body.cache_salt, param="prompt"
        )

    def _echo_only(self, wanted: GenerationRequest, shape: CompletionShape) -> Response:
        """`max_tokens: 0` with `echo`: the prompt comes back, and the engine has nothing to do."""
        answers = [Answer(self._replica.tokenizer, wanted.options) for _ in range(len(wanted.prompts) * wanted.n)]
        for one in answers:
            one.finish_reason = "length"
        usage = usage_of(wanted.prompt_tokens, answers, wanted.n)
        self._replica.metrics.finished(Ended("length", (0,), 0.0))
        if not wanted.stream:
            return _json(shape.whole(answers, usage))
        events = [shape.opening(n, usage) + shape.ending(n, "length", usage) for n in range(len(answers))]
        if wanted.include_usage:
            events.append(shape.usage(usage))
        return Response(b"".join([*events, DONE]), headers=HEADERS)

    async def _parsed(self, kind: type[B], request: Request) -> B:
        given = await read_json_body(request, self._replica.options.max_body_bytes)
        body = await take_apart(given, lambda data: parse(kind, data))
        self._check_model(body.model)
        most = self._replica.ready.parameters.get("maxNumSeqs")
        if most is not None and body.n > int(most.value):
            raise bad_request(
                f"'n' may be {most.value} at most here: no more answers run at once.", "n", "invalid_value"
            )
        return body

    async def _sampling(self, body: ChatRequest | CompletionRequest) -> SamplingParams:
        tokenizer, vocab_size = self._encoder.tokenizer, self._encoder.vocab_size
        size = sum(map(len, body.bad_words)) + len(body.allowed_token_ids or ())
        return await self._encoder.off_loop(size, lambda: sampling_params(body, tokenizer, vocab_size))

    def _shape_options(
        self, request: Request, body: GenerationBody, prompts: Sequence[list[int]], logprobs: int | None
    ) -> ShapeOptions:
        replica = self._replica
        return ShapeOptions(
            request_id=request.state.context.request_id,
            created=int(time.time()),
            model=replica.model_name,
            fingerprint=f"fp_{replica.config_hash}",
            tokenizer=replica.tokenizer,
            prompts=prompts,
            n=body.n,
            logprobs=logprobs,
            prompt_logprobs=body.prompt_logprobs,
            token_ids=body.return_token_ids,
            include_usage=body.include_usage,
            usage_always=body.usage_always,
        )

    # --- models ---

    async def models(self) -> Response:
        """The one model of this replica."""
        return _json(ModelList(data=[self._model()]))

    async def model(self, model_id: str) -> Response:
        """A model by its id, which may have slashes."""
        if model_id != self._replica.model_name:
            raise model_not_found(model_id)
        return _json(self._model())

    def _model(self) -> Model:
        return Model(
            id=self._replica.model_name,
            created=self._replica.created,
            owned_by="paceline",
            max_model_len=self._replica.max_model_len,
        )

    def _check_model(self, model: str) -> None:
        if model != self._replica.model_name:
            raise model_not_found(model)

    # --- tokens ---

    async def tokenize(self, request: Request) -> Response:
        """Token ids of a `prompt` or of `messages`."""
        encoder = self._encoder
        given = await read_json_body(request, self._replica.options.max_body_bytes)
        body = await take_apart(given, lambda data: parse_plain(TokenizeRequest, data))
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("Give either 'prompt' or 'messages'.", "prompt")
        if body.model is not None:
            self._check_model(body.model)
        if body.messages is None:
            token_ids = await encoder.any_text(body.prompt or "", add_special_tokens=body.add_special_tokens)
        else:
            encoder.tool_format(body.tools)
            token_ids = await encoder.chat(
                body.messages,
                tools=body.tools,
                add_generation_prompt=body.add_generation_prompt,
                arguments=body.chat_template_kwargs,
                bounded=False,
            )
        return _json(Tokens(len(token_ids), self._replica.max_model_len, token_ids))

    async def detokenize(self, request: Request) -> Response:
        """Text of token ids, special tokens written out."""
        given = await read_json_body(request, self._replica.options.max_body_bytes)
        body = await take_apart(given, lambda data: parse_plain(DetokenizeRequest, data))
        if body.model is not None:
            self._check_model(body.model)
        check_ids(body.tokens, self._encoder.vocab_size, "tokens")
        tokenizer = self._replica.tokenizer
        # A token is some characters.
        text = await self._encoder.off_loop(8 * len(body.tokens), lambda: tokenizer.decode_all(body.tokens))
        return _json(Text(text))


def _options(body: GenerationBody, calls: ToolFormat | None, thinking: bool | None) -> AnswerOptions:
    names = frozenset(tool.function.name for tool in body.tools) if isinstance(body, ChatRequest) else frozenset()
    return AnswerOptions(
        stops=body.stop,
        stop_token_ids=body.stop_token_ids,
        include_stop=body.include_stop_str_in_output,
        min_tokens=body.min_tokens,
        show_special=not body.skip_special_tokens,
        thinking=thinking,
        tools=calls,
        is_tool=names.__contains__,
        parallel_calls=body.parallel_tool_calls if isinstance(body, ChatRequest) else True,
    )


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
