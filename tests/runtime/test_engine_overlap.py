"""A step's outputs are sent, and it is entered in the books, while the device is at work; all else stays as it was.

The device here is a CPU that does nothing until it is waited for: the latest that any device could read its inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paceline_runtime.config import resolve
from paceline_runtime.core.loop import CoreLoop
from paceline_runtime.engine.llm import LLMEngine
from paceline_runtime.engine.scheduler import MOST_FOLLOWING
from paceline_runtime.messages import (
    Abort,
    AddRequest,
    CoreMessage,
    Drain,
    EngineStats,
    FrontMessage,
    SamplingParams,
    StepOutputs,
    TokenLogprob,
    TokenOutput,
    Tune,
    Tuned,
)
from paceline_runtime.model.device.graphs import DecodeGraphs, no_graphs
from paceline_runtime.model.inputs import SequenceInput
from paceline_runtime.model.sampling import Draws
from paceline_runtime.model.torch_llama import TorchLlama, TorchStep

Story = list[tuple[str, object]]


class LateDevice:
    """A model whose steps are computed, in order, when somebody waits for one.

    Attributes:
        story: what happened, in order.
    """

    def __init__(self, model: TorchLlama, story: Story) -> None:
        self._model, self._queue, self.story = model, list[Callable[[], None]](), story

    def prepare(self, seqs: Sequence[SequenceInput], follows: Sequence[int] | None = None) -> TorchStep:
        if follows is not None:
            self.story.append(("ahead", None))
        return self._model.prepare(seqs, follows)

    def forward(self, step: TorchStep) -> torch.Tensor:
        self.story.append(("launch", None))
        logits = torch.full((step.rows, self._model.spec.vocab_size), torch.nan)

        def compute() -> None:
            logits.copy_(self._model.forward(step))

        self._queue.append(compute)
        return logits

    def launch_greedy(self, step: TorchStep) -> Callable[[], list[tuple[int, float]]]:
        return self._launch(lambda: self._model.launch_greedy(step)())

    def launch_draws(self, step: TorchStep, draws: Draws) -> Callable[[], list[tuple[int, float]]]:
        self.story.append(("draws", None))
        return self._launch(lambda: self._model.launch_draws(step, draws)())

    def _launch(self, compute: Callable[[], list[tuple[int, float]]]) -> Callable[[], list[tuple[int, float]]]:
        self.story.append(("launch", None))
        found: list[tuple[int, float]] = []
        self._queue.append(lambda: found.extend(compute()))

        def wait() -> list[tuple[int, float]]:
            self.wait()
            return found

        return wait

    def wait(self) -> None:
        self.story.append(("wait", None))
        self.catch_up()

    def catch_up(self) -> None:
        """What is next on the device comes after all that it was given before."""
        for job in self._queue:
            job()
        self._queue.clear()


class Script:
    """The front end's side: which messages are there at the loop's n-th look, and what it was sent."""

    def __init__(self, messages: dict[int, list[FrontMessage]], story: Story) -> None:
        self._messages, self._story, self._looks = messages, story, 0
        self.sent: list[CoreMessage] = []

    def receive(self, timeout: float) -> list[FrontMessage]:
        self._looks += 1
        if self._looks > max(self._messages, default=0):
            return [Drain()]
        return self._messages.get(self._looks, [])

    def send(self, message: CoreMessage) -> None:
        self.sent.append(message)
        if isinstance(message, StepOutputs):
            self._story.append(("send", [output.request_id for output in message.outputs]))


def after(first: Callable[[], None], then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def both(moves: Any) -> Any:
        if moves:
            first()
        return then(moves)

    return both


def run(
    folder: Path, messages: dict[int, list[FrontMessage]], *, late: bool, ahead: bool = False, **flags: Any
) -> tuple[Script, Story]:
    """A core's whole life on the CPU, or on a late device."""
    defaults = {"max_model_len": 128, "kv_cache_memory": "132Ki", "max_batched_tokens": 64, "max_num_seqs": 6}
    config = resolve(source=folder.as_uri(), flags={**defaults, **flags}, environ={})
    engine = LLMEngine(config, schedule_ahead=ahead)
    story: Story = []
    runner, scheduler = engine._runner, engine.scheduler
    model = runner.model
    assert isinstance(model, TorchLlama)
    model._graphs = DecodeGraphs(no_graphs)
    model.capture(model.sizes_to_capture(6))
    if late:
        device: Any = LateDevice(model, story)
        runner.model, runner.overlaps = device, True
        runner.synchronize = device.wait  # type: ignore[method-assign]
        mover: Any = engine._mover
        for name in ("copy", "execute"):
            setattr(mover, name, after(device.catch_up, getattr(mover, name)))

    schedule = scheduler.schedule

    def watched(now: float) -> Any:
        batch = schedule(now)
        seqs = () if batch is None else batch.seqs
        plan = [(seq.request.request_id, seq.count, list(seq.request.blocks)) for seq in seqs]
        story.append(("batch", (plan, [(p.reason, p.way, p.count) for p in scheduler.preemptions()])))
        return batch

    scheduler.schedule = watched  # type: ignore[method-assign]
    script = Script(messages, story)
    CoreLoop(engine, script).run()  # type: ignore[arg-type]
    engine.check_integrity()
    assert engine.idle
    assert engine.stats().kv_blocks_used == 0
    return script, story


