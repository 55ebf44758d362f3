"""The byte-level alphabet of GPT-2's BPE: each byte is written as one printable character."""

from __future__ import annotations

from typing import Final


def _alphabet() -> dict[int, str]:
    # Bytes that Latin-1 shows as ink stand for themselves; the rest take the code points from U+0100 on, in byte order.
    shown = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(0x100 + n) for n, byte in enumerate(hidden)}


CHARACTER_OF_BYTE: Final = _alphabet()
BYTE_OF_CHARACTER: Final = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


def token_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for; a token with other characters (an added one) is its own text."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode("utf-8", errors="replace")
