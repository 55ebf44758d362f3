"""Whole replicas: front-end and engine process with a tiny model of random weights."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import typer
from typer.testing import CliRunner

from paceline_crds.conditions import EXIT_CONFIG, EXIT_MODEL_INVALID, EXIT_MODEL_NOT_FOUND
from paceline_runtime.server.commands import serve

MESSAGES: Any = [{"role": "user", "content": "the quick brown fox"}]
TINY_FLAGS = ("--served-name", "tiny", "--max-model-len", "256", "--kv-cache-memory", "4Mi")


def wait_until(check: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_canary_is_the_same_computed_and_cached_and_is_no_load(tiny_replica: Any) -> None:
    def totals(text: str) -> list[str]:
        names = ("vllm:generation_tokens_total", "paceline_prefill_tokens_computed_total", "vllm:prompt_tokens_total")
        return [line for line in text.splitlines() if line.startswith(names)]

    with httpx.Client(base_url=tiny_replica.url, timeout=60) as http:
        # A replica that has just started has no totals until its engine has told some.
        deadline = time.monotonic() + 60
        while len(before := totals(http.get("/metrics").text)) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        body = http.get("/v1/paceline/canary").json()
        assert body["cold"] == body["warm"]
        assert 0 < body["cachedTokens"] < body["promptTokens"]
        assert totals(http.get("/metrics").text) == before != []


def test_greedy_answers_are_the_same_alone_together_streamed_and_not(tiny_replica: Any) -> None:
    with tiny_replica.client() as client:

        def ask(n: int) -> str:
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": f"fox {n}"}], temperature=0, max_tokens=24
            )
            return answer.choices[0].message.content or ""

        def ask_streaming(n: int) -> str:
            stream = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": f"fox {n}"}],
                temperature=0,
                max_tokens=24,
                stream=True,
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

        alone = [ask(n) for n in range(6)]
        assert len(set(alone)) > 1
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            together = list(pool.map(ask, range(6)))
            streamed = list(pool.map(ask_streaming, range(6)))
        assert together == alone
        assert streamed == alone


def test_a_seed_reproduces_an_answer_and_its_absence_does_not(tiny_replica: Any) -> None:
    with tiny_replica.client() as client:

        def ask(seed: int | None) -> str:
            answer = client.completions.create(
                model="tiny",
                prompt="seven wizards",
                temperature=1,
                max_tokens=32,
                seed=seed,
                extra_body={"ignore_eos": True},
            )
            return answer.choices[0].text

        assert ask(0) == ask(0)
        assert ask(0) != ask(1)
        assert len({ask(None) for _ in range(4)}) > 1


def test_a_repeated_prompt_is_found_in_the_prefix_cache(tiny_replica: Any) -> None:
    with tiny_replica.client() as client:
        prompt = "one two three four five six seven eight nine ten " * 3
        usages = [client.completions.create(model="tiny", prompt=prompt, max_tokens=1).usage for _ in range(2)]
        cached = [
            usage.prompt_tokens_details.cached_tokens for usage in usages if usage and usage.prompt_tokens_details
        ]
        assert cached[0] == 0
        assert cached[1] > 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_blocks(tiny_replica: Any, stream: bool) -> None:
    body = {
        "model": "tiny", "prompt": "fox", "max_tokens": 250, "stream": stream, "ignore_eos": True, "temperature": 1
    }  # fmt: skip
    with (
        contextlib.suppress(httpx.ReadTimeout),
        httpx.stream("POST", f"{tiny_replica.url}/v1/completions", json=body, timeout=0.2) as response,
    ):
        next(response.iter_raw())  # and away
    counted = 'vllm:request_success_total{finished_reason="abort",model_name="tiny"} '
    wait_until(lambda: counted + "0.0" not in httpx.get(f"{tiny_replica.url}/metrics").text)
    wait_until(
        lambda: (
            (load := tiny_replica.load())["running"] == load["waiting"] == load["kv_percent"] == 0
            and load["decode_tokens"] == 0
        )
    )


def test_the_engine_refuses_a_prompt_that_can_never_fit_with_the_right_code(tiny_replica: Any) -> None:
    with tiny_replica.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "fox " * 400}])
    assert caught.value.code == "context_length_exceeded"


def test_the_answer_ends_where_the_context_does(tiny_replica: Any) -> None:
    with tiny_replica.client() as client:
        answer = client.completions.create(
            model="tiny", prompt=[5] * 250, max_tokens=100, extra_body={"ignore_eos": True}
        )
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.total_tokens == 256


def test_the_effective_configuration_says_where_each_value_came_from(tiny_replica: Any) -> None:
    body = httpx.get(f"{tiny_replica.url}/v1/paceline/config").json()
    parameters = body["parameters"]
    assert parameters["maxModelLen"] == {"value": 256, "origin": "spec"}
    assert parameters["maxNumSeqs"] == {"value": 8, "origin": "environment"}
    assert parameters["kvCacheMemory"] == {"value": "4Mi", "origin": "pool"}
    assert parameters["blockSize"]["origin"] == "default"
    assert parameters["numBlocks"]["origin"] == "measured"
    assert body["model_digest"].startswith("sha256:")
    assert body["pool_hash"] == "pool1234"
    assert f"pool_hash=pool1234 config_hash={body['config_hash']}" in tiny_replica.said()


def test_sigterm_finishes_a_stream_says_503_to_new_requests_and_exits_0(start_replica: Any, tiny_folder: Path) -> None:
    replica = start_replica(str(tiny_folder), *TINY_FLAGS)
    # One token at a time is too quick to catch: many answers at once keep the engine busy for a while.
    body = {"model": "tiny", "prompt": [[5]] * 24, "max_tokens": 250, "stream": True, "ignore_eos": True}
    text: list[str] = []
    began = threading.Event()

    def read() -> None:
        with httpx.stream("POST", f"{replica.url}/v1/completions", json=body, timeout=60) as response:
            for piece in response.iter_text():
                text.append(piece)
                began.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(60)
    replica.process.send_signal(signal.SIGTERM)
    wait_until(lambda: httpx.get(f"{replica.url}/health/ready").status_code == 503, 5)
    refused = httpx.post(f"{replica.url}/v1/completions", json={"model": "tiny", "prompt": "a"})
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["connection"] == "close"
    assert httpx.get(f"{replica.url}/health/live").status_code == 200
    reader.join(60)
    whole = "".join(text)
    assert whole.endswith("data: [DONE]\n\n")
    assert whole.count('"finish_reason":"length"') == 24
    assert replica.wait() == 0


def test_a_killed_engine_ends_streams_with_an_error_turns_liveness_red_and_ends_the_process(
    start_replica: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "termination"
    replica = start_replica(str(tiny_folder), *TINY_FLAGS, env={"PACELINE_TERMINATION_LOG": str(log)})
    body = {"model": "tiny", "prompt": [[5]] * 24, "max_tokens": 250, "stream": True, "ignore_eos": True}
    text = ""
    with httpx.stream("POST", f"{replica.url}/v1/completions", json=body, timeout=60) as response:
        for piece in response.iter_text():
            if not text:
                os.kill(replica.core_pid, signal.SIGKILL)
            text += piece
    assert text.rstrip().splitlines()[-1].startswith('data: {"error":{"message":"The engine stopped')
    assert "[DONE]" not in text
    assert httpx.get(f"{replica.url}/health/live").status_code == 503
    assert replica.wait() == 128 + signal.SIGKILL
    assert "engine core" in log.read_text()
    assert replica.said().splitlines()[-1] == f"paceline: {log.read_text()}"


def test_a_stuck_engine_turns_liveness_red_while_metrics_still_answer(tiny_replica: Any) -> None:
    wait_until(lambda: httpx.get(f"{tiny_replica.url}/health/live").status_code == 200)
    core = tiny_replica.core_pid
    os.kill(core, signal.SIGSTOP)
    try:
        wait_until(lambda: httpx.get(f"{tiny_replica.url}/health/live").status_code == 503)
        assert httpx.get(f"{tiny_replica.url}/health/ready").status_code == 503
        assert httpx.get(f"{tiny_replica.url}/metrics").status_code == 200
    finally:
        os.kill(core, signal.SIGCONT)
    wait_until(lambda: httpx.get(f"{tiny_replica.url}/health/live").status_code == 200)


def test_a_signal_while_the_model_loads_ends_it_at_once(start_replica: Any, tiny_folder: Path) -> None:
    replica = start_replica(str(tiny_folder), *TINY_FLAGS, until=None)
    wait_until(lambda: "listening" in replica.said())
    core = replica.core_pid
    replica.process.send_signal(signal.SIGINT)
    assert replica.wait(20) == 0
    assert not is_running(core)


def test_a_killed_front_end_takes_its_engine_with_it(start_replica: Any, tiny_folder: Path) -> None:
    replica = start_replica(str(tiny_folder), *TINY_FLAGS, until=None)
    wait_until(lambda: "listening" in replica.said())
    core = replica.core_pid
    wait_until(lambda: "loading" in replica.said())  # said by the core, once it has tied itself to its parent
    replica.process.kill()
    wait_until(lambda: not is_running(core), 10)


def test_a_drain_is_bounded_and_what_it_cuts_off_is_told(start_replica: Any, tiny_folder: Path) -> None:
    replica = start_replica(str(tiny_folder), *TINY_FLAGS, "--drain-timeout", "100ms")
    body = {"model": "tiny", "prompt": [[5]] * 32, "max_tokens": 250, "stream": True, "ignore_eos": True}
    text = ""
    with httpx.stream("POST", f"{replica.url}/v1/completions", json=body, timeout=60) as response:
        for piece in response.iter_text():
            if not text:
                replica.process.send_signal(signal.SIGINT)  # which lingers for nobody
            text += piece
    assert text.rstrip().splitlines()[-1].startswith('data: {"error":{"message":"The replica was stopped')
    assert "[DONE]" not in text
    assert replica.wait() == 0


def test_a_model_that_is_not_there_is_the_last_word_and_the_exit_code(start_replica: Any, tmp_path: Path) -> None:
    log = tmp_path / "termination"
    missing = start_replica("package://no-such-distribution", until=None, env={"PACELINE_TERMINATION_LOG": str(log)})
    assert missing.wait(60) == EXIT_MODEL_NOT_FOUND
    assert "no-such-distribution" in log.read_text()
    assert missing.said().splitlines()[-1] == f"paceline: {log.read_text()}"


def test_what_the_engine_says_when_it_cannot_start_is_the_last_word(
    start_replica: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "termination"
    replica = start_replica(
        str(tiny_folder),
        "--max-model-len",
        "256",
        "--kv-cache-memory",
        "8Ki",
        until=None,
        env={"PACELINE_TERMINATION_LOG": str(log)},
    )
    assert replica.wait(120) == EXIT_CONFIG
    assert "kvCache.memory" in log.read_text()
    assert replica.said().splitlines()[-1] == f"paceline: {log.read_text()}"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("{tiny}", "--max-model-len", "5"), EXIT_CONFIG, "greater than or equal to 16"),
        (("{empty}",), EXIT_MODEL_INVALID, "config.json"),
        (("--config", "{empty}/none.json"), EXIT_CONFIG, "none.json"),
        ((), 2, "SOURCE"),
        (("{tiny}", "--drain-timeout", "soon"), 2, "90s"),
        (("{tiny}", "--port", "70000"), 2, "--port"),
        (("{tiny}", "--max-body-size", "0"), 2, "--max-body-size"),
        (("{tiny}", "--liveness-timeout", "0s"), 2, "--liveness-timeout"),
        (("{tiny}", "--served-name", "a\nb"), EXIT_CONFIG, "'a\\nb'"),
        (("{tiny}", "--log-level", "loud"), 2, "warning"),
        (("{tiny}", "--host", "203.0.113.7"), EXIT_CONFIG, "--host"),
    ],
)
def test_wrong_use_is_told_in_words(
    tiny_folder: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    app = typer.Typer()
    app.command()(serve)
    filled = [argument.format(tiny=tiny_folder, empty=tmp_path) for argument in arguments]
    result = CliRunner().invoke(app, ["--port", "0", *filled])
    assert result.exit_code == code
    assert words in re.sub(r"\s+", " ", result.output)


def test_the_command_is_known_without_loading_anything_heavy() -> None:
    script = (
        "import sys; from paceline_runtime.server.commands import serve; "
        "print([name for name in ('torch', 'fastapi', 'tokenizers', 'uvicorn', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_front_end_never_loads_torch() -> None:
    script = "import sys, paceline_runtime.server.main; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "False"


def test_several_answers_from_one_prompt_differ_and_a_seed_repeats_them(tiny_replica: Any) -> None:
    """C147."""
    with tiny_replica.client() as client:

        def ask(seed: int | None) -> list[str]:
            answer = client.completions.create(
                model="tiny", prompt="seven wizards", n=4, temperature=1, max_tokens=16, seed=seed,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 64
            return [choice.text for choice in answer.choices]

        assert len(set(ask(7))) == 4
        assert ask(7) == ask(7)
        assert ask(0) == ask(0) != ask(7)
        assert ask(None) != ask(None)


def test_a_cached_prompt_has_its_log_probabilities_too(tiny_replica: Any) -> None:
    """C143, C160: with and without a chunk's border in it, the second time as the first."""
    prompt = "one two three four five six seven eight nine ten " * 4

    def ask() -> Any:
        body = {"model": "tiny", "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        return httpx.post(f"{tiny_replica.url}/v1/completions", json=body, timeout=60).json()

    first, second = ask(), ask()
    columns = first["choices"][0]["logprobs"]
    assert len(columns["tokens"]) == first["usage"]["prompt_tokens"] + 1
    assert columns["token_logprobs"][0] is None
    assert all(value <= 0 for value in columns["token_logprobs"][1:])
    assert second["choices"][0]["logprobs"] == columns
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_forbidden_and_favoured_tokens_are_seen_in_the_answer(tiny_replica: Any) -> None:
    with tiny_replica.client() as client:

        def ask(**more: Any) -> list[int]:
            answer = client.completions.create(
                model="tiny", prompt="fox", temperature=0, max_tokens=8,
                extra_body={"ignore_eos": True, "return_token_ids": True, **more},
            )  # fmt: skip
            return list(answer.choices[0].model_extra["token_ids"])  # type: ignore[index]

        plain = ask()
        assert plain[0] not in ask(logit_bias={str(plain[0]): -100})
        assert set(ask(allowed_token_ids=[10, 11])) <= {10, 11}
        assert ask(logit_bias={"12": 100}) == [12] * 8


def test_a_stuck_engine_loses_no_request_and_an_idle_one_is_found_out_too(tiny_replica: Any) -> None:
    core = tiny_replica.core_pid
    asked: list[int] = []

    def ask() -> None:
        body = {"model": "tiny", "prompt": "fox", "max_tokens": 4}
        asked.append(httpx.post(f"{tiny_replica.url}/v1/completions", json=body, timeout=60).status_code)

    os.kill(core, signal.SIGSTOP)
    try:
        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: httpx.get(f"{tiny_replica.url}/health/live").status_code == 503)
        assert httpx.get(f"{tiny_replica.url}/health/ready").status_code == 503
        assert "vllm:num_requests_running" in httpx.get(f"{tiny_replica.url}/metrics").text
        assert tiny_replica.load()["waiting"] == 1
    finally:
        os.kill(core, signal.SIGCONT)
    asking.join(60)
    assert asked == [200]
    wait_until(lambda: httpx.get(f"{tiny_replica.url}/health/live").status_code == 200)


