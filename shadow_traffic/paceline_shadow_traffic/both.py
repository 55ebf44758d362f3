"""The same question about two versions. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Both(Generic[Value]):
    """The same question about the base's answer and the candidate's."""

    base: Value
    candidate: Value
