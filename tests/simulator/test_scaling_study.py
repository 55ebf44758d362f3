"""From a trace to figures: formats, settings from one half, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline_simulator.commands import app
from paceline_simulator.scaling.arrivals import Arrival, Trace, read, requests
from paceline_simulator.scaling.constructed import DAY, RULES, SECONDS, construct
from paceline_simulator.scaling.fleet import Conditions
from paceline_simulator.scaling.runs import Task, runner
from paceline_simulator.scaling.search import Knobs, Score, search
from paceline_simulator.scaling.setup import set_up, work_peaks
from paceline_simulator.scaling.study import WARM_UP, Found, interval, study, unreached, verdict
from paceline_simulator.trace import TraceError

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:05.9799600,3180,8"
)
MOONCAKE = (
    '{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}\n'
    '{"timestamp": 3000, "input_length": 600, "output_length": 6, "hash_ids": [7, 1]}\n'
)


def of(tmp_path: Path, text: str) -> tuple[Arrival, ...]:
    path = tmp_path / "trace.txt"
    path.write_bytes(text.encode())
    return read(path).arrivals


def test_three_forms_are_read(tmp_path: Path) -> None:
    assert of(tmp_path, AZURE) == (Arrival(0.0, 4808, 10), Arrival(pytest.approx(2.0), 3180, 8))
    assert of(tmp_path, MOONCAKE) == (Arrival(0.0, 1100, 5, (7, 8)), Arrival(2.0, 600, 6, (7,)))
    assert of(tmp_path, "arrival,input,output\n5,100,10\n4.5,200,0\n") == (Arrival(0.0, 200, 1), Arrival(0.5, 100, 10))
    assert len(of(tmp_path, "0,100,10\n1,100,10\n")) == 2


@pytest.mark.parametrize(
    "text",
    [
        "0,100,10\nsoon,1,1\n",
        '{"timestamp": 1}\n{"timestamp": 2}\n',
        "0,1\n1,1\n",
        "in,out,total,ratio\n1,2,3,0.5\n2,3,5,0.7\n",
        "",
    ],
)
def test_what_cannot_be_read_says_what_to_write(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="trace"):
        of(tmp_path, text)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nan,100,10", "line 4: 'nan' is no time in seconds"),
        ("inf,100,10", "'inf' is no time"),
        ("1_0,100,10", "'1_0' is no time"),
        ("9,-100,10", "'-100' is no number of tokens from 0 to 10,000,000"),
        ("9,100,1000000000", "'1000000000' is no number of tokens"),
        ("9,100.5,10", "'100.5' is no number"),
        ("9\t100\t10", "columns to the number of 1, by commas, and not 3"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_what_is_wrong_first(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(TraceError, match=re.escape(words)):
        of(tmp_path, f"# of last week\n0,100,10\n\n{line}\n2,100,10\n")


def test_a_typing_error_in_the_first_line_is_no_heading(tmp_path: Path) -> None:
    assert len(of(tmp_path, "at,in,out\n0,1,1\n1,2.0,1\n")) == 2
    with pytest.raises(TraceError, match=r"line 1: '1O\.5'"):
        of(tmp_path, "1O.5,100,10\n11,100,10\n12,100,10\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ttft", "0"], "ttft"),
        (["--tpot", "nan"], "--tpot"),
        (["--outage", "10-5"], "FROM-TO"),
        (["--outage", "5-nan"], "FROM-TO"),
        (["--failure", "-3"], "0 or later"),
        (["--failure", "nan"], "0 or later"),
        (["--start-up", "inf"], "start-up"),
        (["--hours", "1e7"], "hours"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_computed(options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["steps", "--policy", "static", *options])
    assert result.exit_code == 2
    assert words in result.output


def test_a_trace_without_requests_where_policies_are_judged_says_so(tmp_path: Path) -> None:
    path = tmp_path / "gap.csv"
    path.write_text("".join(f"{at},10,1\n" for at in (0, 1, 2, 100, 101)))
    result = CliRunner().invoke(app, [str(path), "--policy", "static", "--copies", "1", "-j", "1"])
    assert result.exit_code == 2
    assert "no request arrives from 13 s to 50 s" in result.output


@pytest.mark.parametrize("names", ['["a", "b"]', "[null]", "[1.5]", "[-5]"])
def test_blocks_that_are_no_numbers_are_refused_with_their_line(tmp_path: Path, names: str) -> None:
    line = f'{{"timestamp": 1, "input_length": 1100, "output_length": 5, "hash_ids": {names}}}\n'
    with pytest.raises(TraceError, match="line 1: its hash_ids are no list of whole numbers"):
        of(tmp_path, line * 2)


@pytest.mark.parametrize("command", [["steps"], ["tuning"], ["rollout"], ["routing"], ["validate", "8000"]], ids=str)
@pytest.mark.parametrize("taken", ["a file", "a folder in its place"])
def test_a_folder_that_cannot_be_written_to_is_said_before_anything_is_computed(
    tmp_path: Path, command: list[str], taken: str
) -> None:
    out = tmp_path / "out"
    if taken == "a file":
        out.write_text("")
    else:
        (out / "results.json").mkdir(parents=True)
    result = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert result.exit_code == 2
    assert "Invalid value for '--out'" in result.output


@pytest.mark.parametrize("lines", ["0,100,10\n0,100,10\n", "0,100,10\n999999,100,10\n"], ids=["an instant", "ms"])
def test_a_trace_of_which_too_little_is_left_says_so(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(lines)
    result = CliRunner().invoke(app, [str(path), "--hours", "0.1", "--policy", "static"])
    assert result.exit_code == 2
    assert "are arrivals in seconds?" in result.output


def test_the_beginning_of_a_trace_is_bounded_by_time_and_count() -> None:
    trace = Trace("t", tuple(Arrival(float(second), 10, 1) for second in range(100)))
    assert len(trace.first(10.0, 1000).arrivals) == 11
    assert len(trace.first(1000.0, 5).arrivals) == 5


def test_copies_share_no_blocks() -> None:
    trace = Trace("t", (Arrival(0.0, 1100, 5, (7, 8)), Arrival(1.0, 1100, 5, (7, 8))))
    made = requests(trace, 2, 0.5, seed=1)
    assert len(made) == 4
    assert len({request.blocks for request in made}) == 2
    assert [request.arrival for request in made] == sorted(request.arrival for request in made)


@pytest.mark.parametrize("name", [name for name in RULES if name != "day"])
def test_constructed_traces_are_the_same_every_time_and_need_a_fleet_at_their_peak(name: str) -> None:
    trace = construct(name)
    assert trace == construct(name)
    assert SECONDS - 60.0 < trace.length < SECONDS
    setup = set_up(trace, Conditions())
    peaks = work_peaks(trace, setup.rates)
    assert 8.0 < peaks[-1] < 15.0
    assert peaks[len(peaks) // 10] < 0.4 * peaks[-1], "and far less of one in quiet times"


def test_a_stretched_trace_goes_at_the_same_rates_for_longer() -> None:
    usual, long = construct("cycle"), construct("cycle", stretch=2.0, seconds=2.0 * SECONDS)
    assert long.name == "cycle x2"
    assert long.length == pytest.approx(2.0 * usual.length, rel=0.01)
    assert len(long.arrivals) == pytest.approx(2 * len(usual.arrivals), rel=0.05)


def test_the_search_takes_the_cheapest_that_reaches_the_goal() -> None:
    setup = set_up(construct("steps"), Conditions(), "8b", copies=1)

    def score(knobs: Knobs) -> Score:
        return Score(0.2 * knobs["replicas"], 2.0 * knobs["replicas"])

    knobs, found, tried = search("static", setup, 0.8, score)
    assert (knobs, found.gpu_hours, tried) == ({"replicas": 4.0}, 8.0, 5)
    knobs, found, _ = search("static", setup, 0.99, lambda knobs: Score(0.5, knobs["replicas"]))
    assert found.attainment == 0.5, "what comes nearest, where nothing reaches it"
    assert knobs == {"replicas": 1.0}, "and of those the cheapest"


def test_of_settings_that_cost_the_same_the_search_takes_those_that_attain_more() -> None:
    """What attains too little may cost as much: replicas for the queue are replicas too."""
    setup = set_up(construct("steps"), Conditions(), "8b", copies=1)

    def score(knobs: Knobs) -> Score:
        return Score(0.98 + 0.02 * knobs["coverage"], 10.0 + 0.02 * knobs["coverage"])

    knobs, found, _ = search("paceline", setup, 0.99, score)
    assert knobs["coverage"] == 0.65
    assert found.gpu_hours > 10.01


def test_the_search_looks_between_the_best_and_its_cheaper_neighbour() -> None:
    setup = set_up(construct("steps"), Conditions(), "8b", copies=1)
    knobs, _, _ = search("hpa", setup, 0.9, lambda knobs: Score(float(knobs["target"] <= 40.0), 100 / knobs["target"]))
    assert knobs["target"] == 40.0, "of 64, 48, 32 and then 40 and 44"


def found(policy: str, attainment: float, hours: float) -> Found:
    figures = {
        "slo_attainment": [attainment] * 3,
        "gpu_hours": [hours] * 3,
        "violations": [10_000 * (1 - attainment)] * 3,
        "flaps": [0.0] * 3,
    }
    return Found(policy, {}, Score(1.0, 1.0), 1, figures)


@pytest.mark.parametrize(
    ("ours", "peer", "met"),
    [
        ((0.995, 8.0), (0.995, 10.0), True),
        ((0.992, 8.0), (0.999, 10.0), True),  # both reach the goal
        ((0.98, 8.0), (0.995, 10.0), False),
        ((0.995, 9.0), (0.995, 10.0), False),
        ((0.98, 10.0), (0.95, 10.0), True),
        ((0.97, 10.0), (0.95, 10.0), False),
        ((0.98, 11.0), (0.95, 10.0), False),
    ],
)
def test_better_is_a_fifth_cheaper_or_half_the_violations(
    ours: tuple[float, float], peer: tuple[float, float], met: bool
) -> None:
    assert verdict(found("paceline", *ours), found("hpa", *peer), 0.99).startswith("met") is met


def test_a_saving_whose_interval_has_a_fifth_inside_is_not_known() -> None:
    ours, peer = found("paceline", 0.995, 8.0), found("hpa", 0.995, 10.0)
    ours.figures["gpu_hours"] = [7.0, 8.0, 9.0]
    assert verdict(ours, peer, 0.99).startswith("not known")
    ours.figures["gpu_hours"] = [9.5, 9.6, 9.7]
    assert verdict(ours, peer, 0.99).startswith("not met")


def test_half_the_violations_at_a_cost_that_may_be_equal_is_not_known() -> None:
    ours, peer = found("paceline", 0.999, 10.3), found("hpa", 0.9, 10.0)
    ours.figures["violations"], peer.figures["violations"] = [1.0] * 3, [700.0] * 3
    ours.figures["gpu_hours"] = [9.3, 10.3, 11.3]
    assert verdict(ours, peer, 0.99).startswith("not known")
    ours.figures["gpu_hours"] = [10.5, 10.6, 10.7]
    assert verdict(ours, peer, 0.99).startswith("not met")


def test_a_goal_that_no_settings_reached_is_said_with_why_where_that_is_known() -> None:
    reached, short = found("paceline", 0.995, 8.0), found("hpa", 0.5, 8.0)
    short.on_first_half = Score(0.5, 8.0)
    hour = set_up(construct("steps"), Conditions(), "8b", copies=1)
    assert unreached(hour, [reached], 0.99) == []
    [words] = unreached(hour, [reached, short], 0.99)
    assert words.startswith("hpa: none of 1 settings reached the goal")
    assert "50.00 %" in words
    moment = set_up(construct("steps").first(100.0, 1000), Conditions(start_up=90.0), "8b", copies=1)
    [_, why] = unreached(moment, [reached, short], 0.99)
    assert "a new replica takes 90 s to start" in why
    assert "--start-up" in why


def test_one_seed_has_no_interval() -> None:
    assert interval([1.0]) == float("inf")
    assert interval([1.0, 1.0]) == 0.0
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=1e-3)


def test_the_command_writes_results_and_a_plot(tmp_path: Path) -> None:
    trace = tmp_path / "small.csv"
    trace.write_text("".join(f"{second},2000,50\n" for second in range(600)))
    out = tmp_path / "out"
    arguments = [str(trace), "--policy", "paceline,hpa,static", "--seeds", "2", "--copies", "1", "--start-up", "20"]
    arguments += ["--limit", "500", "--exact", "--outage", "400-450", "--failure", "430"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    content = json.loads((out / "results.json").read_text())
    assert content["schema"] == "paceline.results/v1"
    assert all("goal_reached_in_search" in row["params"] for row in content["rows"])
    assert content["rows"][0]["params"]["requests"] == 500
    assert content["rows"][0]["params"]["failures_s"] == [430.0]
    rows = {(row["work"], row["system"], row["metric"]) for row in content["rows"]}
    metrics = ("slo_attainment", "gpu_hours", "violations", "flaps")
    assert rows == {("small", policy, metric) for policy in ("paceline", "hpa", "static") for metric in metrics}
    assert (out / "plot.svg").read_text().startswith("<svg")


def test_a_policy_that_does_not_exist_is_wrong_use(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["steps", "--policy", "paceline,vpa"])
    assert result.exit_code == 2
    assert "vpa" in result.output
    assert CliRunner().invoke(app, [str(tmp_path / "missing.csv")]).exit_code == 2
    result = CliRunner().invoke(app, ["trace.csv", "--stretch", "2"])
    assert result.exit_code == 2
    assert "--stretch" in result.output


def test_seeds_run_at_a_time_give_what_they_give_one_after_the_other() -> None:
    setup = set_up(construct("steps", seconds=600.0), Conditions(start_up=30.0), "8b", copies=1)
    task = Task("static", {"replicas": 2.0}, 100.0)
    with runner(setup, 1) as one_by_one, runner(setup, 2) as together:
        assert one_by_one(task, [0, 1, 2]) == together(task, [0, 1, 2])


def test_settings_are_judged_by_all_seeds() -> None:
    setup = set_up(construct("steps", seconds=900.0), Conditions(start_up=30.0), "8b", copies=1)
    one = study(setup, ["static"], 0.99, [0])[0]
    three = study(setup, ["static"], 0.99, [0, 1, 2])[0]
    half = setup.trace.length / 2.0
    task = Task("static", three.knobs, WARM_UP * half, half)
    with runner(setup, 1) as results:
        shares = [result.figures["slo_attainment"] for result in results(task, [0, 1, 2])]
    assert three.on_first_half.attainment == pytest.approx(sum(shares) / 3.0)
    assert one.figures["gpu_hours"] == three.figures["gpu_hours"][:1]


def test_a_day_is_quiet_at_night_and_no_two_are_alike() -> None:
    trace = construct("day", seconds=2.0 * DAY)
    hours = [0] * 48
    for one in trace.arrivals:
        hours[int(one.at // 3600.0)] += 1
    for day in (0, 24):
        assert max(hours[day : day + 6]) < min(hours[day + 9], hours[day + 15])
    assert sum(hours[:24]) != pytest.approx(sum(hours[24:]), rel=0.01)


def test_a_policy_that_is_under_the_goal_and_a_trace_too_short_for_a_start_are_marked() -> None:
    asked = ["cycle", "--hours", "0.02", "--policy", "static", "--seeds", "1", "--copies", "9", "-j", "1"]
    result = CliRunner().invoke(app, asked, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "a new replica takes 90 s to start" in result.output
    assert "under the goal" in result.output
