from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.names import NAME_LIMIT, derived_name

LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
PARTS = st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=3).filter(
    lambda parts: re.search(r"[a-z0-9]", "-".join(parts).lower()) is not None
)


def test_a_name_that_fits_stays_as_it_is() -> None:
    assert derived_name("chat", "default", "0f3ac") == "chat-default-0f3ac"


def test_a_long_name_is_cut_and_told_apart_by_a_hash() -> None:
    first, second = (derived_name("x" * 70, tail) for tail in ("a", "b"))
    assert len(first) == len(second) == NAME_LIMIT
    assert first != second


def test_a_model_id_becomes_a_dns_label_without_meeting_its_lower_case_twin() -> None:
    names = {derived_name(text) for text in ("acme/Llama-9.9", "acme/llama-9.9", "acme-llama-9-9")}
    assert len(names) == 3


@given(PARTS)
def test_every_derived_name_is_a_dns_label_of_bounded_length(parts: list[str]) -> None:
    name = derived_name(*parts)
    assert len(name) <= NAME_LIMIT
    assert LABEL.fullmatch(name)


@given(PARTS, PARTS)
def test_different_parts_meet_in_one_name_only_when_they_join_to_the_same_text(a: list[str], b: list[str]) -> None:
    if "-".join(a) != "-".join(b):
        assert derived_name(*a) != derived_name(*b)


def test_a_name_without_letters_is_refused_with_words() -> None:
    with pytest.raises(ValueError, match="no letter or digit"):
        derived_name("///")
