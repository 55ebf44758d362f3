"""The recorder: pairs of routers in, comparisons for the verdict out."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from paceline_shadow_traffic.answers import Answer
from paceline_shadow_traffic.comparisons_page import PATH, window
from paceline_shadow_traffic.evidence import Signal
from paceline_shadow_traffic.pages import PageError
from paceline_shadow_traffic.pair import PATH as PAIRS
from paceline_shadow_traffic.pair import Heard, Pair, batch
from paceline_shadow_traffic.recorder import recorder as recorder_module
from paceline_shadow_traffic.recorder import replaying
from paceline_shadow_traffic.recorder.app import make_app, token_of
from paceline_shadow_traffic.recorder.plugins import OFF_AFTER, Plugin
from paceline_shadow_traffic.recorder.recorder import Recorder
from paceline_shadow_traffic.recorder.replaying import in_share
from paceline_shadow_traffic.recorder.store import Limits, Store
from paceline_shadow_traffic.share import Share

TOKEN = {"authorization": "Bearer secret"}
PLACE = "default/ShortInputShortOutput"


def until(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def encoded(*pairs: Pair) -> bytes:
    return batch([msgspec.msgpack.encode(one) for one in pairs])


StartRecorder = Callable[..., tuple[Recorder, TestClient]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartRecorder]:
    """A recorder in this process, and a client of its API."""
    started: list[Recorder] = []

    def make(limits: Limits | None = None, **options: Any) -> tuple[Recorder, TestClient]:
        recorder = Recorder(Store(tmp_path / f"s{len(started)}", limits or Limits()), **options)
        recorder.start()
        started.append(recorder)
        return recorder, TestClient(make_app(recorder, lambda: "secret"), headers=TOKEN)

    yield make
    for recorder in started:
        recorder.stop()


def tell(recorder: Recorder, client: TestClient, *pairs: Pair) -> None:
    """Post pairs and wait until they are compared."""
    assert client.post(PAIRS, content=encoded(*pairs)).status_code == 202
    until(lambda: recorder.waiting == 0)


def test_pairs_become_counts_by_place_that_the_verdict_reads(start: StartRecorder, told: Any) -> None:
    recorder, client = start()
    greedy = {"temperature": 0}
    wants = {"temperature": 0, "response_format": {"type": "json_object"}}
    tell(
        recorder,
        client,
        told.pair(1, told.streamed("one ", "two"), told.streamed("one ", "two"), body=greedy),
        told.pair(2, told.whole("one two"), told.whole("one three", reason="length"), body=greedy),
        told.pair(3, told.whole("{}"), told.whole("{"), body=wants),
        told.pair(4, told.whole("yes"), told.whole("I'm sorry, but I can't help with that."), body={}),
        told.pair(5, told.whole("yes"), Heard(0, "timeout", False, [], 1.0), body=greedy),
        told.pair(6, told.whole("yes"), Heard(500, "", False, [(0.1, b"{}")], 1.0), body=greedy),
        told.pair(7, told.whole("yes"), told.whole("yes"), shape="VeryLong", body=greedy),
        told.pair(8, told.whole("yes"), told.whole("yes"), body={"n": 3}),
    )
    page = client.get(PATH, params={"since": 0, "until": 2000}).json()
    rows = {row["shape"]: row for row in page["services"]["demo/chat"]["rows"]}
    assert rows.keys() == {"ShortInputShortOutput", "VeryLong"}
    row = rows["ShortInputShortOutput"]
    assert row["pairs"] == 4
    assert row["failed"] == {"timeout": 1, "status 5xx": 1}
    seen = window(page, "demo/chat", "old", "new")[PLACE]
    assert (seen.start, seen.end) == (0.0, 2000.0)
    assert seen.candidate.shares[Signal.OUTPUT_DIFFERENCE] == Share(2.0, 3.0)
    assert seen.candidate.shares[Signal.REFUSALS] == Share(1.0, 4.0)
    assert seen.candidate.shares[Signal.JSON_INVALID] == Share(1.0, 1.0)
    assert seen.base.shares[Signal.JSON_INVALID] == Share(0.0, 1.0)
    assert seen.candidate.shares[Signal.TRUNCATED] == Share(1.0, 4.0)
    assert seen.candidate.shares[Signal.ERROR_RATE] == Share(2.0, 6.0)
    assert seen.base.shares[Signal.ERROR_RATE] == Share(0.0, 6.0)
    assert seen.base.shares[Signal.OUTPUT_DIFFERENCE] == Share(0.0, 0.0)  # nothing was replayed: not known
    assert row["ttft"] == {"base": row["ttft"]["candidate"], "candidate": row["ttft"]["base"]}
    assert sum(count for _, count in row["ttft"]["base"]) == 1
    assert recorder.received["not_comparable"] == 1
    assert window(page, "demo/chat", "older", "new") == {} == window(None, "demo/chat", "old", "new")


@pytest.mark.parametrize(
    "change",
    [
        {"scale": "other"},
        {"since": "x"},
        {"services": []},
        {"services": {"demo/chat": {"rows": [{"pool": "p", "shape": "s", "base": "old", "candidate": "new"}]}}},
    ],
)
def test_a_page_of_another_form_is_no_evidence(start: StartRecorder, change: dict[str, Any]) -> None:
    _, client = start()
    page = client.get(PATH, params={"since": 0}).json()
    with pytest.raises(PageError):
        window({**page, **change}, "demo/chat", "old", "new")


def test_a_window_has_only_what_was_copied_in_it_and_each_pair_once(start: StartRecorder, told: Any) -> None:
    recorder, client = start()
    for _ in range(2):
        tell(recorder, client, *(told.pair(n, told.whole("a"), told.whole("a"), at=float(n)) for n in range(10)))
    for since, end, expected in ((0, 10, 10), (3, 5, 2), (10, 20, 0)):
        rows = client.get(PATH, params={"since": since, "until": end}).json()["services"]
        assert sum(row["pairs"] for service in rows.values() for row in service["rows"]) == expected
    assert recorder.received["known"] == 10


def test_nobody_without_the_token_writes_or_reads(start: StartRecorder, told: Any, tmp_path: Path) -> None:
    _, client = start()
    for headers in ({"authorization": ""}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
        assert client.post(PAIRS, content=encoded(), headers=headers).status_code == 401
        assert client.get(PATH, headers=headers).status_code == 401
        assert client.get(f"{PATH}/req-1", headers=headers).status_code == 401
    assert client.get("/health/ready", headers={"authorization": ""}).status_code == 200
    file = tmp_path / "token"
    current = token_of(file)
    assert current() == ""
    file.write_text("one\n")
    assert current() == "one"
    file.write_text("two\n")
    assert current() == "two"


@pytest.mark.parametrize("body", [b"", b"no msgpack", b"\x93\x01\x02\x03", b'{"a": 1}'])
def test_what_is_no_batch_is_refused_in_words(start: StartRecorder, body: bytes) -> None:
    _, client = start()
    answer = client.post(PAIRS, content=body)
    assert answer.status_code == 400
    assert "release" in answer.json()["detail"]


def test_more_than_there_is_room_for_is_refused_whole(
    start: StartRecorder, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_WAITING_PAIRS", 3)
    recorder, client = start()
    answer = client.post(PAIRS, content=encoded(*(told.pair(n, told.whole("a"), told.whole("a")) for n in range(4))))
    assert answer.status_code == 503
    assert recorder.received["dropped"] == 4
    assert recorder.store.size()[0] == 0


# Replays


@pytest.fixture
def replica() -> Iterator[Any]:
    """An engine that gives its answers in turn, and keeps what it was asked."""
    made: list[socketserver.TCPServer] = []

    def serve(*answers: str) -> Any:
        asked: list[tuple[dict[str, str], dict[str, Any]]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                asked.append(({name.lower(): value for name, value in self.headers.items()}, body))
                text = answers[(len(asked) - 1) % len(answers)]
                choice = {"message": {"content": text}, "finish_reason": "stop"}
                raw = json.dumps({"choices": [choice]}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                pass

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.asked = asked  # type: ignore[attr-defined]
        made.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    yield serve
    for server in made:
        server.shutdown()
        server.server_close()


def address(server: Any) -> str:
    return f"127.0.0.1:{server.server_address[1]}"


def test_a_sampled_request_is_asked_again_greedy_of_both_and_of_the_base_twice(
    start: StartRecorder, told: Any, replica: Any
) -> None:
    base, candidate = replica("same", "not the same"), replica("same")
    recorder, client = start(replay_percent=100.0)
    body = {"temperature": 0.9, "seed": 3, "stream": True, "stream_options": {"include_usage": True}, "top_p": 0.5}
    one = told.pair(
        1,
        told.streamed("what"),
        told.streamed("ever"),
        body=body,
        replicas=(address(base), address(candidate)),
        served=("m", "other"),
        tenant="acme",
    )
    tell(recorder, client, one)
    until(lambda: recorder.replayer.outcomes["replayed"] == 1)
    seen = window(client.get(PATH, params={"since": 0, "until": 2000}).json(), "demo/chat", "old", "new")[PLACE]
    assert seen.candidate.shares[Signal.OUTPUT_DIFFERENCE] == Share(0.0, 1.0)
    assert seen.base.shares[Signal.OUTPUT_DIFFERENCE] == Share(1.0, 1.0)
    assert len(base.asked) == 2
    [(headers, replayed)] = candidate.asked
    assert headers["x-paceline-shadow"] == "1"
    assert headers["x-paceline-tenant"] == "acme"
    assert headers["x-paceline-priority"] == "low"
    assert "authorization" not in headers
    assert replayed["model"] == "other"
    assert replayed["temperature"] == 0
    assert not {"stream", "stream_options", "seed", "top_p"} & replayed.keys()


def test_one_version_beside_itself_differs_as_much_as_its_noise(start: StartRecorder, told: Any, replica: Any) -> None:
    """The same engine on both sides, whose greedy answers differ now and then."""
    engine = replica("a", "a", "b")
    recorder, client = start(replay_percent=100.0)
    pairs = [
        told.pair(
            n,
            told.whole("a" if n % 3 else "b"),
            told.whole("a" if n % 3 != 1 else "b"),
            body={"temperature": 0},
            replicas=(address(engine), address(engine)),
        )
        for n in range(12)
    ]
    for one in pairs:
        tell(recorder, client, one)
        until(lambda: recorder.replayer._waiting.empty())
    until(lambda: sum(recorder.replayer.outcomes.values()) == 12)
    assert len(engine.asked) == 12  # greedy already: only the base is asked once more
    seen = window(client.get(PATH, params={"since": 0, "until": 2000}).json(), "demo/chat", "old", "new")[PLACE]
    assert seen.candidate.shares[Signal.OUTPUT_DIFFERENCE] == Share(8.0, 12.0)
    assert seen.base.shares[Signal.OUTPUT_DIFFERENCE].of == 12.0
    assert 0.0 < seen.base.shares[Signal.OUTPUT_DIFFERENCE].hits < 12.0


def test_a_replica_that_is_gone_makes_no_replay_and_no_fault(start: StartRecorder, told: Any) -> None:
    recorder, client = start(replay_percent=100.0)
    tell(recorder, client, told.pair(1, told.whole("a"), told.whole("b"), body={}))
    until(lambda: recorder.replayer.outcomes["base_failed"] == 1)
    assert recorder.received["kept"] == 1


def test_of_each_rollout_the_first_requests_are_replayed_whatever_the_share(
    start: StartRecorder, told: Any, replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate on differences needs some hundred of them; a twentieth of the pairs would take hours."""
    monkeypatch.setattr(replaying, "FIRST", 3)
    engine = replica("a")
    recorder, client = start(replay_percent=1e-6)

    same, replicas = told.whole("a"), (address(engine), address(engine))

    def take(number: int, **more: Any) -> None:
        tell(recorder, client, told.pair(number, same, same, body={"temperature": 0}, replicas=replicas, **more))
        until(lambda: recorder.received["kept"] == number)

    for number in (1, 2, 3):
        take(number)
        until(lambda replayed=number: recorder.replayer.outcomes["replayed"] == replayed)
    take(4)
    take(5, service="demo/other")
    until(lambda: len(recorder.store.of_request("req-5")) == 2)
    assert len(recorder.store.of_request("req-4")) == 1, "they are asked in the order of their coming"
    assert recorder.replayer.outcomes["replayed"] == 4


