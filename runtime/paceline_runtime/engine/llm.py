"""The engine in one object: requests in, steps run, tokens out. The core process drives it, and so do benchmarks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

import torch

from paceline_crds.runtime_config import RuntimeConfig
from paceline_runtime.messages import (
    AddRequest,
    EngineStats,
    RejectCode,
    StepOutputs,
    StepPhases,
    TokenLogprob,
    TokenOutput,
)
from paceline_runtime.model.inputs import SequenceInput
from paceline_runtime.model.sampling import check_sampling, drawable, draws_of, likely, prompt_logprobs, sample

from .answers import Answer, answer_of, prompt_positions, token_output
from .begun import BegunStep, Seconds, Work, choices_of, num_logits, sequence_input
from .knobs import in_effect, tuned
from .scheduler import Batch, Refused, ScheduledSeq, Scheduler
from .startup import start
from .trace import StepTrace


class LLMEngine:
    """A loaded model that takes requests. Not thread-safe: one thread calls everything.

    Args:
        max_waiting: requests that may queue; by default what the configuration says.
        trace: where each step is written down.
        schedule_ahead: give a device that `overlaps` the next step before the tokens of the last have come back.

    Raises (from the constructor):
        StartupError: with words and an exit code, if the model or the configuration cannot work.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        *,
        max_waiting: int | None = None,
        trace: StepTrace | None = None,
        schedule_ahead: bool = True,
    ) -> None:
        parts = start(config, max_waiting=max_waiting)
        self.config = parts.config
        self.ready = parts.ready
        self.scheduler: Scheduler = parts.scheduler
        self._runner = parts.runner
        self._mover = parts.mover
        self._vocab_size = parts.spec.vocab_size
        self._eos = parts.spec.eos_token_ids
        self._trace = trace
        self._schedule_ahead = schedule_ahead
        self._steps = 0
        self._sequence = 0
        self._deliver_seconds = 0.0
        self._begun: BegunStep | None = None
        self._ahead: BegunStep | None = None  # given to the device behind the one that was begun

    @property
    def overlaps(self) -> bool:
        """A step that was begun runs on a device of its own: until it is finished there is time for other work."""
        return self._runner.overlaps

    @property
    def idle(self) -> bool:
        """No request is there."""
        return self.scheduler.idle

    def add_request(self, message: AddRequest) -> None:
        """Queue a request.

        Raises:
            Refused: with words for the client, if it cannot be served.
        """
        self._check_values(message)
        seed = message.sampling.seed
        self.scheduler.add(message, secrets.randbits(63) if seed is None else seed, now=time.monotonic())

    def abort(self, request_id: str) -> bool:
        """Drop a request and free what it holds; False if it is not there (any more)."""
        return self.scheduler.abort(request_id)

    def tune(self, knobs: Mapping[str, int]) -> dict[str, int]:
        """Change limits of the scheduler from the next step on, all at once; every knob as it then is.

        Between two steps only. A step that the device has been given ahead still runs as it was chosen.

        Args:
            knobs: by camelCase name; those that are not named are set back to what the start gave them.

        Raises:
            ValueError: with words, if they cannot be; nothing has changed then.
        """
        self.scheduler.limit(tuned(self.config.parameters, self.scheduler.limits, knobs))
        return self.knobs

    @property
    def knobs(self) -> dict[str, int]:
        """Every knob as it is, by camelCase name."""
        return in_effect(self.scheduler.limits)

    def step(self) -> StepOutputs | None:
        """Run one step; `None` if there was nothing to do and nothing to tell."""
        self.begin()
        return self.finish()

    def begin(self) -> None:
        """Choose the next step and start it. Nothing but `finish` may follow."""
        if self._begun is not None:
            raise RuntimeError("a step was begun before the one before it was finished")
        self._begun = self._adopt() or self._choose()
        self._ahead = self._launch_ahead(self._begun)

    def _adopt(self) -> BegunStep | None:
        """The step that the device has been given already, if anything of it is still wanted."""
        step, self._ahead = self._ahead, None
        if step is None or step.batch is None or step.work is None:
            return None
        step.started = started = time.monotonic()
        step.batch = batch = self.scheduler.adopt(step.batch, started)
        if batch is None:
            return None
        step.outputs = self._told_late(started)
        step.starts = [seq.request.num_computed for seq in batch.seqs]
        step.work.keep(seq.request for seq in batch.seqs)
        self.scheduler.advance(batch)
        # The step before it ended just now: only from here on does this one take time.
        step.work.prepared = time.monotonic()
        step.seconds.update += step.work.prepared - started
        return step

    def _told_late(self, now: float) -> list[TokenOutput]:
        return [token_output(request, [], ended, now) for request, ended in self.scheduler.take_ended()]

    def _choose(self) -> BegunStep:
        """The step that the scheduler wants next."""
        started = time.monotonic()
        batch = self.scheduler.schedule(started)
        step = BegunStep(started, batch, self._told_late(started))
        if batch is None:
            return step
        moving = time.monotonic()
        step.batch = batch = self._move(batch)
        moved = time.monotonic()
        step.starts = [seq.request.num_computed for seq in batch.seqs]
        step.seconds.prepare, step.seconds.sync = moving - started, moved - moving
        if batch.seqs:
            step.work = self._launch(batch, step.seconds)
        return step

    def _launch_ahead(self, begun: BegunStep) -> BegunStep | None:
        """Give the device the next step behind this one, with tokens that only the device will know, if that can be.

        It can where a request's next step is the same whatever its token is: not where logits are changed by what was
        said before, or looked at.
        """
        if (
            not self.overlaps
            or not self._schedule_ahead
            or begun.batch is None
            or begun.work is None
            or begun.work.chosen is None
        ):
            return None
        started = time.monotonic()
        if not drawable(begun.work.states):
            return None
        batch = self.scheduler.follow(begun.batch)
        if batch is None:
            return None
        row_of = dict(zip(begun.work.choices, begun.work.rows, strict=True))
        requests = [seq.request for seq in batch.seqs]
        states = [answer_of(request, self._eos, self._vocab_size).sampling for request in requests]
        inputs = [SequenceInput([0], request.num_computed, request.blocks, 1) for request in requests]
        step = self._runner.prepare_next(inputs, [row_of[request] for request in requests])
        rows = list(range(len(requests)))
        prepared = time.monotonic()
        work = Work([range(0)] * len(rows), [1] * len(rows), requests, rows, states, prepared=prepared, advanced=True)
        draws = draws_of(states, rows, len(rows), ahead=1) if any(state.needs for state in states) else None
        work.chosen = self._runner.launch_greedy(step) if draws is None else self._runner.launch_draws(step, draws)
        seconds = Seconds(prepare=prepared - started, forward=time.monotonic() - prepared)
        return BegunStep(started, batch, [], work=work, seconds=seconds)

    def finish(self) -> StepOutputs | None:
        """Wait for the step that was begun; `None` if there was nothing to do and nothing to tell."""
        step, self._begun = self._begun, None
        if step is None:
            raise RuntimeError("no step was begun")
        outputs, batch = step.outputs, step.batch
        if batch is None:
            events = self.scheduler.take_events()
            return StepOutputs(outputs, self.stats(), events) if outputs or events else None
        if step.work is not None:
            outputs += self._collect(batch, step.work, step.seconds)
        self._steps += 1
        phases = step.seconds.phases(self._deliver_seconds)
        stats = self.stats(batch.num_tokens, len(batch.seqs), phases)
        if self._trace is not None:
            self._trace.step(self._steps, step.started, batch, step.starts, phases, stats)
        return StepOutputs(outputs, stats, self.scheduler.take_events())

    def delivered(self, seconds: float) -> None:
        """Tell how long the last step's outputs took to be sent; it is part of the next report."""
        self._deliver_seconds = seconds

    def stats(self, batch_tokens: int = 0, batch_seqs: int = 0, phases: StepPhases | None = None) -> EngineStats:
        """The state now, as a new report."""
        self._sequence += 1
        scheduler, blocks, totals = self.scheduler, self.scheduler.blocks, self.scheduler.totals
        return EngineStats(
            sequence=self._sequence,
            step=self._steps,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_blocks_used=blocks.num_used,
            kv_blocks_total=blocks.num_blocks,
            kv_blocks_cached=blocks.num_cold,
            prefill_tokens=scheduler.prefill_tokens,
            decode_tokens=scheduler.decode_tokens,
            preemptions_total=totals.preemptions,
            preemptions=scheduler.preemptions(),
            recomputed_tokens_total=totals.recomputed_tokens,
            evicted_blocks_total=blocks.evicted_blocks,
            prefix_query_tokens_total=totals.prefix_query_tokens,
            prefix_hit_tokens_total=totals.prefix_hit_tokens,
            prompt_tokens_total=totals.prompt_tokens,
            generation_tokens_total=totals.generation_tokens,
            waiting_by_reason=scheduler.waiting_by_reason(),
            tiers=scheduler.tier_stats(),
            batch_tokens=batch_tokens,
            batch_seqs=batch_seqs,
            phases=phases,
        )

    def check_integrity(self) -> None:
        """Compare the books of blocks and requests.

        Raises:
            IntegrityError: if they do not add up.
        """
        self.scheduler.check_integrity()

    # --- one step ---

    def _move(self, batch: Batch) -> Batch:
        """Blocks between memories, then copies within the cache: all before the model reads or writes any."""
        if batch.transfers:
            report = self._mover.execute(batch.transfers)
            batch = self.scheduler.transferred(batch, report, time.monotonic())
        self._mover.copy(batch.copies)
        return batch

    def _launch(self, batch: Batch, seconds: Seconds) -> Work:
        """Give a batch to the device."""
        started = time.monotonic()
        wanted = [self._positions(seq) for seq in batch.seqs]
        counts = [num_logits(seq, positions) for seq, positions in zip(batch.seqs, wanted, strict=True)]
        step = self._runner.prepare([sequence_input(seq, n) for seq, n in zip(batch.seqs, counts, strict=True)])
        choices, rows = choices_of(batch, counts)
        states = [answer_of(request, self._eos, self._vocab_size).sampling for request in choices]
        scored = any(seq.request.sampling.prompt_logprobs is not None for seq in batch.seqs)
        plain = not scored and not any(state.needs for state in states)
        work = Work(wanted, counts, choices, rows, states, prepared=time.monotonic())
        draws = draws_of(states, rows, sum(counts)) if self.overlaps and not scored and not plain else None
        if plain:
            work.chosen = self._runner.launch_greedy(step)
        elif draws is not None:
            work.chosen = self._runner.launch_draws(step, draws)
        else:
            work.logits = self._runner.forward(step)
        launched = time.monotonic()
        seconds.prepare += work.prepared - started
        seconds.forward = launched - work.prepared
        if self.overlaps:
            self.scheduler.advance(batch)
            work.advanced = True
            seconds.update = time.monotonic() - launched
        return work

    def _collect(self, batch: Batch, work: Work, seconds: Seconds) -> list[TokenOutput]:
        """Wait for the device, sample, update; the outputs."""
        waiting = time.monotonic()
        choices, logits = work.choices, work.logits
        chosen = work.chosen() if work.chosen is not None else []
        if logits is not None:
            self._runner.synchronize()
        synced = time.monotonic()
        prompts: dict[str, list[TokenLogprob | None]] = {}
        if logits is not None:
            prompts = self._prompt_logprobs(batch, work, logits)
            for request in choices:
                # Of several answers to a prompt, the one that computed it told all there is to tell.
                answer_of(request, self._eos, self._vocab_size).reported = request.prompt_len
            made = sample(logits, work.states, work.rows)
        else:
            made = [likely(*chosen[row]) for row in work.rows]
        sampled = {request.request_id: one for request, one in zip(choices, made, strict=True)}
        sampled_at = time.monotonic()
        tokens = {request_id: one.token for request_id, one in sampled.items()}
        if not work.advanced:
            self.scheduler.advance(batch)
        outputs = []
        for request, new, ended in self.scheduler.enter(batch, tokens, sampled_at):
            one = sampled.get(request.request_id)
            if isinstance(request.sampling_state, Answer) and new and ended is None:
                request.sampling_state.sampling.append(new[0])
            outputs.append(
                token_output(
                    request, new, ended, sampled_at, sampled=one, prompt_logprobs=prompts.pop(request.request_id, None)
                )
            )
        requests = {seq.request.request_id: seq.request for seq in batch.seqs}
        for request_id, entries in prompts.items():  # of prompts that go on
            outputs.append(token_output(requests[request_id], [], None, sampled_at, prompt_logprobs=entries))
        self.scheduler.observe(sampled_at - work.prepared, batch)
        seconds.sync += synced - waiting
        seconds.sample = sampled_at - synced
        seconds.update += time.monotonic() - sampled_at
        return outputs

    def _positions(self, seq: ScheduledSeq) -> range:
        if seq.request.sampling.prompt_logprobs is not None:
            answer_of(seq.request, self._eos, self._vocab_size)
        return prompt_positions(seq.request, seq.count)

    def _prompt_logprobs(self, batch: Batch, work: Work, logits: torch.Tensor) -> dict[str, list[TokenLogprob | None]]:
        """What is to be told of prompts, by request."""
        found: dict[str, list[TokenLogprob | None]] = {}
        row = 0
        for seq, positions, rows in zip(batch.seqs, work.wanted, work.counts, strict=True):
            request, count = seq.request, seq.request.sampling.prompt_logprobs
            if count is not None:
                answer = answer_of(request, self._eos, self._vocab_size)
                entries: list[TokenLogprob | None] = [None] if answer.reported == 0 else []
                if positions:
                    following = request.tokens[positions.start + 1 : positions.stop + 1]
                    entries += prompt_logprobs(logits[row : row + len(positions)], following, count)
                answer.reported += len(entries)
                if entries:
                    found[request.request_id] = entries
            row += rows
        return found

    def _check_values(self, message: AddRequest) -> None:
        for token in message.prompt_token_ids:
            if not 0 <= token < self._vocab_size:
                raise Refused(
                    RejectCode.INVALID,
                    f"prompt has the token id {token}; this model's ids go from 0 to {self._vocab_size - 1}",
                )
        try:
            check_sampling(message.sampling, self._vocab_size, len(message.prompt_token_ids))
        except ValueError as error:
            raise Refused(RejectCode.INVALID, str(error)) from None
