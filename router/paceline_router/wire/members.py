"""One member of a body's object set to another value, and nothing else of it touched.

Nothing is kept of the other members, so that the cost is that of two looks at the bytes, however many there are.
"""

from __future__ import annotations

from typing import Final

import msgspec

_NOTHING: Final = msgspec.Raw(b"")
_SPACE: Final = b" \t\r\n"


class Members(msgspec.Struct, gc=False):
    """Those that may be set, as raw JSON; empty where a body has none. Of one that is there twice the last counts."""

    model: msgspec.Raw = _NOTHING
    max_tokens: msgspec.Raw = _NOTHING
    max_completion_tokens: msgspec.Raw = _NOTHING


members_of: Final = msgspec.json.Decoder(Members).decode
_encode: Final = msgspec.json.Encoder().encode


def with_limit(body: bytes, limit: int, newer: bool) -> bytes:
    """The body with `limit` as the most tokens of its answer, all other values kept to the byte.

    Args:
        body: a JSON object that has been read without an error.
        newer: the bound that it has and that was judged is `max_completion_tokens`.
    """
    members = members_of(body)
    if newer:
        return with_member(body, "max_completion_tokens", members.max_completion_tokens, limit)
    return with_member(body, "max_tokens", members.max_tokens, limit)


def with_member(body: bytes, name: str, old: msgspec.Raw, value: str | int) -> bytes:
    """The body with `value` in place of `old`, which is what `members_of` has for `name`; all else kept to the byte.

    Args:
        body: a JSON object that has been read without an error.
    """
    new = _encode(value)
    was = bytes(old)
    if was:
        at = body.find(was)
        # Bytes that are there once, also when overlaps count, are the member's value; it is somewhere.
        if body.find(was, at + 1) < 0:
            return b"".join((body[:at], new, body[at + len(was) :]))
    # Where it is cannot be told from the bytes alone, or it is missing: the last one counts, for the engine as well.
    begun = body.rstrip(_SPACE)[:-1]
    comma = b"" if begun.rstrip(_SPACE).endswith(b"{") else b","
    return b'%b%b"%b":%b}' % (begun, comma, name.encode(), new)
