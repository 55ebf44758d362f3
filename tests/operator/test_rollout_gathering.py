"""What routers said, as windows of both versions, and the verdict made of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from paceline_crds.sketch import SCALE, Sketch
from paceline_operator.rollout.asked import Policy, Step
from paceline_operator.rollout.gathering import ANCHOR_SECONDS, MOST_WINDOWS, Heard, bounded, hear, major, over_pools
from paceline_operator.rollout.judging import judgement
from paceline_operator.rollout.rules import Rules
from paceline_operator.rollout.state import Phase, State
from paceline_shadow_traffic.evidence import Seen, Signal, Window
from paceline_shadow_traffic.share import Share
from paceline_shadow_traffic.verdict import Gate, Verdict

BEGAN = 1_000_000.0
Row = dict[str, Any]


class Router:
    """Counts requests as a router does, from the moment that is asked about."""

    def __init__(self, slow: float = 1.0, fails: int = 0, share: float = 0.5) -> None:
        self.slow, self.fails, self.share = slow, fails, share
        self.requests: list[tuple[str, str, str, float]] = []

    def serve(self, count: int, shape: str = "ShortInputShortOutput") -> None:
        for number in range(count):
            new = number < count * self.share
            outcome = "5xx" if new and number < self.fails else "2xx"
            ttft = 0.1 * (1.0 + (number % 10) / 10.0) * (self.slow if new else 1.0)
            self.requests.append(("b" if new else "a", shape, outcome, ttft))

    def page(self, now: float, scale: str = SCALE) -> dict[str, Any]:
        rows: list[Row] = []
        for revision, shape in sorted({(one[0], one[1]) for one in self.requests}):
            mine = [one for one in self.requests if one[:2] == (revision, shape)]
            times = Sketch.of(ttft for *_, ttft in mine).encode()
            row = {"pool": "default", "revision": revision, "shape": shape, "met": 0, "missed": 0}
            rows.append({**row, "outcomes": Counter(one[2] for one in mine), "ttft": times, "tpot": times})
        return {"scale": scale, "to": now, "services": {"demo/chat": {"from": BEGAN, "rows": rows}}}


def look(heard: Heard, now: float, **pages: dict[str, Any] | None) -> Heard:
    return hear(heard, pages, "demo/chat", "a", "b", now)


def total(heard: Heard, place: str = "default/ShortInputShortOutput") -> tuple[float, float]:
    windows = heard.windows[place]
    sides = [
        [getattr(one, side).shares.get(Signal.ERROR_RATE, Share()).of for one in windows]
        for side in ("base", "candidate")
    ]
    return sum(sides[0]), sum(sides[1])


def test_each_look_is_a_window_of_what_came_since_and_every_request_is_in_one_of_them() -> None:
    router, heard = Router(), Heard(BEGAN, BEGAN)
    for number in range(1, 6):
        router.serve(10)
        heard = look(heard, BEGAN + 10 * number, r0=router.page(BEGAN + 10 * number))
    [windows] = heard.windows.values()
    assert total(heard) == (25, 25)
    assert [(one.start - BEGAN, one.end - BEGAN) for one in windows] == [
        (0, 10),
        (10, 20),
        (20, 30),
        (30, 40),
        (40, 50),
    ]
    ttft = windows[2].candidate.ttft
    assert ttft is not None
    assert ttft.count == 5


def test_routers_are_added_up_and_each_is_held_against_itself() -> None:
    one, other, heard = Router(), Router(), Heard(BEGAN, BEGAN)
    one.serve(10)
    heard = look(heard, BEGAN + 10, r0=one.page(BEGAN + 10))
    one.serve(10)
    other.serve(40)
    heard = look(heard, BEGAN + 20, r0=one.page(BEGAN + 20), r1=other.page(BEGAN + 20))
    assert total(heard) == (30, 30)


def test_a_router_that_is_silent_or_began_anew_leaves_a_window_that_is_not_known() -> None:
    one, other, heard = Router(), Router(), Heard(BEGAN, BEGAN)
    for router in (one, other):
        router.serve(10)
    heard = look(heard, BEGAN + 10, r0=one.page(BEGAN + 10), r1=other.page(BEGAN + 10))
    assert heard.trouble == ""
    one.serve(10)
    heard = look(heard, BEGAN + 20, r0=one.page(BEGAN + 20), r1=None)
    assert "1 of 2 routers" in heard.trouble
    again = Router()
    again.serve(2)
    heard = look(heard, BEGAN + 30, r0=one.page(BEGAN + 30), r1=again.page(BEGAN + 30))
    [windows] = heard.windows.values()
    assert [one.base != Seen() for one in windows] == [True, False, False]
    again.serve(2)
    heard = look(heard, BEGAN + 40, r0=one.page(BEGAN + 40), r1=again.page(BEGAN + 40))
    assert total(heard) == (11, 11)


def test_a_router_that_knew_nothing_at_the_moment_that_is_asked_about_leaves_a_window_that_is_not_known() -> None:
    """As one that was started anew while nobody looked."""
    router, heard = Router(), Heard(BEGAN - 100.0, BEGAN - 100.0)
    router.serve(10)
    heard = look(heard, BEGAN + 10, r0=router.page(BEGAN + 10))
    assert "1 of 1 routers" in heard.trouble
    router.serve(10)
    assert total(look(heard, BEGAN + 20, r0=router.page(BEGAN + 20))) == (5, 5)


def test_pages_of_another_form_say_nothing_and_why() -> None:
    router, heard = Router(), Heard(BEGAN, BEGAN)
    router.serve(10)
    heard = look(heard, BEGAN + 10, r0=router.page(BEGAN + 10, scale="other"))
    assert "bring routers and operator to one release" in heard.trouble
    assert look(heard, BEGAN + 20).trouble == "no router is ready"
    assert heard.windows == {}


def test_the_moment_that_is_asked_about_moves_on_and_nothing_is_counted_twice() -> None:
    router, heard = Router(), Heard(BEGAN, BEGAN)
    router.serve(10)
    heard = look(heard, BEGAN + ANCHOR_SECONDS, r0=router.page(BEGAN + ANCHOR_SECONDS))
    assert (heard.anchor, heard.since) == (BEGAN + ANCHOR_SECONDS, BEGAN)
    fresh = Router()
    fresh.serve(4)
    heard = look(heard, heard.anchor + 10, r0=fresh.page(heard.anchor + 10))
    assert total(heard) == (7, 7)


def test_days_of_evidence_are_bounded_and_lose_no_request() -> None:
    heard, now = Heard(BEGAN, BEGAN), BEGAN
    for _ in range(3 * MOST_WINDOWS):
        now += 10
        router = Router()
        router.serve(2)
        heard = hear(
            Heard(heard.since, heard.anchor, {}, heard.windows), {"r0": router.page(now)}, "demo/chat", "a", "b", now
        )
    [windows] = heard.windows.values()
    assert len(windows) <= MOST_WINDOWS + 1
    assert total(heard) == (3 * MOST_WINDOWS, 3 * MOST_WINDOWS)
    assert windows[-1].end == now


def test_places_with_few_of_the_requests_are_left_out_of_the_verdict() -> None:
    def window(count: float) -> tuple[Window, ...]:
        seen = Seen(shares={Signal.ERROR_RATE: Share(0, count)})
        return (Window(BEGAN, BEGAN + 10, seen, seen),)

    kept, minor = major({"default/short": window(96), "default/rare": window(4)})
    assert (list(kept), minor) == (["default/short"], ("default/rare",))


RULES = Rules(
    Policy((Step(50, 60.0, 600.0), Step(100, 0.0, 0.0))),
    (Gate(Signal.TTFT_P50, 20.0, settle=10.0), Gate(Signal.ERROR_RATE, 5.0, settle=10.0)),
)
STATE = State(
    "a", Phase.JUDGING, "b", step=0, weight=50, generation=3, since=BEGAN, begun=BEGAN, steps=RULES.policy.steps
)


def verdict_of(router: Router, looks: int = 40) -> tuple[Verdict, str]:
    heard, now = Heard(BEGAN, BEGAN), BEGAN
    for _ in range(looks):
        now += 10
        router.serve(60)
        page = router.page(now)
        if now - heard.anchor >= ANCHOR_SECONDS:
            router.requests.clear()
        heard = look(heard, now, r0=page)
    said = judgement(RULES, STATE, heard, now)
    assert (said.revision, said.generation, said.step, said.since, said.at) == ("b", 3, 0, BEGAN, now)
    return said.verdict, said.message


def test_what_routers_saw_becomes_the_verdict() -> None:
    assert verdict_of(Router())[0] is Verdict.PASS
    failed, words = verdict_of(Router(slow=2.0))
    assert (failed, "TTFTP50 is worse" in words) == (Verdict.FAIL, True)
    assert verdict_of(Router(fails=10))[0] is Verdict.FAIL
    assert verdict_of(Router(), looks=4)[0] is Verdict.NOT_KNOWN


def test_weights_that_routers_did_not_follow_pass_nothing() -> None:
    said, words = verdict_of(Router(share=0.1))
    assert (said, "50 % were asked for" in words) == (Verdict.NOT_KNOWN, True)


def test_nothing_seen_is_not_known() -> None:
    said = judgement(RULES, STATE, Heard(BEGAN, BEGAN, trouble="no router is ready"), BEGAN + 100)
    assert (said.verdict, "no router is ready" in said.message) == (Verdict.NOT_KNOWN, True)


def test_many_places_with_few_requests_each_are_all_judged() -> None:
    """Of three pools and nine shapes none has 5 % of the requests, and there is nothing else to judge."""
    seen = Seen(shares={Signal.ERROR_RATE: Share(0, 10.0)})
    kept, minor = major({f"pool/{number}": (Window(BEGAN, BEGAN + 10, seen, seen),) for number in range(27)})
    assert (len(kept), len(minor)) == (26, 1)


def test_a_candidate_that_fails_a_rare_kind_of_requests_is_worse_though_nobody_waits_for_that_kind() -> None:
    def said(failed: bool) -> tuple[Verdict, str]:
        router, heard, now = Router(), Heard(BEGAN, BEGAN), BEGAN
        for _ in range(45):
            now += 10
            router.serve(300)
            router.fails = 6 if failed else 0
            router.serve(12, shape="LongInputLongOutput")
            router.fails = 0
            page = router.page(now)
            if now - heard.anchor >= ANCHOR_SECONDS:
                router.requests.clear()
            heard = look(heard, now, r0=page)
        found = judgement(RULES, STATE, heard, now)
        return found.verdict, found.message

    verdict, words = said(failed=False)
    assert (verdict, "not waited for, with few requests: default/LongInputLongOutput" in words) == (Verdict.PASS, True)
    verdict, words = said(failed=True)
    assert (verdict, words.startswith("default/LongInputLongOutput: ErrorRate is worse")) == (Verdict.FAIL, True)


def test_a_page_of_another_form_leaves_a_window_that_is_not_known() -> None:
    router, heard = Router(), Heard(BEGAN, BEGAN)
    router.serve(10)
    heard = look(heard, BEGAN + 10, r0=router.page(BEGAN + 10))
    router.serve(10)
    heard = look(heard, BEGAN + 20, r0=router.page(BEGAN + 20, scale="other"))
    heard = look(heard, BEGAN + 30)
    [windows] = heard.windows.values()
    assert [one.base != Seen() for one in windows] == [True, False, False]


def test_a_router_that_began_anew_and_has_counted_more_since_leaves_a_window_that_is_not_known() -> None:
    router, heard = Router(), Heard(BEGAN, BEGAN)
    router.serve(10)
    heard = look(heard, BEGAN + 10, r0=router.page(BEGAN + 10))
    router.serve(100)
    page = router.page(BEGAN + 60)
    page["services"]["demo/chat"]["from"] = BEGAN + 50
    heard = look(heard, BEGAN + 60, r0=page)
    assert ("1 of 1 routers" in heard.trouble, total(heard)) == (True, (5, 5))


def test_after_the_clock_went_back_nobody_is_asked_about_a_moment_that_is_still_to_come() -> None:
    router, heard = Router(), Heard(BEGAN, BEGAN + 3600)
    heard = look(heard, BEGAN + 10, r0=router.page(BEGAN + 10))
    assert heard.anchor == BEGAN + 10


def test_a_few_looks_without_an_answer_do_not_make_hours_of_evidence_not_known() -> None:
    """One of 25, for half a day: joined windows would each hold one of them, and lack all."""
    one = Seen(shares={Signal.ERROR_RATE: Share(0, 1.0)})
    windows: tuple[Window, ...] = ()
    for number in range(4500):
        at, seen = BEGAN + 10 * number, Seen() if number % 25 == 24 else one
        windows = bounded((*windows, Window(at, at + 10, seen, seen)))
    assert len(windows) <= MOST_WINDOWS
    assert [one.start for one in windows] == sorted(one.start for one in windows)
    lacking = sum(one.base == Seen() for one in windows)
    assert 0 < lacking / len(windows) < 0.1
    assert total(Heard(BEGAN, BEGAN, windows={"p": windows}), "p") == (4320, 4320)


def test_where_revisions_have_other_pools_a_request_is_compared_by_its_shape() -> None:
    """The base serves long inputs in a pool that the candidate does not have."""
    router, heard = Router(), Heard(BEGAN, BEGAN)
    router.serve(10)
    page = router.page(BEGAN + 10)
    for row in page["services"]["demo/chat"]["rows"]:
        row["pool"] = "long" if row["revision"] == "a" else "default"
    assert len(look(heard, BEGAN + 10, r0=page).windows) == 2
    heard = look(heard, BEGAN + 10, r0=over_pools(page, "demo/chat"))
    assert total(heard, "any/ShortInputShortOutput") == (5, 5)
    assert over_pools(None, "demo/chat") is None
    assert over_pools({"services": 3}, "demo/chat") is None
