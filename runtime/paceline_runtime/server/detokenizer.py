"""Turns tokens into text as they are made, never showing half a character.

An answer is a stream of bytes, and UTF-8 says where a character is whole. So the pieces, flush included, always join to
the text of all tokens at once, whatever came in one step; what the library's own stream does not promise.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from tokenizers import Tokenizer

from paceline_runtime.model.source import ModelInvalid

from .byte_alphabet import token_bytes

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE: Final = "\u2581"
"""How SentencePiece writes a space."""


class ByteTable:
    """The bytes of each token; nothing for the ids that are not to be shown, and for those without a token.

    Raises:
        ModelInvalid: for a tokenizer whose tokens have no bytes of their own.
    """

    def __init__(self, tokenizer: Tokenizer, hidden_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = hidden_ids
        self._added = tokenizer.get_added_tokens_decoder()
        self._bytes_of = _spelling(tokenizer)
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = b"" if token_id in self._hidden_ids else self._spell(token_id)
        return found

    def _spell(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.content.encode("utf-8", errors="replace")  # written as it is, in no alphabet of bytes
        token = self._tokenizer.id_to_token(token_id)
        return b"" if token is None else self._bytes_of(token)


class Detokenizer:
    """The state of one answer."""

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        """Add tokens; the text that is now certain."""
        return self._decoder.decode(b"".join([self._table[token_id] for token_id in token_ids]))

    def flush(self) -> str:
        """What was still held back: bytes that never became a character are shown as U+FFFD."""
        return self._decoder.decode(b"", final=True)


def _spelling(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """How this tokenizer writes bytes as tokens; its decoder tells."""
    kinds = set(_kinds(json.loads(tokenizer.to_str())["decoder"]))
    if "ByteLevel" in kinds:
        return token_bytes
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    raise ModelInvalid(
        f"the tokenizer's decoder ({', '.join(sorted(kinds)) or 'none'}) is not supported; those of byte-level BPE and "
        "SentencePiece are"
    )


def _kinds(decoder: Any) -> list[str]:
    if decoder is None:
        return []
    return [decoder["type"], *(kind for part in decoder.get("decoders", ()) for kind in _kinds(part))]


def _sentencepiece_bytes(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_SPACE, " ").encode("utf-8", errors="replace")