def test_the_share_of_replays_is_kept() -> None:
    ids = [f"req-{number:x}" for number in range(20_000)]
    for percent in (0.0, 5.0, 100.0):
        share = 100.0 * sum(in_share(one, percent) for one in ids) / len(ids)
        assert abs(share - percent) < 0.5


# Users' own comparisons

PLUGIN = """
import os, sys, time

def good(request, base, candidate):
    print("CANARY", base["text"]); print("CANARY", base["text"], file=sys.stderr)
    return abs(len(base["text"]) - len(candidate["text"])) / 10

def nothing(request, base, candidate):
    return None

def wrong(request, base, candidate):
    return 7

def raises(request, base, candidate):
    raise ValueError(base["text"])

def hangs(request, base, candidate):
    time.sleep(3600)

def dies(request, base, candidate):
    os._exit(1)

def forks(request, base, candidate):
    child = os.fork()
    if child:
        open(request["pid"], "w").write(str(child))
        if request["returns"]:
            return None
    time.sleep(3600)

def prints(request, base, candidate):
    for _ in range(64):
        print("x" * (1 << 20), flush=True)
    return 0.5

def trickles(request, base, candidate):
    import gc, socket
    [ours] = [one for one in gc.get_objects() if isinstance(one, socket.socket)]
    ours.sendall((1 << 20).to_bytes(4, "big"))
    while True:
        ours.sendall(b" ")
        time.sleep(0.05)
"""
NAMES = ("good", "nothing", "wrong", "raises", "hangs", "dies", "forks", "prints", "trickles")


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with users' comparisons in it, as pip would install them."""
    folder = tmp_path / "site"
    info = folder / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "mine.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    lines = "".join(f"{name} = mine:{name}\n" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[paceline.comparisons]\n{lines}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return folder


