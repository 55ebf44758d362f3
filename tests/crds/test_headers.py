from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_crds.headers import LoadReport

COUNT = st.integers(0, 10**9)


@given(st.builds(LoadReport, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT))
def test_a_load_report_survives_the_header(report: LoadReport) -> None:
    assert LoadReport.decode(report.encode()) == report


def test_the_header_is_the_one_of_the_contract() -> None:
    assert LoadReport(12, 3, 73, 100, 900, 41).encode() == "v=1, run=12, wait=3, kv=73, ptok=100, dtok=900, seq=41"


def test_fields_of_a_later_release_are_passed_over() -> None:
    assert LoadReport.decode("v=1, run=1, wait=0, kv=0, ptok=0, dtok=0, seq=7, new=5") == LoadReport(1, 0, 0, 0, 0, 7)


@pytest.mark.parametrize("value", ["", "v=2, run=1", "v=1, run=1", "v=1, run=x", "v=1, run=-1", "garbage"])
def test_a_malformed_or_unknown_report_is_not_known(value: str) -> None:
    assert LoadReport.decode(value) is None
