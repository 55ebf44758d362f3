"""How results are shown."""

from __future__ import annotations

import enum


class Output(enum.StrEnum):
    """For whom."""

    TEXT = "text"
    JSON = "json"
