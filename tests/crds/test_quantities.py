from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.quantities import parse_duration, parse_quantity, parse_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6Gi", 6 * 2**30),
        ("6G", 6 * 10**9),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("500m", Decimal("0.5")),
        ("1.5Ki", 1536),
        ("0", 0),
    ],
)
def test_quantities_of_the_official_grammar_have_their_value(text: str, value: Decimal | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    ["1e3Mi", "1K", "1 Gi", "1_000", "NaN", "Infinity", "-1Gi", "０.5", "6GiB", "100gi", "", "Gi", "1.", "1Gi\n"],
)
def test_what_python_libraries_let_through_but_kubernetes_does_not_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 6Gi"):
        parse_quantity(text)


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi"]))
def test_a_size_grows_with_its_number(number: int, suffix: str) -> None:
    assert parse_size(f"{number + 1}{suffix}") > parse_size(f"{number}{suffix}")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1m30s", 90), ("500ms", 0.5), ("1.5h", 5400)])
def test_go_durations_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "1d", "-1s", "1s ", "s"])
def test_other_durations_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 90s"):
        parse_duration(text)
