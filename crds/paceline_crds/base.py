"""The base of every model in the contract: camelCase on the wire, unknown fields refused, values never coerced."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """snake_case in Python, camelCase in YAML. Strict: `"1"` is no number and `1.10` no string (write quotes)."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
    )
