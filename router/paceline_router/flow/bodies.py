"""A request's body with a smaller bound on its answer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from paceline_router.wire.answers import Refusal

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def with_limit(body: bytes, limit: int) -> bytes:
    """The body with `limit` as the most tokens of its answer, all other values kept to the byte.

    Raises:
        Refusal: 400 when a key of the body is not text.
    """
    try:
        fields: Mapping[str, object] = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise Refusal(400, f"The request body is not valid JSON: {exc}.") from None
    # The newer name counts where both are there, as in the engine.
    name = "max_completion_tokens" if fields.get("max_completion_tokens", _NULL) != _NULL else "max_tokens"
    return _encode({**fields, name: limit})


_NULL = msgspec.Raw(b"null")
