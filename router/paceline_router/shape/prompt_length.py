"""How many tokens a prompt has, closely, from its bytes: no tokeniser, no decoding, at most some 256 bytes looked at.

The rate of tokens per byte follows from what the bytes are: prose, code, numbers, scripts other than Latin. That is
seen in every k-th byte of the raw JSON, by the share of bytes that are neither lower-case letters nor spaces. Each kind
has a rate of its own, learned per service from the lengths that replicas report.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from .histogram import LogHistogram

SAMPLE_SHIFT: Final = 7
"""A sample of a text that is not short has some 2 to this power bytes."""

_SMALL: Final = 256
_EASY: Final = bytes(range(ord("a"), ord("z") + 1)) + b" "
_UPPER: Final = bytes(range(ord("A"), ord("Z") + 1))
_HIGH: Final = bytes(range(128, 256))

PLAIN_KINDS: Final = 16
FOREIGN_KINDS: Final = 8
DENSE: Final = PLAIN_KINDS + FOREIGN_KINDS
"""The kind of base64 and of random letters."""
ESCAPED: Final = DENSE + 1
"""The kind of text in \\uXXXX escapes."""

FIRST_RATES: Final[tuple[float, ...]] = (
    *(0.23, 0.25, 0.255, 0.255, 0.24, 0.25, 0.27, 0.33, 0.44, 0.45, 0.45, 0.5, 0.62, 0.72, 0.82, 0.88),
    *(0.26, 0.3, 0.38, 0.42, 0.47, 0.52, 0.45, 0.5),
    *(0.78, 0.36),
)
"""Tokens per byte before anything is learned, by kind: measured with the demo model's tokeniser on the texts of
`docs/concepts/shapes.md`, somewhat lower for scripts other than Latin, which larger vocabularies hold better."""

FIRST_BASE: Final = 8.0
"""Tokens that the chat template adds, before anything is learned."""

MAX_BASE: Final = 4096.0
TOOL_RATE: Final = 0.27
"""Tokens per byte of a tool's JSON schema."""

IMAGE_TOKENS: Final = 600
"""For one image: what models make of a picture of 700 x 700 pixels; the text says nothing of its size."""

LOOK_FOR_IMAGES: Final = 8192
_IMAGE_RUN: Final = 32
_IMAGE: Final = b";base64,"

SLOWEST: Final = 48
"""A rate is the mean of the last so many requests of its kind, roughly."""

ENOUGH_OF_KIND: Final = 8
LARGEST_STEP: Final = 0.7
BOUND: Final = math.log(4)
"""No rate goes further than four times from where it began: what is reported may be wrong."""

FIRST_MARGIN: Final = 0.5
SMALLEST_MARGIN: Final = 0.05
ENOUGH_FOR_MARGIN: Final = 50
LONG_ENOUGH: Final = 256
"""Tokens from which a prompt counts for margin and error: the template's share makes short ones differ by more."""

