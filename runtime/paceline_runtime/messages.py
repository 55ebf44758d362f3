"""What the front-end process and the engine core say to each other over their Unix-domain socket.

The front end listens on the socket and starts the core, which connects: a core that dies while it starts is
then seen as a dead child, and one that dies later as a closed socket. Each message is one frame: four bytes of
length (big-endian), then msgpack.

Times are seconds of `time.monotonic()`, which on Linux all processes of a machine share.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, Generic, TypeVar

import msgspec

LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
"""A longer frame is a fault of the peer, never a request: 10 million token ids need less than 50 MB."""

_LENGTH = struct.Struct(">I")


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """An end-of-sequence or stop token was made (it is the last of the request's tokens)."""
    LENGTH = "length"
    """`max_tokens` or the model length was reached."""
    ABORT = "abort"
    """The front end asked for it."""
    ERROR = "error"
    """The engine could not go on with this request; `TokenOutput.message` says why."""
    DEADLINE = "deadline"
    """It could no longer be in time (`AddRequest.deadline`); `TokenOutput.message` says why."""


class RejectCode(enum.StrEnum):
    """Why a request was never queued."""

    CONTEXT_LENGTH = "context_length_exceeded"
    """Prompt too long for `maxModelLen` or for the whole KV cache: the client's error (400)."""
    INVALID = "invalid_request"
    """A value outside its range, e.g. a token id beyond the vocabulary: the client's error (400)."""
    QUEUE_FULL = "queue_full"
    """Too many requests wait already: try again later (503)."""
    TENANT_LIMIT = "tenant_queue_full"
    """This tenant has too many requests waiting: try again later (429)."""
    DEADLINE = "deadline_exceeded"
    """The deadline has passed, or cannot be kept with the work ahead (504)."""
    DRAINING = "draining"
    """The engine takes no more requests: try another replica (503)."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the tokens of one request are chosen.

    What changes logits is applied in this order: repetition penalty, frequency and presence penalties, bias, the sets
    of allowed and forbidden tokens, then temperature, top-k, top-p, min-p.

    Attributes:
        max_tokens: the most tokens to make; `None` is as many as the model length allows. 0 computes the prompt only,
            which is useful together with `prompt_logprobs`.
        min_tokens: no end-of-sequence and no stop token before this many.
        temperature: 0 is greedy.
        top_p: keep the smallest set of tokens with at least this probability; 1 keeps all.
        top_k: keep this many tokens; 0 keeps all.
        min_p: drop tokens less likely than this share of the likeliest; 0 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or answer; 1 is none.
        frequency_penalty: taken off a token's logit for each time that it is in the answer.
        presence_penalty: taken off once if it is there at all.
        logit_bias: added to single tokens' logits.
        allowed_token_ids: only these may be chosen; `None` allows all.
        bad_words: token sequences of which none is ever completed.
        seed: makes the request's tokens the same whatever runs beside it; `None` draws a fresh one.
        stop_token_ids: end after any of these, besides the model's own end-of-sequence tokens.
        ignore_eos: do not end at the model's own end-of-sequence tokens.
        logprobs: report each token's log-probability and those of this many likeliest; `None` reports none.
        prompt_logprobs: the same for each token of the prompt; its prefix is then never taken from the cache.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None


# --- front end to core ---


class AddRequest(msgspec.Struct, frozen=True, kw_only=True, tag="add", omit_defaults=True):
    """Queue one prompt. Ids are the front end's own and unique among those that it has open.

    Attributes:
        request_id: of the first answer.
        fork_ids: of further answers to the same prompt, each with a random stream of its own: the prompt is computed
            once and its blocks are shared. Outputs and `Abort` name each answer by its own id.
        arrival_time: when the front end got it.
        tenant: who pays; requests without one share the empty name.
        tenant_weight: this tenant's share of the batch beside the others', where shares are kept.
        tenant_slots: the most requests of this tenant in a batch; 0 is the engine's own `tenantMaxSeqs`.
        priority: lower is sooner; 0 is the usual class.
        deadline: by when the whole answer is wanted; work that cannot be in time is dropped.
        cache_salt: the prefix cache only finds blocks that were made with the same salt.
        session: requests of one conversation; their cached blocks are kept or dropped together.
        probe: one of the front end's own tests of life: it goes ahead of the queue and may use the reserve.
        counted: whether it is somebody's request. What the house asks itself, like probes, is in no total of tokens, so
            that it is no load to whoever scales by them.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_time: float
    fork_ids: tuple[str, ...] = ()
    tenant: str = ""
    tenant_weight: float = 1.0
    tenant_slots: int = 0
    priority: int = 0
    deadline: float | None = None
    cache_salt: str = ""
    session: str = ""
    probe: bool = False
    counted: bool = True


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop these requests and free what they hold. Unknown and finished ids are ignored, and no output follows."""

    request_ids: list[str]


class Tune(msgspec.Struct, frozen=True, tag="tune"):
    """Run with other limits from the next step on; `Tuned` is the answer, in the order of the questions.

    Attributes:
        knobs: by camelCase name (`paceline_crds.tuning.Knob`); one that is left out gets back what the start gave it.
    """

    knobs: dict[str, int]


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Take no more requests, finish those that are there, then exit with code 0."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Drop everything and exit with code 0."""


FrontMessage = AddRequest | Abort | Tune | Drain | Shutdown

# --- core to front end ---


class EffectiveValue(msgspec.Struct, frozen=True):
    """One parameter as the engine runs with it, and where it came from (`paceline_crds` `Origin`, or `measured`)."""

    value: int | float | str | bool
    origin: str


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine learnt from the model's files.

    Attributes:
        digest: `sha256:…` over configuration and weights; two replicas with the same digest run the same model.
        path: the folder or GGUF file that was loaded (the tokenizer lies there too).
        architecture: e.g. `LlamaForCausalLM`.
        max_position: the model's own limit of tokens in one sequence.
        parameters: number of weights.
        eos_token_ids: tokens that end an answer.
    """

    digest: str
    path: str
    architecture: str
    vocab_size: int
    max_position: int
    parameters: int
    eos_token_ids: list[int]
    bos_token_id: int | None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Sent once, when the model is loaded and every shape of step has been run.

    Attributes:
        parameters: by camelCase name: those of `RuntimeParameters` as they are in effect, and measured ones beside them
            (`numBlocks`, `kvBytesPerBlock`, `maxWaiting`, …) whose origin is `measured`.
        dtype: of weights and cache, e.g. `float32`.
        device: `cpu` or the GPU's name.
        load_seconds: reading the weights.
        warmup_seconds: running each shape of step once.
    """

    parameters: dict[str, EffectiveValue]
    model: ModelFacts
    dtype: str
    device: str
    load_seconds: float
    warmup_seconds: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """What the model thought of one token, before temperature and truncation, after penalties and bias.

    Attributes:
        logprob: natural logarithm of its probability; never NaN, and -inf only for a token of the prompt.
        rank: 1 for the likeliest.
        top: the likeliest tokens with theirs, the likeliest first; those that cannot be chosen (-inf) are left out.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of one request.

    Attributes:
        new_token_ids: in order; the last one may be an end-of-sequence or stop token (`stop_token_id` is then set).
        logprobs: of each of them, where asked for.
        prompt_logprobs: of the next tokens of the prompt, in pieces as it is computed; the first is `None`, since
            nothing is before it.
        finish_reason: set on the last output of a request.
        stop_token_id: the token that ended the request, if one did; it is no part of the answer's text.
        message: for people, with `FinishReason.ERROR` and `FinishReason.DEADLINE`.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        queue_seconds: on the first output: from arrival to the first step with this request.
        prefill_seconds: on the first output: from that step's start to the first token.
        num_preemptions: how often the request lost its blocks.
    """

    request_id: str
    new_token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    message: str | None = None
    num_cached_tokens: int = 0
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    num_preemptions: int = 0


class EventKind(enum.StrEnum):
    """What happened to a request besides getting tokens."""

    WAITS = "waits"
    """It is not admitted, for the reason given; said again only when the reason changes."""
    ADMITTED = "admitted"
    PREEMPTED = "preempted"
    """It lost its blocks and waits again (they may have been kept in host memory: the message says so)."""
    DROPPED = "dropped"
    """It ended without an answer."""


class RequestEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a request's story.

    Attributes:
        at: when.
        reason: a short CamelCase word, for programs and metric labels, e.g. `NoBlocks`, `BatchFull`, `TenantSlots`.
        message: the same in words with its numbers, e.g. "12 blocks are needed and 4 are free; 3 requests are ahead".
        numbers: the numbers alone, by camelCase name.
    """

    request_id: str
    kind: EventKind
    at: float
    reason: str
    message: str
    numbers: dict[str, int | float] = {}


class StepPhases(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one step by phase.

    Attributes:
        prepare: choosing the batch and making its tensors.
        forward: the model (on a GPU only the launch of it).
        sync: waiting for the device, and moving blocks between memories.
        sample: choosing tokens.
        update: entering them in the books.
        deliver: sending the outputs of the step before: it is known only once that is done.
    """

    prepare: float
    forward: float
    sample: float
    update: float
    deliver: float
    sync: float = 0.0


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """One memory below the KV cache. Counts since start; seconds are measured.

    Attributes:
        name: `host` or `disk`.
        active: whether blocks are stored there now; `reason` says why (not), with the figures.
        hit_tokens_total: prompt and preempted tokens that came from here instead of being computed.
        saved_seconds_total: what computing them would have taken at the measured prefill rate.
        cost_seconds_total: what storing and loading took.
    """

    name: str
    active: bool
    reason: str
    blocks_used: int
    blocks_total: int
    stored_blocks_total: int
    loaded_blocks_total: int
    hit_tokens_total: int
    saved_seconds_total: float
    cost_seconds_total: float


class Preemptions(msgspec.Struct, frozen=True, array_like=True):
    """Requests that lost their blocks, since start, by reason, way (`recompute` or `swap`) and priority class."""

    reason: str
    way: str
    priority_class: str
    count: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's state after a step; at idle the same is sent once a second, so silence means a stuck loop.

    Attributes:
        sequence: grows with each report of this process.
        step: steps run so far.
        running: requests in the batch.
        waiting: requests queued, preempted ones among them.
        kv_blocks_used: blocks held by requests (cached blocks that may be reused at once are not used).
        prefill_tokens: tokens not yet computed over running and waiting requests (prompts, and recomputation).
        decode_tokens: computed tokens in the context of running requests: what each step has to read.
        preemptions_total: requests that lost their blocks, since start.
        prefix_query_tokens_total: prompt tokens looked up in the prefix cache, since start.
        prefix_hit_tokens_total: those of them that were found.
        prompt_tokens_total: tokens computed in prefill, since start (cached ones are not computed).
        generation_tokens_total: tokens made, since start.
        recomputed_tokens_total: tokens computed again after a preemption, since start.
        evicted_blocks_total: cached blocks that were forgotten, since start.
        kv_blocks_cached: blocks held by nobody whose content can be found.
        preemptions: the same as `preemptions_total`, told apart.
        waiting_by_reason: requests waiting, by the reason of their last `waits` event.
        tiers: memories below the KV cache, if any.
        batch_tokens: tokens of this step; 0 at idle.
        batch_seqs: sequences of this step; 0 at idle.
        phases: of this step; `None` at idle.
    """

    sequence: int
    step: int
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    prefill_tokens: int
    decode_tokens: int
    preemptions_total: int
    prefix_query_tokens_total: int
    prefix_hit_tokens_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    recomputed_tokens_total: int = 0
    evicted_blocks_total: int = 0
    kv_blocks_cached: int = 0
    preemptions: list[Preemptions] = []
    waiting_by_reason: dict[str, int] = {}
    tiers: list[TierStats] = []
    batch_tokens: int = 0
    batch_seqs: int = 0
    phases: StepPhases | None = None


class StepOutputs(msgspec.Struct, frozen=True, tag="outputs"):
    """What one step made and what happened to requests, or (with neither) a sign of life."""

    outputs: list[TokenOutput]
    stats: EngineStats
    events: list[RequestEvent] = []


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """A request that was not queued (and so none of its forks); `message` is fit for the client.

    Attributes:
        retry_after: seconds after which the queue should have room, from its length and the rate at which it empties;
            `None` where that is not known or trying again is of no use.
    """

    request_id: str
    message: str
    code: RejectCode
    retry_after: float | None = None


class Tuned(msgspec.Struct, frozen=True, tag="tuned"):
    """What became of a `Tune`.

    Attributes:
        knobs: every knob, as the next step has it.
        problem: why nothing was changed, for people; empty where it was.
    """

    knobs: dict[str, int]
    problem: str = ""


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The core cannot go on and exits with `exit_code`; `message` says what to do. Open requests are lost."""

    message: str
    exit_code: int


CoreMessage = Ready | StepOutputs | Rejected | Tuned | Fatal

# --- frames ---

M = TypeVar("M")
_ENCODER = msgspec.msgpack.Encoder()


class ProtocolError(Exception):
    """The peer sent what is no message of ours."""


def encode_frame(message: FrontMessage | CoreMessage) -> bytes:
    """One message as a frame, length included."""
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameDecoder(Generic[M]):
    """Turns received bytes, cut anywhere, into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Add received bytes; the messages that are now whole.

        Raises:
            ProtocolError: on a frame that is too long or no message.
        """
        self._buffer += data
        messages: list[M] = []
        start = 0
        while len(self._buffer) - start >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {length} bytes is more than {MAX_FRAME_BYTES}")
            end = start + LENGTH_BYTES + length
            if len(self._buffer) < end:
                break
            try:
                messages.append(self._decoder.decode(self._buffer[start + LENGTH_BYTES : end]))
            except msgspec.MsgspecError as error:
                raise ProtocolError(f"a frame is no message: {error}") from error
            start = end
        del self._buffer[:start]
        return messages


def front_decoder() -> FrameDecoder[FrontMessage]:
    """Decodes what the front end sends (used by the core)."""
    return FrameDecoder(msgspec.msgpack.Decoder(FrontMessage))


def core_decoder() -> FrameDecoder[CoreMessage]:
    """Decodes what the core sends (used by the front end)."""
    return FrameDecoder(msgspec.msgpack.Decoder(CoreMessage))
