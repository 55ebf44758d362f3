import pytest

from paceline_kube import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    Unauthorized,
)
from paceline_kube.errors import error_from_status


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ApiError),
    ],
)
def test_each_status_has_its_type(status: int, reason: str, expected: type[ApiError]) -> None:
    error = error_from_status(status, {"reason": reason, "message": "words"})
    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (status, reason, "words")


def test_an_unknown_field_under_strict_validation_is_invalid_though_the_server_says_400() -> None:
    error = error_from_status(
        400, {"reason": "BadRequest", "message": 'strict decoding error: unknown field "spec.oops"'}
    )
    assert isinstance(error, Invalid)


def test_an_unknown_field_in_an_apply_is_invalid_though_the_server_says_500() -> None:
    message = "failed to create typed patch object (demo/a; /v1, Kind=ConfigMap): .oops: field not declared in schema"
    assert isinstance(error_from_status(500, {"message": message}), Invalid)


def test_another_bad_request_is_not_invalid() -> None:
    assert type(error_from_status(400, {"reason": "BadRequest", "message": "bad continue token"})) is ApiError


def test_a_body_that_is_no_status_keeps_its_text() -> None:
    error = error_from_status(502, None, text="<html>bad gateway</html>")
    assert "bad gateway" in str(error)


def test_the_wait_comes_from_the_header_or_else_from_the_details() -> None:
    details = {"details": {"retryAfterSeconds": 7}}
    assert error_from_status(429, details, retry_after=3.0).retry_after == 3.0
    assert error_from_status(429, details).retry_after == 7.0
    assert error_from_status(429, {"details": {"retryAfterSeconds": 0}}).retry_after is None
    assert error_from_status(429, {}).retry_after is None


def test_an_apply_conflict_names_the_fields_and_managers() -> None:
    causes = [{"reason": "FieldManagerConflict", "message": 'conflict with "kubectl"', "field": ".spec.replicas"}]
    assert error_from_status(409, {"reason": "Conflict", "details": {"causes": causes}}).causes == causes
    assert error_from_status(409, {"reason": "Conflict", "details": {}}).causes == []


def test_another_uid_under_the_same_name_is_a_conflict_and_no_fault_of_the_object() -> None:
    def answer(*fields: str) -> ApiError:
        causes = [{"reason": "FieldValueInvalid", "field": field} for field in fields]
        return error_from_status(422, {"reason": "Invalid", "details": {"causes": causes}})

    assert type(answer("metadata.uid")) is Conflict
    assert type(answer("spec.replicas")) is Invalid
    assert type(answer("metadata.uid", "spec.replicas")) is Invalid