@pytest.mark.usefixtures("plugins")
def test_a_users_comparison_scores_pairs(start: StartRecorder, told: Any) -> None:
    plugin = Plugin("good", timeout=30.0)
    recorder, client = start(plugins=[plugin])
    tell(
        recorder,
        client,
        told.pair(1, told.whole("four"), told.whole("fo")),
        told.pair(2, told.whole("a"), told.whole("b")),
    )
    [row] = client.get(PATH, params={"since": 0, "until": 2000}).json()["services"]["demo/chat"]["rows"]
    assert row["scores"] == {"good": [0.2, 2.0]}
    assert plugin.outcomes["scored"] == 2
    assert 'paceline_recorder_plugin_scores_total{comparison="good",outcome="scored"} 2' in client.get("/metrics").text


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("nothing", "none"),
        ("wrong", "failed"),
        ("raises", "failed"),
        ("hangs", "timeout"),
        ("trickles", "timeout"),
        ("dies", "failed"),
    ],
)
def test_a_users_comparison_that_does_not_score_costs_its_score_only(
    start: StartRecorder, told: Any, name: str, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Plugin(name, timeout=0.5 if outcome == "timeout" else 30.0)
    recorder, client = start(plugins=[plugin])
    for number in range(2):
        tell(recorder, client, told.pair(number, told.whole("CANARY"), told.whole("b")))
    assert recorder.received["kept"] == 2
    assert plugin.outcomes[outcome] == 2
    [row] = client.get(PATH, params={"since": 0, "until": 2000}).json()["services"]["demo/chat"]["rows"]
    assert row["scores"] == {}
    assert "CANARY" not in caplog.text


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("recorder_is_gone", [False, True])
def test_what_a_users_comparison_has_started_ends_with_it(tmp_path: Path, recorder_is_gone: bool) -> None:
    plugin, file = Plugin("forks", timeout=30.0 if recorder_is_gone else 5.0), tmp_path / "child"
    assert plugin.score({"pid": str(file), "returns": recorder_is_gone}, Answer("a"), Answer("b")) is None
    assert plugin.outcomes["none" if recorder_is_gone else "timeout"] == 1
    if recorder_is_gone:
        assert plugin._socket is not None
        plugin._socket.close()  # all that is left of a process that was killed
    status = Path("/proc") / file.read_text() / "stat"

    def ended() -> bool:
        try:
            return status.read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    deadline = time.monotonic() + 30.0
    while not ended():
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.05)


