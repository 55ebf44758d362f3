"""The shape of each request of one service from what is known when it arrives; learns from how it ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import msgspec

from paceline_crds.routing import RoutingSpec
from paceline_router.shape import classes
from paceline_router.shape.asked import Asked, newer_bound
from paceline_router.shape.calibration import Calibrated, Calibration
from paceline_router.shape.classes import SHORT_SHORT, Structure, Thresholds, classify
from paceline_router.shape.output_length import (
    BASIS_WORDS,
    ENOUGH,
    PRIOR_HIGH_TOKENS,
    PRIOR_TOKENS,
    Basis,
    OutputLength,
)
from paceline_router.shape.prompt_length import (
    DENSE,
    IMAGE_TOKENS,
    LOOK_FOR_IMAGES,
    TOOL_RATE,
    PromptLength,
    kind_of,
    may_have_images,
    token_ids_in,
    turns_in,
    without_images,
)
from paceline_router.table.policy import SHAPES

MAX_SAMPLES: Final = 128
"""A larger `n` is believed up to this."""

LEARN_EACH: Final = 1024
"""Requests of which each one is learned from; after them every eighth, but for the lengths of a tenant's answers."""

_FIRST_DIGITS: Final = 10
"""Kind from which a text may be token ids: nearly nothing but digits and commas."""


class Shaped(msgspec.Struct, gc=False):
    """What is expected of one request, and what it takes to learn from its end.

    Attributes:
        shape: index into `SHAPES`.
        prompt_tokens: by estimate.
        output_tokens: median of what is expected, of all answers together.
        output_high: P90 of that, never less than the median nor more than the client allows.
        basis: what the expected output stands on, a `Basis`; 0 is "not known", a general assumption.
        margin: share of `prompt_tokens` by which it may be wrong.
        max_tokens: what the client allows per answer; None when it does not say.
        n: answers.
        turns: messages; 0 where they were not counted (the input is not long, or they are surely not many).
        structure: a `Structure`.
        kind: of the text, see `prompt_length`.
        text_bytes: raw JSON of messages or prompt, without images; 0 where the prompt is token ids.
        other_tokens: of tools and images.
        alike, tenant, path: of whose answers it is; the first a hash.
    """

    shape: int
    prompt_tokens: int
    output_tokens: int
    output_high: int
    basis: int
    margin: float
    max_tokens: int | None
    n: int
    turns: int
    structure: int
    kind: int
    text_bytes: int
    other_tokens: float
    alike: int
    tenant: str
    path: bytes

    @property
    def prompt_low(self) -> int:
        """What the prompt has at least, but for one in a hundred."""
        return int(self.prompt_tokens * (1 - self.margin))

    @property
    def prompt_high(self) -> int:
        """What the prompt has at most, but for one in a hundred."""
        return math.ceil(self.prompt_tokens * (1 + self.margin))


@dataclass(frozen=True, slots=True)
class ShapeSamples:
    """What a shaper has to say of itself, for metrics.

    Attributes:
        calibration: by shape and basis.
        prompt_error_median, prompt_error_p98: of the prompt's estimate, as a share of it; None when not known.
        keys: histograms held.
    """

    calibration: tuple[Calibrated, ...]
    prompt_error_median: float | None
    prompt_error_p98: float | None
    keys: int


