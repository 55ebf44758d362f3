from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline_crds import logs

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
Lines = Callable[[], list[str]]


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    found = logging.getLogger()
    before, level = found.handlers[:], found.level
    yield found
    found.handlers[:] = before
    found.setLevel(level)


def set_up(environ: dict[str, str], **options: Any) -> Lines:
    stream = io.StringIO()
    logs.set_up(logging.INFO, component="router", environ=environ, stream=stream, **options)
    return lambda: stream.getvalue().splitlines()


@pytest.mark.usefixtures("root")
def test_in_a_pod_each_record_is_one_line_of_json_with_the_revision_first() -> None:
    lines = set_up(POD, identity={"revision": "5d41402a", "pod": "chat-0"})
    logging.getLogger("some").info("two\nlines of %s", "text")
    (line,) = lines()
    found = json.loads(line)
    assert list(found) == ["revision", "pod", "component", "time", "level", "logger", "message"]
    assert (found["revision"], found["component"], found["message"]) == ("5d41402a", "router", "two\nlines of text")
    assert found["time"].endswith("Z")


@pytest.mark.usefixtures("root")
def test_a_decision_says_of_what_and_which() -> None:
    lines = set_up(POD)
    extra = logs.decision(service="demo/chat", reason="Queue", revision="chat-7f3c9", pool="default")
    logging.getLogger("some").info("two more", extra={**extra, "prompt": "never shown"})
    found = json.loads(lines()[0])
    assert list(found)[:4] == ["revision", "service", "pool", "decision"]
    assert "prompt" not in found


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("environ", "is_json"), [({}, False), (POD, True), ({**POD, "PACELINE_LOG_FORMAT": "text"}, False)]
)
def test_the_form_follows_where_it_runs_and_what_it_is_told(environ: dict[str, str], is_json: bool) -> None:
    lines = set_up(environ)
    logging.getLogger("some").info("words")
    assert lines()[0].startswith("{") is is_json
    assert "words" in lines()[0]


def test_another_form_is_refused_with_what_to_write(root: logging.Logger) -> None:
    with pytest.raises(ValueError, match="write json or text"):
        set_up({"PACELINE_LOG_FORMAT": "yaml"})


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("environ", [{}, POD])
def test_where_requests_are_handled_exceptions_are_told_without_their_messages(environ: dict[str, str]) -> None:
    lines = set_up(environ, quote=False)
    try:
        try:
            raise ValueError("canary-1")
        except ValueError as error:
            raise RuntimeError("canary-2") from error
    except RuntimeError:
        logging.getLogger("some").exception("a request failed")
    text = "\n".join(lines())
    assert "canary" not in text
    assert "RuntimeError" in text
    assert "ValueError" in text
    assert "test_logs.py" in text
    assert (len(lines()) == 1) is bool(environ)


@pytest.mark.usefixtures("root")
def test_elsewhere_exceptions_are_told_in_full() -> None:
    lines = set_up(POD)
    try:
        raise ValueError("the words")
    except ValueError:
        logging.getLogger("some").exception("it failed")
    assert "ValueError: the words" in json.loads(lines()[0])["exception"]
