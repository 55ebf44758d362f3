"""HTTP headers between client, router and replica, and the compact load report that replicas send back."""

from __future__ import annotations

from dataclasses import dataclass

# A client may send these.
TENANT = "x-paceline-tenant"
SESSION = "x-paceline-session"
PRIORITY = "x-paceline-priority"
PROMPT_VERSION = "x-paceline-prompt-version"
DEADLINE_MS = "x-paceline-deadline-ms"
REVISION = "x-paceline-revision"
EXPLAIN = "x-paceline-explain"

# The router adds these towards a replica.
INTERNAL_REQUEST_ID = "x-paceline-request-id"
SHAPE = "x-paceline-shape"
SHADOW = "x-paceline-shadow"

# In answers.
REQUEST_ID = "x-request-id"
POOL = "x-paceline-pool"
REASON = "x-paceline-reason"
LOAD = "x-paceline-load"

LOAD_VERSION = 1


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a replica says of its own load, in the `x-paceline-load` header and at `GET /v1/paceline/load`.

    Attributes:
        running: requests in the batch.
        waiting: requests queued in the engine.
        kv_percent: KV cache blocks in use, whole percent.
        prefill_tokens: prompt tokens not yet computed, over running and waiting requests.
        decode_tokens: tokens held in the context of running requests (what each step reads).
        sequence: grows with each report of one engine process, so that an older report never overwrites a newer one.
    """

    running: int
    waiting: int
    kv_percent: int
    prefill_tokens: int
    decode_tokens: int
    sequence: int

    def encode(self) -> str:
        """The header's value, e.g. `v=1, run=12, wait=3, kv=73, ptok=100, dtok=900, seq=41`."""
        return (
            f"v={LOAD_VERSION}, run={self.running}, wait={self.waiting}, kv={self.kv_percent}, "
            f"ptok={self.prefill_tokens}, dtok={self.decode_tokens}, seq={self.sequence}"
        )

    @classmethod
    def decode(cls, value: str) -> LoadReport | None:
        """Parse a header value; `None` (not known) when it is malformed or of an unknown version."""
        fields: dict[str, int] = {}
        for item in value.split(","):
            name, _, number = item.strip().partition("=")
            if not number.isascii() or not number.isdigit():
                return None
            fields[name] = int(number)
        if fields.get("v") != LOAD_VERSION:
            return None
        try:
            return cls(
                running=fields["run"],
                waiting=fields["wait"],
                kv_percent=fields["kv"],
                prefill_tokens=fields["ptok"],
                decode_tokens=fields["dtok"],
                sequence=fields["seq"],
            )
        except KeyError:
            return None