class Shaper:
    """The living estimates of one service. Keeps what it has learned when thresholds change.

    Attributes:
        thresholds: in force.
    """

    __slots__ = ("_calibration", "_output", "_prompt", "_surely_short", "_turn", "_widen", "thresholds")

    def __init__(self, routing: RoutingSpec | None = None) -> None:
        self._prompt = PromptLength()
        self._output = OutputLength()
        self._calibration = Calibration()
        self._widen = self._calibration.widen
        self._turn = 0
        self.use(routing)

    def use(self, routing: RoutingSpec | None) -> None:
        """Take the thresholds of a spec."""
        it = self.thresholds = Thresholds.of(routing.shapes if routing is not None else None)
        # With fewer tokens of prompt and answer together no threshold is met.
        self._surely_short = min(it.long_input, it.long_output, it.very_long)

    def shape(self, body: Asked, text: bytes, tenant: str, path: bytes, prompt_version: str | None) -> Shaped:
        """What is expected of a request.

        Args:
            body: what the client asks for.
            text: of it (`asked.text_of`), which the caller needs as well.
            tenant: whose request it is.
            path: the endpoint.
            prompt_version: from the request's header; empty or None without one.
        """
        thresholds = self.thresholds
        estimate = self._prompt
        size = len(text)
        kind = kind_of(text)
        prompt: float = estimate.base + size * estimate.rates[kind]
        other = 0.0
        if size >= LOOK_FOR_IMAGES or kind >= _FIRST_DIGITS or body.tools:
            size, kind, prompt, other = self._closely(body, text, kind, prompt)
        prompt_tokens = int(prompt)

        # A tenant's long prompts have other answers than its short ones: four times as long is another kind.
        alike = hash((tenant, path, prompt_version, prompt_tokens.bit_length() >> 1))
        learned = self._output.of(alike, tenant, path)
        if learned is not None:
            output, high, basis = learned.low, learned.high, learned.basis
        else:
            output, high, basis = PRIOR_TOKENS, PRIOR_HIGH_TOKENS, 0
        limit = body.max_completion_tokens if newer_bound(body, path) else body.max_tokens
        if limit is not None and limit < output:
            if limit < 0:
                limit = None
            else:
                output = limit

        n = 1
        structure = 0
        if (body.n or 1) != 1 or body.response_format or body.tools:
            n = max(1, min(body.n or 1, MAX_SAMPLES))
            structure = self._structure(body, n)
            output *= n
        turns = 0
        if prompt_tokens + output < self._surely_short and not structure:
            shape = SHORT_SHORT
        else:
            if thresholds.long_input <= prompt_tokens < thresholds.very_long:
                turns = turns_in(text, thresholds.many_turns)
            shape = classify(prompt_tokens, output, turns, structure, thresholds)

        if basis:
            high *= self._widen[shape]
        if limit is not None and high > limit:
            high = limit
        return Shaped(
            shape,
            prompt_tokens,
            output,
            high * n,
            basis,
            estimate.margins[kind] if size else 0.0,
            limit,
            n,
            turns,
            structure,
            kind,
            size,
            other,
            alike,
            tenant,
            path,
        )

    def _closely(self, body: Asked, text: bytes, kind: int, prompt: float) -> tuple[int, int, float, float]:
        """Bytes of text, its kind, prompt tokens, and tokens of other things, where a request may have such."""
        size = len(text)
        estimate = self._prompt
        other = 0.0
        if kind >= _FIRST_DIGITS and (ids := token_ids_in(text)) is not None:
            return 0, kind, float(ids), other
        if kind == DENSE or may_have_images(text):
            rest, images = without_images(text)
            if images:
                kind = kind_of(rest)
                size = len(rest)
                other = float(IMAGE_TOKENS * images)
        if body.tools:
            other += len(bytes(body.tools)) * TOOL_RATE
        return size, kind, estimate.base + size * estimate.rates[kind] + other, other

    def _structure(self, body: Asked, n: int) -> int:
        if n >= self.thresholds.parallel:
            return Structure.PARALLEL
        if body.response_format:
            wanted = bytes(body.response_format)
            # {"type": "text"} is what a request has that wants none.
            if wanted != b"null" and not (len(wanted) < 64 and b'"text"' in wanted):
                return Structure.FORMAT
        if body.tools and bytes(body.tools) not in (b"null", b"[]"):
            return Structure.TOOLS
        return Structure.NONE

    def learn(self, shaped: Shaped, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """What a request came to.

        Args:
            shaped: what was expected of it.
            prompt_tokens: as the replica counted them; None when it did not say.
            output_tokens: of all answers, when they came to their end; None for a request that was cut off or failed.
        """
        turn = self._turn = self._turn + 1
        thin = turn & 7 and turn > LEARN_EACH
        if prompt_tokens is not None and shaped.text_bytes and not thin:
            self._prompt.learn(shaped.kind, shaped.text_bytes, shaped.other_tokens, shaped.prompt_tokens, prompt_tokens)
        if output_tokens is None or output_tokens < 1:
            return
        n, limit, shape = shaped.n, shaped.max_tokens, shaped.shape
        if not thin:
            # An estimate that the client's own bound has cut holds always; the others are judged before widening.
            cut = limit is not None and shaped.output_high >= limit * n
            times = self._widen[shape] if shaped.basis else 1
            below_high = cut or output_tokens * times <= shaped.output_high
            self._calibration.learn(shape, shaped.basis, output_tokens <= shaped.output_tokens, below_high)
        each = output_tokens if n == 1 else max(1, output_tokens // n)
        self._output.learn(shaped.alike, shaped.tenant, shaped.path, each, limit)

    def explain(self, shaped: Shaped) -> str:
        """The decision and what it stands on, in one line."""
        output = shaped.output_tokens
        why = classes.reason(shaped.prompt_tokens, output, shaped.turns, shaped.structure, shaped.n, self.thresholds)
        bounded = ", bounded by max_tokens" if shaped.basis and shaped.max_tokens == output // shaped.n else ""
        return (
            f"{SHAPES[shaped.shape].value}: {why}; prompt estimated from {shaped.text_bytes} bytes "
            f"(within {shaped.margin:.0%}), output {BASIS_WORDS[Basis(shaped.basis)]}{bounded}, "
            f"P90 {shaped.output_high}"
        )

    def samples(self) -> ShapeSamples:
        """Figures for metrics."""
        errors = self._prompt.errors
        known = errors.count >= ENOUGH
        return ShapeSamples(
            tuple(self._calibration.samples()),
            errors.low / 1000 if known else None,
            errors.high / 1000 if known else None,
            len(self._output),
        )