def plain(outputs: Sequence[CoreMessage]) -> list[tuple[object, ...]]:
    """What a client could tell apart, in order."""
    return [
        (
            *(one.request_id, one.new_token_ids, one.finish_reason, one.stop_token_id, one.num_preemptions),
            *(one.logprobs, one.prompt_logprobs, one.num_cached_tokens, one.message),
        )
        if isinstance(one, TokenOutput)
        else (type(one).__name__,)
        for message in outputs
        for one in (message.outputs if isinstance(message, StepOutputs) else [message])
        if not isinstance(one, Tuned)  # it is sent at once, before outputs that wait for the device to be busy
    ]


def counts(outputs: Sequence[CoreMessage]) -> list[tuple[int, ...]]:
    stats: list[EngineStats] = [m.stats for m in outputs if isinstance(m, StepOutputs) and m.stats.batch_seqs]
    return [
        (s.step, s.running, s.waiting, s.kv_blocks_used, s.kv_blocks_cached, s.preemptions_total, s.batch_tokens)
        for s in stats
    ]


@st.composite
def scripts(draw: st.DrawFn) -> dict[int, list[FrontMessage]]:
    """Requests of all kinds that come, some that are cancelled, and limits that change, at any step."""
    messages: dict[int, list[FrontMessage]] = {}
    for i in range(draw(st.integers(2, 9))):
        at, length = draw(st.integers(1, 12)), draw(st.sampled_from((1, 15, 16, 17, 50, 90)))
        drawn = draw(st.booleans())
        sampling = SamplingParams(
            max_tokens=draw(st.integers(1, 30)),
            temperature=0.9 if drawn else 0.0,
            top_p=draw(st.sampled_from((1.0, 0.8))),
            seed=i,
            stop_token_ids=draw(st.lists(st.integers(0, 383), max_size=40)),
            logprobs=draw(st.sampled_from((None, None, 1))),
            prompt_logprobs=draw(st.sampled_from((None, None, None, 1))),
        )
        forks = [f"r{i}-b", f"r{i}-c"] if draw(st.sampled_from((False, False, True))) else []
        messages.setdefault(at, []).append(
            AddRequest(
                request_id=f"r{i}",
                prompt_token_ids=[(j * 7 + i % 3) % 380 + 3 for j in range(length)],
                sampling=sampling,
                fork_ids=forks,
                arrival_time=time.monotonic(),
            )
        )
        if draw(st.booleans()):
            later = at + draw(st.integers(0, 20))
            messages.setdefault(later, []).append(Abort([draw(st.sampled_from([f"r{i}", *forks]))]))
    for _ in range(draw(st.integers(0, 2))):
        knobs = {"maxNumSeqs": draw(st.integers(3, 6)), "prefillChunkTokens": draw(st.sampled_from((32, 48, 64)))}
        messages.setdefault(draw(st.integers(1, 25)), []).append(Tune(knobs))
    return messages