@pytest.mark.usefixtures("plugins")
def test_a_users_comparison_may_print_what_it_likes() -> None:
    plugin = Plugin("prints", timeout=30.0)
    assert plugin.score({}, Answer("a"), Answer("b")) == 0.5
    plugin.close()


@pytest.mark.usefixtures("plugins")
def test_a_users_comparison_that_keeps_failing_is_left_alone_for_a_while() -> None:
    clock = [0.0]
    plugin = Plugin("raises", timeout=30.0, now=lambda: clock[0])
    for _ in range(OFF_AFTER + 2):
        assert plugin.score({}, Answer("a"), Answer("b")) is None
    assert (plugin.outcomes["failed"], plugin.outcomes["off"]) == (OFF_AFTER, 2)
    clock[0] = 61.0
    plugin.score({}, Answer("a"), Answer("b"))
    assert plugin.outcomes["failed"] == OFF_AFTER + 1
    plugin.close()


# The process


@pytest.mark.parametrize("hours", [0.0, 1.0])
def test_no_word_of_a_prompt_or_answer_and_no_token_is_in_logs_and_in_files_only_on_request(
    tmp_path: Path, told: Any, hours: float, plugins: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    log = (tmp_path / "log").open("w+b")
    token = {"authorization": "Bearer CANARY-token"}
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "paceline_shadow_traffic",
                "--data",
                str(data),
                "--host",
                "127.0.0.1",
                "--port",
                "0",
            ),
            *("--log-level", "debug", "--replay-percent", "100", "--keep-texts-hours", str(hours)),
            *("--plugin-timeout", "2"),
        ],
        env={**os.environ, "PACELINE_ADMIN_TOKEN": "CANARY-token", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=log,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().split()[-1]
        broken = '{"CANARY": '
        pairs = [
            told.pair(1, told.streamed("CANARY"), told.whole("CANARY 2"), body={"messages": "CANARY"}),
            told.pair(
                2,
                told.whole(broken),
                told.whole(broken),
                body={
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"schema": {"type": "CANARY", "$ref": "http://CANARY"}},
                    }
                },
            ),
            told.pair(3, told.whole("a"), told.whole("b"), request=b'{"messages": "CANARY'),
            told.pair(4, told.whole("CANARY"), Heard(500, "", False, [(0.1, b"CANARY")], 0.2)),
        ]
        for body in (encoded(*pairs), b"CANARY", encoded(*pairs)[:-10]):
            request = urllib.request.Request(url + PAIRS, body, token)
            if body.endswith(b"CANARY") or len(body) < len(encoded(*pairs)):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(request, timeout=30)
                assert refused.value.code == 400
                assert b"CANARY" not in refused.value.read()
            else:
                urllib.request.urlopen(request, timeout=30).close()

        for path, given in (
            (f"{PATH}/CANARY-id", token),
            (f"{PATH}?service=CANARY", {"authorization": "Bearer CANARY"}),
        ):
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(urllib.request.Request(url + path, headers=given), timeout=30)

        def metrics() -> str:
            with urllib.request.urlopen(url + "/metrics", timeout=30) as answer:
                return str(answer.read().decode())

        until(lambda: "paceline_recorder_pairs_waiting 0" in metrics())
        assert 'paceline_recorder_pairs_total{outcome="kept"} 3' in metrics()
        with urllib.request.urlopen(urllib.request.Request(f"{url}{PATH}/req-1", headers=token), timeout=30) as answer:
            [shown] = json.loads(answer.read())["records"]
        assert ("CANARY" in json.dumps(shown)) == bool(hours)
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}{PATH}?since=0", headers=token), timeout=30
        ) as answer:
            assert b"CANARY" not in answer.read()
    finally:
        process.terminate()
        process.wait(60)
    assert process.stdout.read().count(b"CANARY") == 0
    log.seek(0)
    assert b"CANARY" not in log.read()
    log.close()
    assert any(b"CANARY" in path.read_bytes() for path in data.iterdir()) == bool(hours)