_decode_messages: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class PromptLength:
    """The estimate of one service.

    Attributes:
        base: tokens that every prompt has beside its text.
        rates: tokens per byte by kind.
        margins: by kind, the share of the estimate that 98 of 100 prompts do not differ by; `FIRST_MARGIN` for a kind
            that nothing has been learned of.
        errors: differences between estimate and report, in thousandths of the estimate.
    """

    __slots__ = ("_counts", "_logs", "_overall", "_overall_count", "base", "errors", "margins", "rates")

    def __init__(self) -> None:
        self.base = FIRST_BASE
        self.rates = list(FIRST_RATES)
        self._logs = [0.0] * len(FIRST_RATES)
        self._counts = [0] * len(FIRST_RATES)
        self._overall = 0.0
        self._overall_count = 0
        self.margins = [FIRST_MARGIN] * len(FIRST_RATES)
        self.errors = LogHistogram(0.5, 0.98, half_life=300)

    def learn(self, kind: int, text_bytes: int, other_tokens: float, estimate: int, actual: int) -> None:
        """What a replica reported for a prompt.

        Args:
            kind: of the text.
            text_bytes: raw JSON of messages or prompt, without images.
            other_tokens: of tools and images, by estimate.
            estimate: what was said on arrival.
            actual: what the replica counted.
        """
        if actual < 1 or text_bytes < 1:
            return
        if actual >= LONG_ENOUGH and self._counts[kind] >= ENOUGH_OF_KIND:
            self.errors.add(int(1000 * abs(actual - estimate) / max(1, estimate)))
            if self.errors.count >= ENOUGH_FOR_MARGIN:
                self.margins[kind] = min(FIRST_MARGIN, max(SMALLEST_MARGIN, self.errors.high / 1000))
        text_tokens = text_bytes * self.rates[kind]
        if text_tokens < 64:
            # Hardly any text: what differs is the template.
            step = (actual - other_tokens - text_tokens - self.base) / 16
            self.base = min(MAX_BASE, max(0.0, self.base + step))
            return
        rest = actual - other_tokens - self.base
        if rest < 1:
            return
        step = min(LARGEST_STEP, max(-LARGEST_STEP, math.log(rest / text_tokens)))
        count = self._counts[kind] = self._counts[kind] + 1
        before = self._logs[kind] if count > ENOUGH_OF_KIND else self._overall
        self._logs[kind] = min(BOUND, max(-BOUND, before + step / min(count + 1, SLOWEST)))
        self._overall_count += 1
        self._overall += step / min(self._overall_count + 1, SLOWEST)
        self._overall = min(BOUND, max(-BOUND, self._overall))
        self.rates[kind] = FIRST_RATES[kind] * math.exp(self._logs[kind])
        if self._overall_count % 8 == 1:
            # Kinds that were seen too little go with the others: a tokeniser that makes more tokens does so throughout.
            for other, seen in enumerate(self._counts):
                if seen < ENOUGH_OF_KIND:
                    self.rates[other] = FIRST_RATES[other] * math.exp(self._overall)


def kind_of(text: bytes) -> int:
    """What a text is like, as an index of rates."""
    size = len(text)
    sample = text
    if size >= _SMALL:
        # Characters of two, three or six bytes (\\uXXXX) must not fall into step with it.
        step = size >> SAMPLE_SHIFT | 1
        sample = text[:: step if step % 3 else step + 2]
        size = len(sample)
    if sample.isascii():
        kind = (len(sample.translate(None, _EASY)) << 4) // (size + 1)
        return kind if kind < 7 else _hard_kind(sample, kind)
    return PLAIN_KINDS + ((size - len(sample.translate(None, _HIGH))) << 3) // (size + 1)


def _hard_kind(sample: bytes, kind: int) -> int:
    size = len(sample)
    if kind < 12:
        if (size - len(sample.translate(None, _UPPER))) * 4 > size:
            return DENSE
        if sample.count(b"\\") * 9 > size:
            return ESCAPED
    return kind


def may_have_images(text: bytes) -> bool:
    """Whether a long text has a stretch without any space that may be an image; cheap, and wrong only to that side
    for images that are a fifth of the text or more.
    """
    size = len(text)
    if size < LOOK_FOR_IMAGES:
        return False
    return max(map(len, text[:: size >> SAMPLE_SHIFT | 1].split(b" "))) >= _IMAGE_RUN


def without_images(text: bytes) -> tuple[bytes, int]:
    """The text without the base64 of its images, and how many there are."""
    pieces: list[bytes] = []
    begin = images = 0
    while True:
        found = text.find(_IMAGE, begin)
        if found < 0:
            break
        end = text.find(b'"', found)
        if end < 0:
            break
        pieces.append(text[begin : found + len(_IMAGE)])
        begin = end
        images += 1
    if not images:
        return text, 0
    pieces.append(text[begin:])
    return b"".join(pieces), images


def token_ids_in(text: bytes) -> int | None:
    """The number of token ids in a `prompt` that is given as such; None when it is text."""
    return text.count(b",") + 1 if text[:1] == b"[" and text[:64].strip(b"[ \t\r\n")[:1].isdigit() else None


def turns_in(text: bytes, many: int) -> int:
    """Messages of a conversation where there may be `many`; 0 where there are surely fewer, or it is no list.

    Each message has a brace, and to look for one is several times cheaper than to read the JSON.
    """
    at = -1
    for _ in range(many):
        at = text.find(b"{", at + 1)
        if at < 0:
            return 0
    try:
        return len(_decode_messages(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
