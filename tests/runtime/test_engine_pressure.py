"""Every way in which blocks are shared, copied, moved and taken, at once and on a cache that is too small.

The model is a function of its whole history and reads that history out of the blocks, so whatever is mixed up changes a
token.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline_crds.runtime_config import Isolation, PressurePolicy, QueuePolicy
from paceline_runtime.engine.block_manager import BlockManager, hash_seed
from paceline_runtime.engine.limits import MAX_PREEMPTIONS, SchedulerLimits, SchedulingRules
from paceline_runtime.engine.request import Request
from paceline_runtime.engine.scheduler import Batch, Finished, Refused, Scheduler
from paceline_runtime.engine.tiers import Memory, MoveReport, Place, TierStack, Transfer
from paceline_runtime.messages import AddRequest, EventKind, FinishReason, SamplingParams

EOS = 7
VOCABULARY = 40
SIZE = 4
LIMIT = 40


def entry(before: int, token: int) -> int:
    """What the cache holds for one position: it depends on all tokens up to there."""
    return hash((before, token))


def next_token(entries: Sequence[int], seed: int) -> int:
    """The model: every position of the context counts."""
    return hash((*entries, seed)) % VOCABULARY


def answer(prompt: Sequence[int], count: int, seed: int) -> list[int]:
    """What the model says when nothing is ever cached, moved or preempted."""
    entries: list[int] = []
    for token in prompt:
        entries.append(entry(entries[-1] if entries else 0, token))
    made: list[int] = []
    while len(made) < count and EOS not in made:
        made.append(next_token(entries, seed))
        entries.append(entry(entries[-1], made[-1]))
    return made


@dataclass
class World:
    """A model that keeps its context in the blocks it is told, and memories that keep what is moved there."""

    rng: random.Random
    damage: float = 0.0
    cells: dict[Place, list[int | None]] = field(default_factory=dict)
    keys: dict[Place, bytes] = field(default_factory=dict)
    damaged: int = 0

    def block(self, number: int) -> list[int | None]:
        return self.cells.setdefault(Place(Memory.DEVICE, number), [None] * SIZE)

    def execute(self, transfers: Sequence[Transfer]) -> MoveReport:
        """Any order is right, so they come in any order."""
        read, written = [t.source for t in transfers], [t.target for t in transfers]
        assert len(set(written)) == len(written)
        assert not set(read) & set(written)
        failed = []
        for transfer in self.rng.sample(list(transfers), len(transfers)):
            if transfer.source.memory is not Memory.DEVICE:
                assert self.keys[transfer.source] == transfer.key, "a memory is asked for what it does not hold"
                if self.rng.random() < self.damage:
                    self.damaged += 1
                    self.cells[transfer.target] = [-1] * SIZE
                    failed.append(transfer)
                    continue
            self.cells[transfer.target] = list(self.cells[transfer.source])
            self.keys[transfer.target] = transfer.key
        directions = {(t.source.memory, t.target.memory) for t in transfers}
        return MoveReport(tuple(failed), {direction: self.rng.choice((1e-4, 0.05)) for direction in directions})

    def forward(self, batch: Batch) -> dict[str, int | None]:
        sources, targets = {c.source for c in batch.copies}, [c.target for c in batch.copies]
        assert len(set(targets)) == len(targets)
        assert not sources & set(targets)
        for copy in self.rng.sample(list(batch.copies), len(batch.copies)):
            self.cells[Place(Memory.DEVICE, copy.target)] = list(self.block(copy.source))
        writers: dict[int, str] = {}
        sampled: dict[str, int | None] = {}
        for seq in batch.seqs:
            request, start = seq.request, seq.request.num_computed
            for position in range(start, start + seq.count):
                number = request.blocks[position // SIZE]
                assert writers.setdefault(number, request.request_id) == request.request_id, "a block has two writers"
                before = self.read(request, position)[-1] if position else 0
                self.block(number)[position % SIZE] = entry(before, request.tokens[position])
            for choice in seq.choices:
                sampled[choice.request_id] = next_token(self.read(request, start + seq.count), choice.seed)
        return sampled

    def read(self, request: Request, count: int) -> list[int]:
        """The context of a request, out of its blocks."""
        cells = [cell for number in request.blocks[: -(-count // SIZE)] for cell in self.block(number)][:count]
        found = [cell for cell in cells if cell is not None]
        assert len(found) == count, f"{request.request_id} reads what was never written"
        return found


class Pressure(RuleBasedStateMachine):
    """Random arrivals, forks, aborts, preemptions, moves, damage and deadlines under random rules."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.world = World(random.Random(data.draw(st.integers(0, 2**32))), data.draw(st.sampled_from([0.0, 0.0, 0.1])))
        policy = data.draw(st.sampled_from(QueuePolicy))
        fair, pressed = data.draw(st.sampled_from([(False, False), (True, False), (False, True)]))
        rules = SchedulingRules(
            policy,
            fair,
            PressurePolicy.SHORTEST_REMAINING if pressed else PressurePolicy.NONE,
            data.draw(st.sampled_from(Isolation)),
        )
        self.limits = SchedulerLimits(
            max_model_len=LIMIT,
            max_num_seqs=data.draw(st.integers(4, 8)),
            max_batched_tokens=data.draw(st.integers(10, 24)),
            prefill_chunk_tokens=7,
            max_waiting=12,
            reserve_blocks=data.draw(st.integers(0, 2)),
            prefill_min_chunk_tokens=data.draw(st.integers(1, 4)),
            max_step_share_percent=data.draw(st.sampled_from([30, 100])),
            tenant_max_seqs=data.draw(st.sampled_from([0, 2])),
            cushion_percent=data.draw(st.sampled_from([0, 25])),
        )
        host, disk = data.draw(st.sampled_from([(0, 0), (6, 0), (0, 9), (5, 8), (40, 0)]))
        tiers = TierStack([(Memory.HOST, host), (Memory.DISK, disk)], SIZE) if host or disk else None
        blocks = BlockManager(
            data.draw(st.one_of(st.integers(10, 16), st.integers(10, 40))),
            SIZE,
            prefix_caching=data.draw(st.booleans()),
            seed=hash_seed("model", SIZE, "int"),
            watermark_percent=data.draw(st.sampled_from([50, 75, 100])),
            tiers=tiers,
        )
        self.scheduler = Scheduler(self.limits, blocks, frozenset({EOS}), rules)
        self.steps = 0
        self.open: dict[str, AddRequest] = {}
        self.made: dict[str, list[int]] = {}
        self.waits: dict[str, list[str]] = {}

    @rule(
        length=st.integers(1, 30),
        start=st.integers(0, 2),
        max_tokens=st.one_of(st.none(), st.integers(1, 20)),
        forks=st.sampled_from([0, 0, 0, 1, 3]),
        tenant=st.sampled_from(["", "a", "b"]),
        priority=st.sampled_from([0, 0, 1, -1]),
        patience=st.sampled_from([None, None, None, 20, 200]),
        flavour=st.sampled_from(["", "", "session", "salt", "probe", "scored", "prompt-only"]),
        seed=st.integers(0, 3),
    )
    def arrive(
        self,
        length: int,
        start: int,
        max_tokens: int | None,
        forks: int,
        tenant: str,
        priority: int,
        patience: int | None,
        flavour: str,
        seed: int,
    ) -> None:
        name = f"r{len(self.made)}"
        if max_tokens is not None:
            max_tokens = 0 if flavour == "prompt-only" else min(max_tokens, LIMIT - length)
        names = tuple(f"{name}.{i}" for i in range(1, forks + 1))
        # Many prompts share their beginning; in some only the first token is another, or the rest from the middle on.
        prompt = list(range(100, 100 + length))
        if start == 1:
            prompt[0] = 99
        if start == 2:
            prompt[9:] = range(length - 9)
        message = AddRequest(
            request_id=name,
            fork_ids=names,
            prompt_token_ids=prompt,
            sampling=SamplingParams(
                max_tokens=max_tokens, prompt_logprobs=1 if flavour in ("scored", "prompt-only") else None
            ),
            arrival_time=float(self.steps),
            tenant=tenant,
            tenant_weight=2.0 if tenant == "a" else 1.0,
            priority=priority,
            deadline=None if patience is None else float(self.steps + patience),
            cache_salt="s" if flavour == "salt" else "",
            session="talk" if flavour == "session" else "",
            probe=flavour == "probe",
        )
        with contextlib.suppress(Refused):
            self.scheduler.add(message, seed)
        for request in list(self.scheduler.requests()):
            if request.request_id in (name, *names):
                self.open[request.request_id] = message
                self.made[request.request_id] = []

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        assert self.scheduler.abort(name)
        assert not self.scheduler.abort(name)
        self.closed(name)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), swap=st.booleans())
    def preempt(self, data: st.DataObject, swap: bool) -> None:
        self.scheduler.preempt(data.draw(st.sampled_from(sorted(self.open))), swap=swap)

    @rule(count=st.integers(1, 8))
    def steps_run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        self.steps += 1
        now = float(self.steps)
        running = {r.request_id: r for r in self.scheduler.requests() if r.blocks}
        batch = self.scheduler.schedule(now)
        self.hear()
        for request, ending in self.scheduler.take_ended():
            assert ending.reason is FinishReason.DEADLINE
            assert request.deadline is not None
            self.closed(request.request_id)
        for request in running.values():
            assert request.blocks or request.num_preemptions or request.request_id not in self.open
        if batch is None:
            assert not self.open, "requests are there, but no step has work"
            return
        self.budget_is_kept(batch)
        if batch.transfers:
            batch = self.scheduler.transferred(batch, self.world.execute(batch.transfers), now)
        sampled = self.world.forward(batch)
        for request, tokens, end in self.scheduler.update(batch, sampled, now):
            self.made[request.request_id] += tokens
            if end is not None:
                self.ended(request, end)
        self.scheduler.observe(self.world.rng.choice((0.001, 0.01, 0.1)), batch)

    def ended(self, request: Request, ending: Finished) -> None:
        made = self.made[request.request_id]
        expected = answer(request.tokens[: request.prompt_len], request.max_len - request.prompt_len, request.seed)
        assert made == expected, f"{request.request_id} mixed something up"
        assert ending.reason is (FinishReason.STOP if EOS in made else FinishReason.LENGTH)
        self.closed(request.request_id)

    def closed(self, name: str) -> None:
        del self.open[name]

    def budget_is_kept(self, batch: Batch) -> None:
        assert batch.num_tokens <= self.limits.max_batched_tokens
        assert len({seq.request.request_id for seq in batch.seqs}) == len(batch.seqs)
        for seq in batch.seqs:
            assert seq.count >= 1
            assert len(seq.request.blocks) * SIZE >= seq.request.num_computed + seq.count

    def hear(self) -> None:
        for event in self.scheduler.take_events():
            assert event.message
            told = self.waits.setdefault(event.request_id, [])
            if event.kind is EventKind.WAITS:
                assert not told or told[-1] != event.reason, "a reason is told twice"
                told.append(event.reason)
            else:
                told.append(event.kind)

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        scheduler.check_integrity()
        requests = list(scheduler.requests())
        assert {r.request_id for r in requests} == set(self.open)
        assert scheduler.num_running + scheduler.num_waiting == len(self.open)
        assert scheduler.num_running <= self.limits.max_num_seqs + 1
        assert all(r.num_preemptions <= MAX_PREEMPTIONS + self.world.damaged for r in requests)
        if self.limits.tenant_max_seqs:
            for tenant in ("", "a", "b"):
                running = [r for r in requests if r.tenant == tenant and r.blocks]
                most = max((r.num_slots for r in requests), default=1)
                assert len(running) <= max(self.limits.tenant_max_seqs, most, 4) + 1

    def teardown(self) -> None:
        # Nobody starves: with no more arrivals everything ends within the steps that it needs one by one, preempted as
        # often as may be.
        if not hasattr(self, "scheduler"):
            return
        bound = (MAX_PREEMPTIONS + 2 + self.world.damaged) * (sum(r.max_len for r in self.scheduler.requests()) + 10)
        self.world.damage = 0.0
        for _ in range(bound):
            if not self.open:
                break
            self.step()
        assert not self.open
        assert self.scheduler.idle
        assert self.scheduler.blocks.num_used == 0
        assert not self.scheduler.waiting_by_reason()
        self.scheduler.check_integrity()


TestPressure = Pressure.TestCase
TestPressure.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