@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(scripts(), st.booleans())
def test_tokens_stops_cancels_and_preemptions_are_those_of_a_host_that_waits(
    tiny_model_dir: Path, script: dict[int, list[FrontMessage]], scarce: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_NATIVE", "0")
        flags = {"kv_cache_memory": "68Ki"} if scarce else {}
        (one, first), (other, second) = (run(tiny_model_dir, script, late=late, **flags) for late in (False, True))
    assert plain(other.sent) == plain(one.sent)
    assert counts(other.sent) == counts(one.sent)
    assert [what for kind, what in second if kind == "batch"] == [what for kind, what in first if kind == "batch"]


def told(sent: Sequence[CoreMessage]) -> dict[str, list[TokenOutput]]:
    """All outputs of each request."""
    found: dict[str, list[TokenOutput]] = {}
    for message in sent:
        for one in message.outputs if isinstance(message, StepOutputs) else ():
            found.setdefault(one.request_id, []).append(one)
    return found


def looked_at(outputs: Sequence[TokenOutput]) -> list[TokenLogprob | None]:
    """What was told of probabilities: of tokens, then of the prompt."""
    return [
        *(entry for one in outputs for entry in one.logprobs or []),
        *(entry for one in outputs for entry in one.prompt_logprobs or []),
    ]


def answer(outputs: Sequence[TokenOutput]) -> list[object]:
    """What one request came to, whatever ran beside it."""
    last = outputs[-1] if outputs else None
    end = None if last is None else (last.finish_reason, last.stop_token_id, last.message)
    return [
        [token for one in outputs for token in one.new_token_ids],
        end,
    ]


@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(scripts(), st.booleans(), st.sampled_from(("0", "64Ki")))
def test_answers_are_the_same_when_steps_are_given_ahead(
    tiny_model_dir: Path, script: dict[int, list[FrontMessage]], scarce: bool, lower: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_NATIVE", "0")
        flags = {"kv_cache_memory": "68Ki"} if scarce else {}
        host, _ = run(tiny_model_dir, script, late=False, **flags)
        device, _ = run(tiny_model_dir, script, late=True, ahead=True, kv_host_memory=lower, **flags)
    wanted, found = told(host.sent), told(device.sent)
    cancelled = {
        name for messages in script.values() for one in messages if isinstance(one, Abort) for name in one.request_ids
    }
    families = {name.partition("-")[0] for name in cancelled}
    for name in wanted.keys() | found.keys():
        one, other = answer(wanted.get(name, [])), answer(found.get(name, []))
        if name in cancelled:
            # It comes at another token then, or after the last one.
            length = min(len(one[0]), len(other[0]))  # type: ignore[arg-type]
            assert one[0][:length] == other[0][:length]  # type: ignore[index]
            continue
        assert one == other
        if name.partition("-")[0] in families:
            continue  # whoever takes the place of the one that computed the prompt may tell of the prompt
        entries, others = looked_at(wanted.get(name, [])), looked_at(found.get(name, []))
        assert [entry and entry.token_id for entry in entries] == [entry and entry.token_id for entry in others]
        # PyTorch's kernels sum in an order that depends on what else is in the step: other last places.
        numbers = ([entry.logprob for entry in some if entry is not None] for some in (entries, others))
        assert next(numbers) == pytest.approx(next(numbers), abs=1e-3)


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9}], ids=["greedy", "drawn"]
)
def test_a_device_has_its_next_step_before_the_host_waits_for_this_one(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, float]
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    asked = SamplingParams(max_tokens=5, seed=3, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    _, story = run(tiny_model_dir, requests(2, asked), late=True, ahead=True)
    kinds = [kind for kind, _ in story if kind != "draws"]
    # Prompts have several tokens, so the step after theirs is chosen; then all follow until the last token.
    ahead = ["ahead", "launch", "send", "wait"]
    assert kinds == ["batch", "launch", "wait", "batch", "launch", *ahead * 3, "send", "wait", "send", "batch"]


@pytest.mark.parametrize(
    "looked_at",
    [{"logprobs": 1}, {"frequency_penalty": 0.5}, {"min_tokens": 4}, {"logit_bias": {5: 1.0}}, {"bad_words": [[7, 8]]}],
    ids=lambda way: next(iter(way)),
)
def test_nothing_is_given_ahead_where_a_token_changes_the_next_ones_logits_or_they_are_looked_at(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, looked_at: dict[str, Any]
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    asked = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, **looked_at)
    _, story = run(tiny_model_dir, requests(2, asked), late=True, ahead=True)
    assert "ahead" not in [kind for kind, _ in story]


def test_who_waits_for_a_place_is_looked_at_every_few_steps(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    asked = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    _, story = run(tiny_model_dir, requests(3, asked), late=True, ahead=True, max_num_seqs=2)
    kinds = "".join(kind[0] for kind, _ in story if kind in ("ahead", "batch"))
    assert max(map(len, kinds[: kinds.rindex("b")].split("b"))) >= MOST_FOLLOWING
    # While the third waits; when it runs nobody waits any more.
    first = kinds.index("a" * MOST_FOLLOWING)
    assert kinds[first : first + 2 * MOST_FOLLOWING + 2] == ("a" * MOST_FOLLOWING + "b") * 2


GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)


def requests(count: int, sampling: SamplingParams = GREEDY) -> dict[int, list[FrontMessage]]:
    return {
        1: [
            AddRequest(request_id=str(i), prompt_token_ids=[5 + i, 6], sampling=sampling, arrival_time=0.0)
            for i in range(count)
        ]
    }


@pytest.mark.parametrize("late", [False, True], ids=["host", "device"])
def test_outputs_are_sent_while_a_device_works_and_at_once_without_one(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    _, story = run(tiny_model_dir, requests(2), late=late)
    kinds = [kind for kind, _ in story]
    if late:
        # The last one is not kept back: there is no step after it.
        step = ["batch", "launch"]
        assert kinds == [*step, "wait", *(*step, "send", "wait") * 3, "send", "batch"]
    else:
        assert kinds == [*("batch", "send") * 4, "batch"]


def test_what_was_made_is_sent_even_if_the_next_step_fails(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    launches = 0
    launch = LateDevice.launch_greedy

    def fails_third(self: LateDevice, step: TorchStep) -> Callable[[], list[tuple[int, float]]]:
        nonlocal launches
        launches += 1
        if launches == 3:
            raise RuntimeError("the device is gone")
        return launch(self, step)

    monkeypatch.setattr(LateDevice, "launch_greedy", fails_third)
    sent: list[CoreMessage] = []
    monkeypatch.setattr(Script, "send", lambda self, message: sent.append(message))
    with pytest.raises(RuntimeError, match="the device is gone"):
        run(tiny_model_dir, requests(1), late=True)
    assert [len(m.outputs[0].new_token_ids) for m in sent if isinstance(m, StepOutputs)] == [1, 1]


def test_a_device_draws_its_tokens_itself_and_they_are_the_hosts(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_NATIVE", "0")
    ways: list[dict[str, Any]] = [{}, {"top_p": 0.8}, {"top_k": 20, "min_p": 0.01}, {"temperature": 0.0}]
    asked: list[FrontMessage] = [
        AddRequest(
            request_id=str(i),
            prompt_token_ids=[5 + i, 6],
            sampling=SamplingParams(**{"temperature": 1.1, "max_tokens": 20, "seed": i, "ignore_eos": True, **way}),
            arrival_time=0.0,
        )
        for i, way in enumerate(ways)
    ]
    (one, _), (other, story) = (run(tiny_model_dir, {1: asked}, late=late) for late in (False, True))
    assert plain(other.sent) == plain(one.sent)
    assert [kind for kind, _ in story].count("draws") == 20
