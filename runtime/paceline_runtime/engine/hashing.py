"""By which hash a block's content is found: chained over its tokens, those before it, and all else that changes it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

from .request import Request

HASH_BYTES = 32


def hash_seed(model_digest: str, block_size: int, dtype: str, *, adapter: str = "") -> bytes:
    """The root of every chain: whatever changes the content of a block besides its tokens.

    Args:
        model_digest: over the weights themselves, never their name.
        adapter: digest of the adapter's weights; empty is the model alone.
    """
    parts = [("model", model_digest), ("block-size", str(block_size)), ("dtype", dtype)]
    if adapter:
        parts.append(("adapter", adapter))
    return _tagged(b"paceline-kv-1", parts)


def salted_root(seed: bytes, *, tenant: str | None = None, salt: str = "", private: str | None = None) -> bytes:
    """The root for requests that share cached blocks with each other only.

    Args:
        tenant: whose; `None` where tenants share.
        salt: what the client asked for; empty is none.
        private: shares with nobody: a name used once.

    Returns:
        `seed` itself where nothing sets these requests apart.
    """
    parts = [
        *([("tenant", tenant)] if tenant is not None else []),
        *([("salt", salt)] if salt else []),
        *([("private", private)] if private is not None else []),
    ]
    return _tagged(seed, parts) if parts else seed


def block_hash(request: Request, index: int, block_size: int, seed: bytes) -> bytes:
    """Hash of block `index` of the request's tokens, all of which are there. Kept in `request.block_hashes`."""
    hashes = request.block_hashes
    while len(hashes) <= index:
        start = len(hashes) * block_size
        parent = hashes[-1] if hashes else request.hash_root or seed
        tokens = array("q", request.tokens[start : start + block_size]).tobytes()
        hashes.append(hashlib.blake2b(parent + tokens, digest_size=HASH_BYTES).digest())
    return hashes[index]


def _tagged(root: bytes, parts: Iterable[tuple[str, str]]) -> bytes:
    # Each part is tagged and its length written, so that no two different sets of parts give the same bytes.
    digest = hashlib.blake2b(root, digest_size=HASH_BYTES, person=b"paceline-root")
    for tag, value in parts:
        for part in (tag.encode(), value.encode("utf-8", "surrogatepass")):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
