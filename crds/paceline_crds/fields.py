"""Annotated field types with the schema each has in the CRD: sizes, counts, open objects, and rules in CEL."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic.fields import FieldInfo

from .quantities import SIZE_PATTERN

VALIDATIONS = "x-kubernetes-validations"


def rule(
    cel: str,
    message: str | None = None,
    *,
    message_expression: str | None = None,
    field_path: str | None = None,
) -> dict[str, str]:
    """One CEL rule. `message` says what to write instead; `message_expression` is CEL that makes it from the values."""
    entry = {"rule": cel}
    if message is not None:
        entry["message"] = message
    if message_expression is not None:
        entry["messageExpression"] = message_expression
    if field_path is not None:
        entry["fieldPath"] = field_path
    return entry


def rules(*entries: dict[str, str], **extra: Any) -> dict[str, Any]:
    """`json_schema_extra` that puts CEL rules on a field or a model."""
    return {VALIDATIONS: list(entries), **extra}


def text(description: str, *entries: dict[str, str], max_length: int = 253) -> FieldInfo:
    """A non-empty string with CEL rules. `""` is refused: a client that fills in zero values is told so."""
    return Field(  # type: ignore[no-any-return]
        description=description,
        min_length=1,
        max_length=max_length,
        json_schema_extra=rules(*entries) if entries else None,
    )


_SIZE_RULE = rule(
    r"self.matches('^[0-9]+(\\.[0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$')",
    "write a size as a Kubernetes quantity: 6Gi (binary), 6G (decimal) or plain bytes; not 6GiB, 6gi or 6GB",
)

Size = Annotated[
    str,
    Field(min_length=1, max_length=32, pattern=SIZE_PATTERN),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 32, VALIDATIONS: [_SIZE_RULE]}),
]
"""Bytes as a Kubernetes quantity, kept as the user wrote it."""

_QUANTITY_RULE = rule(
    r"type(self) == int ? self >= 0 : "
    r"self.matches('^[0-9]+(\\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][0-9]{1,2})?$')",
    "write a Kubernetes quantity that is not negative: 6Gi, 500m or 2; not 6GiB, 1e3Mi or -1",
)

Quantity = Annotated[
    int | str,
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32, VALIDATIONS: [_QUANTITY_RULE]}),
]
"""Any resource amount."""

_COUNT_RULE = rule(
    r"type(self) == int ? self >= 0 && self <= 64 : "
    r"self.matches('^([0-9]|[1-5][0-9]|6[0-4])(\\.0+)?$|^([0-9]|[1-5][0-9]|6[0-4])000m$')",
    "count is a whole number of devices from 0 to 64; for a part of a GPU name a MIG or time-slicing resource instead, "
    "for example resource: nvidia.com/mig-1g.10gb with count: 1",
)


def _whole(value: object) -> object:
    """`"3000m"` and `"1.0"` are whole numbers: only the value matters, not its spelling."""
    if isinstance(value, str):
        if value.endswith("000m") and value[:-4].isdigit():
            return int(value[:-4])
        number, _, zeros = value.partition(".")
        if number.isdigit() and not zeros.strip("0"):
            return int(number)
    return value


DeviceCount = Annotated[
    int,
    BeforeValidator(_whole),
    Field(ge=0, le=64),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 16, VALIDATIONS: [_COUNT_RULE]}),
]
"""Devices for one replica, an int in Python however it was written."""

OpenObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""A piece of the Kubernetes Pod API, passed through as it is and checked by the API server when the pod is made."""
