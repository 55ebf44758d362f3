"""Which replica a request goes to, and why."""

from __future__ import annotations

import gc
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline_router.choice.chooser import Chooser
from paceline_router.choice.decision import (
    BOUND,
    HOME,
    LAST_RESORT,
    LEAST,
    NONE,
    ONLY,
    PREFIX,
    SESSION,
    SPREAD,
    fields,
    words,
)
from paceline_router.choice.load import ReplicaLoad
from paceline_router.choice.policies import POLICIES, make_chooser
from paceline_router.choice.prefix import PythonPrefixIndex
from paceline_router.choice.ring import Ring, conversation_key
from paceline_router.choice.terms import LOCALITY_BOUND, LOCALITY_SLACK, SESSIONS
from paceline_router.commands import app

Group = tuple[ReplicaLoad, ...]


def fleet(count: int, *works: float) -> Group:
    loads = tuple(ReplicaLoad(0.0, f"r{number}") for number in range(count))
    for load, work in zip(loads, works, strict=False):
        load.work = work
    return loads


class Asked:
    """A chooser and a group, asked with few words."""

    def __init__(self, group: Group, chooser: Chooser[ReplicaLoad] | None = None) -> None:
        self.group = group
        self.chooser = chooser if chooser is not None else Chooser()
        self.turn = 0
        self.now = 1.0

    def __call__(
        self,
        text: bytes = b"",
        session: bytes | None = None,
        tokens: int | None = None,
        limit: int = 1000,
        **more: object,
    ) -> ReplicaLoad | None:
        self.turn += 1
        tokens = len(text) // 4 if tokens is None else tokens
        return self.chooser.choose(self.group, text, session, tokens, 100, self.now, self.turn, limit, **more)  # type: ignore[arg-type]

    @property
    def code(self) -> int:
        return self.chooser.last[0]


def prompt(name: str, size: int = 4096) -> bytes:
    return (b"[" + name.encode() + b"]").ljust(size, b".")


def test_short_requests_go_to_the_least_work_and_equal_ones_take_turns() -> None:
    ask = Asked(fleet(4, 50, 10, 30, 20))
    assert ask(b"hi") is ask.group[1]
    assert ask.code == LEAST
    even = Asked(fleet(4))
    assert len({even(b"hi") for _ in range(4)}) == 4


def test_a_prefix_is_worth_what_it_saves_and_no_more() -> None:
    ask = Asked(fleet(3))
    text = prompt("a")
    holder = ask(text)
    assert holder is not None
    holder.work = 900.0
    assert ask(text + b"more") is holder
    assert ask.code == PREFIX
    assert ask.chooser.cached == pytest.approx(1024, abs=2)
    holder.work = 1100.0
    assert ask(text + b"more") is not holder


def test_a_block_of_another_prompt_does_not_attract() -> None:
    ask = Asked(fleet(2))
    fine, bad = prompt("What a fine day", 256), prompt("Not a bad day today", 256)
    ask.group[1].work = 1e5
    ask(fine, tokens=200)
    ask.group[1].work, ask.group[0].work = 0.0, 1e5
    ask(bad, tokens=200)
    ask.group[0].work = 0.0
    for _ in range(4):
        assert ask(bad + fine, tokens=400) is ask.group[1]


def test_a_holder_far_above_the_mean_is_passed_over_whatever_it_holds() -> None:
    ask = Asked(fleet(4))
    text = prompt("a book", 400_000)
    holder = ask(text)
    assert holder is not None
    holder.work = LOCALITY_SLACK
    assert ask(text) is holder
    # The mean is a quarter of it.
    holder.work = 1.01 * LOCALITY_SLACK / (1 - LOCALITY_BOUND / 4)
    assert holder.work < ask.chooser.cached
    assert ask(text) is not holder
    assert ask.code == BOUND
    assert "too much to do" in words(ask.chooser.last)