def test_each_step_is_written_where_a_trace_was_asked_for(
    start_replica: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "steps.json"
    replica = start_replica(str(tiny_folder), *TINY_FLAGS, "--trace", str(trace))
    body = {"model": "tiny", "prompt": "fox", "n": 2, "max_tokens": 8, "ignore_eos": True}
    assert httpx.post(f"{replica.url}/v1/completions", json=body, timeout=60).status_code == 200
    replica.process.send_signal(signal.SIGINT)
    assert replica.wait() == 0
    # The format leaves the list open, so that a trace is readable whenever its process ends.
    events = json.loads(trace.read_text().rstrip("],\n") + "]")
    steps = [event for event in events if event["name"].startswith("step ")]
    assert max(step["args"]["sequences"] for step in steps) == 2


def test_a_small_replica_says_why_requests_wait_and_why_one_was_refused(start_replica: Any, tiny_folder: Path) -> None:
    replica = start_replica(str(tiny_folder), *TINY_FLAGS, "--max-num-seqs", "1", "--max-queued-requests", "2")
    body = {"model": "tiny", "max_tokens": 200, "ignore_eos": True, "return_token_ids": True}

    def ask(name: str, prompts: list[list[int]]) -> httpx.Response:
        headers = {"x-paceline-request-id": name, "x-paceline-tenant": "blue"}
        return httpx.post(
            f"{replica.url}/v1/completions", json={**body, "prompt": prompts}, headers=headers, timeout=60
        )

    def story(name: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{replica.url}/v1/paceline/requests/{name}").json()
        return found

    assert ask("waits", [[5], [6]]).status_code == 200
    waited = [event for event in story("waits")["events"] if event["kind"] == "waits"]
    assert waited
    assert waited[0]["choice"] == 1
    assert waited[0]["message"]
    refused = ask("refused", [[5]] * 12)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full"
    assert story("refused")["state"] == "refused"
    assert story("refused")["summary"] == "Refused: " + refused.json()["error"]["message"]
    metrics = httpx.get(f"{replica.url}/metrics").text
    assert 'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 1.0' in metrics
    wait_until(lambda: replica.load()["running"] == replica.load()["waiting"] == 0)
