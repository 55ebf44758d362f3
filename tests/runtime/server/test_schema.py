"""`/openapi.json` says the truth, and no body makes the server fail: schemathesis, and bodies that are barely JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from paceline_crds.tuning import TUNING_PATH
from paceline_runtime.server.other_fields import LABELS, NEUTRAL
from paceline_runtime.server.request_models import ChatRequest, CompletionRequest

MODEL = "org/tiny"
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
QUICK = settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def try_all(url: str, mode: GenerationMode, more_checks: list[Any]) -> set[tuple[str, int]]:
    """Sends generated requests to every operation; which paths answered with which status."""
    seen: set[tuple[str, int]] = set()
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 14
    for operation in operations:
        if mode.is_negative and operation.method == "get":
            continue  # they take nothing that could be wrong

        @QUICK
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case: Any) -> None:
            response = case.call(timeout=20)
            case.validate_response(response, checks=CHECKS + more_checks)
            seen.add((case.path, response.status_code))

        run()
    return seen


async def test_what_the_schema_allows_is_answered_as_it_says(front_end: Any) -> None:
    async with front_end() as front:
        seen = await asyncio.to_thread(try_all, front.url, GenerationMode.POSITIVE, [])
        # Nobody guesses the hash of a replica's pool.
        assert {one for one in seen if one[1] not in (200, 400, 404)} <= {(TUNING_PATH, 409)}
        taken = {path for path, status in seen if status == 200}
        # Nobody guesses the name of a model or the id of a request.
        assert {path for path, _ in seen} - taken == {"/v1/models/{model_id}", "/v1/paceline/requests/{request_id}"}


async def test_what_the_schema_forbids_is_refused(front_end: Any) -> None:
    async with front_end() as front:
        seen = await asyncio.to_thread(try_all, front.url, GenerationMode.NEGATIVE, [checks.negative_data_rejection])
        assert {one for one in seen if one[1] not in (400, 404, 415)} <= {(TUNING_PATH, 409)}


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)


async def test_any_value_of_any_field_is_taken_or_refused_with_its_path(front_end: Any) -> None:
    fields = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *LABELS, *NEUTRAL})
    loop = asyncio.get_running_loop()
    async with front_end() as front:

        @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
        @given(given=st.dictionaries(st.sampled_from(fields), VALUES, min_size=1, max_size=2), chat=st.booleans())
        def run(given: dict[str, Any], chat: bool) -> None:
            base = {"messages": [{"role": "user", "content": "a"}]} if chat else {"prompt": "a"}
            path = "/v1/chat/completions" if chat else "/v1/completions"
            asked = front.http.post(path, json={"model": MODEL, "max_tokens": 2, **base, **given})
            response = asyncio.run_coroutine_threadsafe(asked, loop).result(20)
            assert response.status_code in (200, 400, 404), response.text
            if response.status_code == 400:
                error = response.json()["error"]
                assert error["param"] is None or error["param"].split(".")[0] in (
                    *given,
                    "messages",
                    "prompt",
                    "max_tokens",
                )

        await asyncio.to_thread(run)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"org/tiny","messages":[{"role":"user","content":"a"}],"n":2,"n":1}',
        b'{"model":"org/tiny","prompt":"a","metadata":' + b'{"a":' * 60 + b"1" + b"}" * 60 + b"}",
        b'{"model":"org/tiny","messages":[{"role":"user","content":"\\u0000\\u202e\\ufeff"}]}',
    ],
)
async def test_unusual_json_is_json(front_end: Any, body: bytes) -> None:
    async with front_end() as front:
        path = "/v1/completions" if b"prompt" in body else "/v1/chat/completions"
        response = await front.http.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 200
        assert len(response.json()["choices"]) == 1  # of two members with one name the last counts


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"org/tiny","messages":[],"metadata":' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}",
        b'{"model":"org/tiny","messages":[],"tools":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"model":"org/tiny","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"org/tiny","temperature":NaN,"messages":[]}',
        b'{"model":"org/tiny","temperature":1e999,"messages":[]}',
        b'{"model":"org/tiny","max_tokens":1e3,"messages":[]}',
        b'\xef\xbb\xbf{"model":"org/tiny"}',
        b'{"model":"org/tiny","messages":[{"role":["user"],"content":{"a":1}}]}',
        b'{"model":"org/tiny","messages":[5]}',
        b'{"model":["org/tiny"],"messages":[]}',
    ],
)
async def test_what_is_no_request_is_a_400(front_end: Any, body: bytes) -> None:
    async with front_end() as front:
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
            response = await front.http.post(path, content=body, headers={"content-type": "application/json"})
            assert response.status_code == 400, path
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/v1/responses", "/v1/responses/r_1/cancel", "/v1/audio/speech", "/v1/files", "/v1/images"],
)
async def test_parts_of_openais_api_that_are_not_here_say_so(front_end: Any, path: str) -> None:
    async with front_end() as front:
        for method in ("GET", "POST", "DELETE"):
            response = await front.http.request(method, path)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (501, "not_implemented")
            assert "not served here" in error["message"]
            assert response.headers["x-should-retry"] == "false"  # C183: the SDK repeats every other 5xx