@pytest.mark.parametrize("at_once", [1, 8, 200])
def test_a_system_prompt_that_all_share_makes_no_hot_spot(at_once: int) -> None:
    ask = Asked(fleet(4))
    shared = prompt("system", 12_000)
    sent: list[ReplicaLoad] = []
    running: list[tuple[ReplicaLoad, int, int, int]] = []
    cached = total = 0
    for number in range(200):
        text = shared + prompt(f"user {number}", 500)
        chosen = ask(text, session=b"s%d" % number)
        assert chosen is not None
        sent.append(chosen)
        mark = chosen.begin(len(text) // 4, 100, ask.chooser.cached)
        cached += ask.chooser.cached
        total += len(text) // 4
        running.append((chosen, len(text) // 4, ask.chooser.cached, mark))
        if len(running) >= at_once:
            load, tokens, there, mark = running.pop(0)
            load.end(tokens, 100, there, mark, answered=False)
    counts = [sent.count(load) for load in ask.group]
    assert max(counts) * 4 / 200 <= 1.5
    assert cached / total > 0.97 * 10_240 / 12_500, "each replica computes its whole blocks once"


def test_a_shared_beginning_is_put_on_one_more_replica_at_a_time() -> None:
    ask = Asked(fleet(4))
    shared = prompt("system")
    holders = []
    for number in range(60):
        ask(shared + prompt(f"user {number}", 2048))
        if ask.code == SPREAD and ask.chooser.cached == 0:
            holders.append(number)
    assert len(holders) <= 3
    assert ask.chooser.counts[SPREAD] < 30


def test_a_session_goes_back_and_moves_when_that_costs_less() -> None:
    ask = Asked(fleet(4))
    first = ask(b"short", session=b"abc", tokens=100)
    assert first is not None
    for _ in range(8):
        assert ask(b"another", session=b"abc", tokens=120) is first
    assert ask.code == SESSION
    first.work = 5000.0
    second = ask(b"another", session=b"abc", tokens=120)
    assert second is not first
    first.work = 0.0
    assert ask(b"another", session=b"abc", tokens=120) is second


def test_sessions_of_two_tenants_are_two() -> None:
    ask = Asked(fleet(4))
    ask(b"short", session=b"abc", tokens=100, salt=1)
    ask(b"short", session=b"abc", tokens=100, salt=2)
    assert ask.code != SESSION


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SESSIONS <= 1 << 20
    monkeypatch.setattr("paceline_router.choice.chooser.SESSIONS", 10)
    ask = Asked(fleet(4))
    for number in range(100):
        ask(b"short", session=b"%d" % number)
    assert len(ask.chooser._sessions) == 10


def test_two_routers_send_a_new_conversation_to_the_same_replica() -> None:
    one, other = Asked(fleet(6)), Asked(tuple(reversed(fleet(6))))
    names = []
    for number in range(50):
        opening = b'[{"role":"system","content":"be kind"},{"role":"user","content":"%b"}' % (b"q%d " % number * 500)
        later = opening + b',{"role":"assistant","content":"yes"},{"role":"user","content":"and?"}]'
        first, second = one(opening + b"]"), other(later)
        assert first is not None
        assert second is not None
        assert first.key == second.key
        assert one.code == other.code == HOME
        names.append(first.key)
    assert len(set(names)) == 6


def test_the_key_of_a_conversation_stays_as_it_grows() -> None:
    opening = b'[{"role": "user", "content": "what is this?"}'
    keys = {
        conversation_key(opening + b"]", None),
        conversation_key(
            opening + b', {"role": "assistant", "content": "{}"}, {"role": "user", "content": "so"}]', None
        ),
    }
    assert len(keys) == 1
    assert conversation_key(b"anything", b"s") == conversation_key(b"else", b"s") != conversation_key(b"else", b"t")


def test_a_replica_more_moves_few_conversations() -> None:
    loads = fleet(9)
    before, after = Ring(loads[:8]), Ring(loads)
    keys = [random.Random(number).getrandbits(32) for number in range(2000)]
    moved = [key for key in keys if before.home(key) is not after.home(key)]
    assert len(moved) / len(keys) < 0.2
    assert all(after.home(key) is loads[8] for key in moved)


def test_busy_stale_ejected_and_draining_replicas_get_nothing_while_another_can() -> None:
    ask = Asked(fleet(5, 0, 0, 0, 0, 9000))
    busy, stale, ejected, draining, good = ask.group
    busy.busy(50.0)
    stale.fresh_until = 0.5
    ejected.eject(50.0)
    draining.draining = True
    for text in (b"hi", prompt("long")):
        assert ask(text) is good
        assert ask.code == ONLY
    assert ask(b"hi", tried=[good]) is busy
    assert ask.code == LAST_RESORT
    assert ask(b"hi", tried=[good, busy]) is stale
    assert ask(b"hi", tried=[good, busy, stale]) is ejected
    assert ask(b"hi", tried=[good, busy, stale, ejected]) is None
    assert ask.code == NONE


def test_a_full_replica_is_not_chosen_for_its_prefix() -> None:
    ask = Asked(fleet(2))
    text = prompt("x")
    holder = ask(text)
    assert holder is not None
    holder.in_flight = 5
    assert ask(text, limit=5) is not holder
    assert ask(text, limit=5, tried=[next(load for load in ask.group if load is not holder)]) is None


def test_a_warming_replica_gets_a_growing_share() -> None:
    ask = Asked(fleet(4))
    new = ask.group[3]
    new.warm_up(ask.now)
    shares = []
    for at in (1.0, 16.0, 40.0):
        ask.now = at
        for load in ask.group:
            load.fresh_until = 1e9
        sent = []
        for _ in range(400):
            chosen = ask(b"hi", tokens=100)
            assert chosen is not None
            sent.append((chosen, chosen.begin(100, 100)))
        shares.append(sum(load is new for load, _ in sent) / 400)
        for load, mark in sent:
            load.end(100, 100, 0, mark, answered=False)
    assert shares[0] == pytest.approx(0.1 / 3.1, abs=0.02)
    assert shares[1] == pytest.approx(0.5 / 3.5, abs=0.02)
    assert shares[2] == pytest.approx(0.25, abs=0.02)


def test_a_replica_that_is_gone_or_began_anew_holds_nothing() -> None:
    ask = Asked(fleet(3))
    text = prompt("x")
    holder = ask(text)
    assert holder is not None
    ask.chooser.forget(holder)
    ask.group = tuple(load for load in ask.group if load is not holder)
    ask(text)
    assert ask.chooser.cached == 0
    again = ask(text)
    assert again is not None
    assert ask.chooser.cached > 0
    again.take(0, 0, 0, 0, 0, 50, 1.0)
    again.take(0, 0, 0, 0, 0, 1, 9.0)
    ask.now = 9.5
    for load in ask.group:
        load.fresh_until = 20.0
        load.work = 0.0 if load is again else 1e6
    assert ask(text) is again
    assert ask.chooser.cached == 0


def test_many_replicas_are_chosen_from_by_a_sample_and_holders_are_found() -> None:
    random.seed(7)
    ask = Asked(fleet(64, *(float(number) for number in range(64))))
    text = prompt("x")
    holder = ask(text)
    assert holder is not None
    assert all(ask(text) is holder for _ in range(8))
    chosen = [ask(b"hi") for _ in range(300)]
    ranks = [ask.group.index(load) for load in chosen if load is not None]
    assert sum(ranks) / 300 < 16


def test_more_replicas_than_the_index_can_tell_apart_are_served() -> None:
    ask = Asked(fleet(300))
    for number in range(600):
        assert ask(prompt(str(number % 50), 512), session=b"%d" % number) is not None
    assert max(load.slot for load in ask.group) == 255


def test_a_group_that_takes_the_place_of_another_in_memory_is_another() -> None:
    chooser: Chooser[ReplicaLoad] = Chooser()
    for _ in range(50):
        ask = Asked(fleet(2), chooser)
        assert ask(prompt("x")) in ask.group
        for load in ask.group:
            chooser.forget(load)
        del ask
        gc.collect(0)


def test_reasons_are_words() -> None:
    ask = Asked(fleet(2))
    assert words(ask.chooser.last) == "none of 0 replicas could take it"
    ask(prompt("x"))
    holder = ask(prompt("x") + b"y")
    assert holder is not None
    assert words(ask.chooser.last) == "has 1023 of the prompt's tokens already; work ahead there 0 tokens, least seen 0"
    assert fields(ask.chooser.last, holder)["code"] == "prefix"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_to_the_rules(name: str) -> None:
    policy = make_chooser(name)
    group = fleet(4)
    group[0].draining = True
    group[1].in_flight = 9
    for turn in range(40):
        found = policy.choose(group, prompt(str(turn)), None, 1000, 100, 1.0, turn, 9, [group[3]])
        assert found is group[2]
    assert policy.choose(group, b"", None, 1, 1, 1.0, 0, 9, [group[2], group[3]]) is None
    assert policy.choose((), b"", None, 1, 1, 1.0, 0, 9) is None
    policy.forget(group[2])


def test_an_unknown_policy_is_refused_with_the_names() -> None:
    with pytest.raises(
        ValueError, match="write one of cost, round-robin, least-requests, power-of-two, consistent-hash"
    ):
        make_chooser("best")


replica_states = st.tuples(
    st.floats(0, 1e5), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3), st.booleans()
)


@given(
    st.lists(replica_states, max_size=20),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.sets(st.integers(0, 19), max_size=3)), max_size=40),
    st.booleans(),
)
def test_whoever_is_chosen_could_be_and_somebody_is_if_anybody_can(
    states: list[tuple[float, bool, bool, bool, bool, int, bool]],
    requests: list[tuple[int, int, set[int]]],
    native: bool,
) -> None:
    group = fleet(len(states))
    for load, (work, busy, stale, ejected, draining, in_flight, warming) in zip(group, states, strict=True):
        load.work, load.in_flight = work, in_flight
        if busy:
            load.busy(50.0)
        if stale:
            load.fresh_until = 0.0
        if ejected:
            load.eject(50.0)
        if warming:
            load.warm_up(0.5)
        load.draining = draining
    ask = Asked(group, None if native else Chooser(PythonPrefixIndex(100)))
    for size, session, numbers in requests:
        tried = [group[number] for number in numbers if number < len(group)]
        able = [load for load in group if load.in_flight < 3 and not load.draining and load not in tried]
        text = prompt("x", size * 300)
        chosen = ask(text, session=b"%d" % session if session else None, limit=3, tried=tried)
        assert (chosen is None) == (not able)
        if chosen is not None:
            assert chosen in able
            fine = [
                load
                for load in able
                if load.fresh_until >= 1.0 and load.busy_until <= 1.0 and load.ejected_until <= 1.0
            ]
            assert chosen in (fine or able)
            assert 0 <= ask.chooser.cached <= size * 75


def test_what_does_not_fit_into_the_cache_that_a_replica_reports_is_not_believed() -> None:
    ask = Asked(fleet(1))
    (load,) = ask.group
    load.take(4, 0, 50, 0, 5000, 1, 1.0)
    for number in range(12):
        ask(prompt(str(number)))
    load.take(0, 0, 0, 0, 0, 2, 1.0)
    ask(prompt("0"))
    assert ask.chooser.cached == 0
    ask(prompt("11"))
    assert ask.chooser.cached == 1024


def test_the_router_takes_a_policy_by_name() -> None:
    result = CliRunner().invoke(app, ["--choice-policy", "best"])
    assert result.exit_code == 2
    assert "round-robin" in result.output
