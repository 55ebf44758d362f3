"""The tenants of one service: who asks, and whether the limits per minute let the request in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from paceline_crds.headers import TENANT
from paceline_crds.tenancy import IdentitySource, LimitsSpec, TenancySpec, TenantSpec
from paceline_router.report.text import Labels, Sample
from paceline_router.tenancy import refusals
from paceline_router.tenancy.buckets import REQUEST_BURST, SLACK, TOKEN_BURST, taken, wait_of
from paceline_router.tenancy.keys import Keys, digest_of, tenant_of_entry
from paceline_router.tenancy.labels import NONE, TenantLabels
from paceline_router.tenancy.series import IDENTITY_REASONS, Counts, identity_samples
from paceline_router.tenancy.tenant import Tenant as Tenant
from paceline_router.wire.answers import Refusal

AUTHORIZATION: Final = "authorization"

MOST_TENANTS = 8192
"""Tenants without an entry in the spec that are kept account of at one time."""

_MOST_ACCEPTED = 4096
_BACK_SECONDS: Final = 1.0
_CROWDED_SECONDS: Final = 1.0

_FORM: Final = re.compile(rb"[\x21-\x7e]{1,128}")
MOST_KEY_BYTES: Final = 1024
_BEARER: Final = re.compile(rb"bearer +([\x21-\x7e]{1,%d})" % MOST_KEY_BYTES, re.IGNORECASE)
_ANY_BEARER: Final = re.compile(rb"bearer +(\S.*)", re.IGNORECASE | re.DOTALL)

_Headers = dict[str, bytes]


class Tenants:
    """All tenants of one service in one router process. Times are monotonic seconds.

    Every router enforces its share of the limits (see `use`), so nothing is asked of others on the way. Identity comes
    first: `identify` is one of several methods, chosen by `use`.
    """

    def __init__(self, labels: TenantLabels | None = None) -> None:
        self.labels = labels or TenantLabels()
        self.identify: Callable[[_Headers], Tenant] = self._by_header
        """Whose request it is, from its headers. What the replica hears of it is `Tenant.line`.

        Raises:
            Refusal: 401 for a missing or unknown key, 503 where keys cannot be checked, 400 for a malformed name.
        """
        self._counts: dict[str, Counts] = {}
        self._identity_rejected = [0] * len(IDENTITY_REASONS)
        self._spec = TenancySpec()
        self._keys = Keys()
        self._share = 1.0
        self._header = TENANT
        self._default = LimitsSpec()
        self._specs: dict[bytes, TenantSpec] = {}
        self._owners: dict[bytes, bytes] = {}
        self._accepted: dict[bytes | None, Tenant] = {}
        self._tenants: dict[bytes, Tenant] = {}
        self._latest = 0.0
        self._ahead = 0.0
        self._crowded_until = 0.0
        self._nobody = Tenant(b"", NONE, self._counts_of(NONE))
        self._nobody.named = True  # never forgotten

    @property
    def keys(self) -> Keys:
        """Those that requests are checked by; without any trouble where none are needed."""
        identity = self._spec.identity
        return self._keys if identity is not None and identity.from_ is IdentitySource.API_KEY else Keys()

    def __len__(self) -> int:
        """Tenants that are kept account of."""
        return len(self._tenants)

    def __iter__(self) -> Iterator[Tenant]:
        yield self._nobody
        yield from self._tenants.values()

    # What the spec says

    def use(self, spec: TenancySpec | None, keys: Keys | None = None, share: float = 1.0) -> None:
        """Go by this from now on. What tenants used or owe, and who runs or waits, stays.

        Args:
            keys: of the Secret or file, where `identity.from` is APIKey; None: not known yet, so nobody gets in.
            share: of the limits, that this process enforces: 1 ÷ (ready routers × processes of each).
        """
        spec = spec or TenancySpec()
        keys = keys or Keys(trouble="the keys have not been read yet")
        if (spec, keys, share) == (self._spec, self._keys, self._share):
            return
        self._spec, self._keys, self._share = spec, keys, share
        self._default = spec.default or LimitsSpec()
        self._specs = {tenant.name.encode(): tenant for tenant in spec.tenants or ()}
        self.labels.use(tenant.name for tenant in self._specs.values())
        for wire in self._specs.keys() - self._tenants.keys():
            self._tenants[wire] = self._made(wire)
        for tenant in self:
            self._set(tenant)
        self._use_identity(keys)

    def _use_identity(self, keys: Keys) -> None:
        identity = self._spec.identity
        self._accepted.clear()
        self._owners = {}
        self._header = identity_header(self._spec)
        if identity is None or identity.from_ is IdentitySource.TRUSTED_HEADER:
            self.identify = self._by_header if self._header == TENANT else self._by_other_header
        elif keys.trouble:
            self.identify = self._without_keys
        else:
            names = {tenant.name for tenant in self._specs.values()}
            self._owners = {digest: tenant_of_entry(entry, names).encode() for digest, entry in keys.entries.items()}
            self.identify = self._by_key

    def _set(self, tenant: Tenant) -> None:
        spec = self._specs.get(tenant.wire)
        tenant.named = spec is not None or tenant is self._nobody
        tenant.weight = spec.weight if spec is not None else 1
        tenant.limit(spec or self._default, self._default, self._share, self._latest)
        self._relabel(tenant)

    # Identity

    def _by_header(self, headers: _Headers) -> Tenant:
        wire = headers.get(TENANT)
        if wire is None:
            return self._nobody
        return self._tenants.get(wire) or self._new(wire)

    def _by_other_header(self, headers: _Headers) -> Tenant:
        wire = headers.get(self._header)
        if wire is None:
            return self._nobody
        return self._tenants.get(wire) or self._new(wire)

    def _by_key(self, headers: _Headers) -> Tenant:
        value = headers.get(AUTHORIZATION)
        # Time tells nothing about keys here. A dictionary compares a key's bytes only once its whole 64 bit hash (of
        # SipHash, with a secret of this process) is the same, so no guess learns how much of it was right.
        tenant = self._accepted.get(value)
        if tenant is None:
            tenant = self._accept(value)
        return tenant

    def _accept(self, value: bytes | None) -> Tenant:
        match = _BEARER.fullmatch(value or b"")
        if match is None:
            self._identity_rejected[0] += 1
            raise _no_key(value)
        # What is looked up is the SHA-256 of the guess. Nobody can choose a guess by how its hash begins, so how long
        # the comparison of hashes takes tells nothing about a valid key either.
        wire = self._owners.get(digest_of(match[1]))
        if wire is None:
            self._identity_rejected[1] += 1
            raise refusals.unknown_key()
        tenant = self._tenants.get(wire) or self._new(wire)
        # Only keys that are valid are remembered; a holder of one can still vary the spaces before it.
        if len(self._accepted) >= _MOST_ACCEPTED:
            self._accepted.clear()
        self._accepted[value] = tenant
        return tenant

    def refusal(self, headers: _Headers) -> Refusal | None:
        """Why a request with these headers would not be let in for want of a key; None where it would. For questions
        about the service: they are counted nowhere, and make nobody a tenant.
        """
        identity = self._spec.identity
        if identity is None or identity.from_ is not IdentitySource.API_KEY:
            return None
        if self._keys.trouble:
            return refusals.no_keys()
        value = headers.get(AUTHORIZATION)
        match = _BEARER.fullmatch(value or b"")
        if match is None:
            return _no_key(value)
        return None if digest_of(match[1]) in self._owners else refusals.unknown_key()

    def _without_keys(self, headers: _Headers) -> Tenant:
        self._identity_rejected[2] += 1
        raise refusals.no_keys()

    def _new(self, wire: bytes) -> Tenant:
        if _FORM.fullmatch(wire) is None:
            self._identity_rejected[3] += 1
            raise refusals.malformed_name(self._header, wire)
        if len(self._tenants) - len(self._specs) >= MOST_TENANTS and not self._make_room():
            self._identity_rejected[4] += 1
            raise refusals.too_many_tenants(MOST_TENANTS)
        tenant = self._tenants[wire] = self._made(wire)
        self._set(tenant)
        return tenant

    def _made(self, wire: bytes) -> Tenant:
        label = self.labels.label(wire.decode("ascii"))
        return Tenant(wire, label, self._counts_of(label))

    def _make_room(self) -> bool:
        """Forget an eighth of the tenants, those not seen for longest: first of those whose buckets are full, which
        nobody can tell from new ones, then of those that owe nothing.
        """
        now = self._latest
        if now < self._crowded_until:
            return False
        for only_full in (True, False):
            idle = [tenant for tenant in self._tenants.values() if tenant.forgettable(now, only_full)]
            if idle:
                idle.sort(key=lambda tenant: tenant.seen)
                for tenant in idle[: max(1, MOST_TENANTS // 8)]:
                    del self._tenants[tenant.wire]
                self._accepted.clear()
                return True
        # A look at all of them is too dear to be had for the price of a made-up name.
        self._crowded_until = now + _CROWDED_SECONDS
        return False

    # Limits per minute

    def reserve(self, tenant: Tenant, tokens: int, now: float) -> Refusal | None:
        """Take a request and so many tokens (prompt and expected answer) from the tenant's buckets, or say why not."""
        now += self._ahead
        if now < self._latest:
            now = self._latest
        self._latest = tenant.seen = now
        if not tenant.limited:
            return None
        requests = tenant.request_full_at
        if requests < now:
            requests = now
        requests += tenant.request_cost
        cost = tokens * tenant.token_cost
        full = tenant.token_full_at
        if full < now:
            full = now
        full += cost
        if requests - now > tenant.request_reach or full - now > TOKEN_BURST:
            refusal = self._refused(tenant, tokens, now)
            if refusal is not None:
                return refusal
        tenant.request_full_at = requests
        tenant.token_full_at = full
        return None

    def _refused(self, tenant: Tenant, tokens: int, now: float) -> Refusal | None:
        if tenant.token_limit is not None and tokens > tenant.token_limit:
            tenant.counts.rejected["too_large"] += 1
            return refusals.too_large(tenant, tokens, now)
        for_request = wait_of(tenant.request_full_at, tenant.request_cost, REQUEST_BURST, now)
        for_tokens = wait_of(tenant.token_full_at, tokens * tenant.token_cost, TOKEN_BURST, now)
        if max(for_request, for_tokens) <= SLACK:
            return None
        if for_request > for_tokens:
            tenant.counts.rejected["requests"] += 1
            return refusals.requests_used_up(tenant, for_request, now)
        tenant.counts.rejected["tokens"] += 1
        return refusals.tokens_used_up(tenant, tokens, for_tokens, now)

    def settle(
        self, tenant: Tenant, reserved: int, prompt_tokens: int | None, output_tokens: int | None, now: float
    ) -> None:
        """Put what was really used in the place of what was reserved: the rest comes back, or a debt begins.

        Tokens that are not known are None. Then the reservation stands, or what is known where that is more.
        """
        counts = tenant.counts
        if prompt_tokens is not None and output_tokens is not None:
            counts.prompt_tokens += prompt_tokens
            counts.output_tokens += output_tokens
            used = prompt_tokens + output_tokens
        else:
            counts.prompt_tokens += prompt_tokens or 0
            counts.output_tokens += output_tokens or 0
            used = max(reserved, (prompt_tokens or 0) + (output_tokens or 0))
        tenant.use += used
        if tenant.limited and used != reserved:
            now += self._ahead
            if now < self._latest:
                now = self._latest
            else:
                self._latest = now
            full = tenant.token_full_at
            tenant.token_full_at = (full if full > now else now) + (used - reserved) * tenant.token_cost

    def give_back(self, tenant: Tenant, reserved: int, now: float) -> None:
        """Undo `reserve`, for a request that never got to a replica."""
        now = self._time(now)
        tenant.request_full_at = taken(tenant.request_full_at, -tenant.request_cost, now)
        tenant.token_full_at = taken(tenant.token_full_at, -reserved * tenant.token_cost, now)

    def rate_headers(self, tenant: Tenant, now: float) -> bytes:
        """The `x-ratelimit-*` lines of a tenant, for answers that say how much is left. Too dear for every answer."""
        values = refusals.rate_headers(tenant, self._time(now))
        return b"".join([b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in values.items()])

    def _time(self, now: float) -> float:
        """The buckets' time, which never goes back: a caller may say when its request came, which is a while ago."""
        now += self._ahead
        if now < self._latest:
            return self._latest
        self._latest = now
        return now

    # Metrics

    def _counts_of(self, label: str) -> Counts:
        counts = self._counts.get(label)
        if counts is None:
            counts = self._counts[label] = Counts()
        return counts

    def _relabel(self, tenant: Tenant) -> None:
        label = self.labels.label(tenant.name)
        if label != tenant.label:
            tenant.label = label
            tenant.counts = self._counts_of(label)

    def tidy(self, now: float) -> None:
        """Call this every few seconds, with the time it is, also when nobody asks for anything.

        Debts become old, tenants that use much take labels over from those that use little, and counts under labels
        that nobody has any more are dropped. A clock that was set back is noticed here: the buckets' time goes on from
        where it was, instead of standing still until the clock is there again.
        """
        if now + self._ahead < self._latest - _BACK_SECONDS:
            self._ahead = self._latest - now
        self._time(now)
        if not self.labels.due(now):
            return
        changed = self.labels.refresh({tenant.name: tenant.use for tenant in self}, now)
        for tenant in self:
            tenant.use = 0.0
            if changed:
                self._relabel(tenant)
        for label in [label for label in self._counts if not self.labels.shows(label)]:
            del self._counts[label]

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """All series of the service's tenants; `labels` are those of the service. Any thread may ask."""
        queued: dict[str, int] = {}
        running: dict[str, int] = {}
        for tenant in (self._nobody, *self._tenants.values()):
            if tenant.queued or tenant.running:
                queued[tenant.label] = queued.get(tenant.label, 0) + tenant.queued
                running[tenant.label] = running.get(tenant.label, 0) + tenant.running
        for label, counts in tuple(self._counts.items()):
            yield from counts.samples(labels, label, queued.get(label, 0), running.get(label, 0))
        yield from identity_samples(labels, self._identity_rejected)


def _no_key(value: bytes | None) -> Refusal:
    """What is wrong with an `authorization` that has no key in it."""
    found = _ANY_BEARER.fullmatch(value or b"")
    return refusals.missing_key() if found is None else refusals.impossible_key(MOST_KEY_BYTES, len(found[1]))


def identity_header(spec: TenancySpec | None) -> str:
    """The request header, in lower case, that `identify` reads besides `authorization`."""
    identity = None if spec is None else spec.identity
    if identity is None or not identity.header:
        return TENANT
    return identity.header.lower()


def identity_headers(specs: Iterable[TenancySpec | None]) -> set[str]:
    """Headers that the HTTP side must keep for `identify` (see `request_head.read_also`), in lower case."""
    return {AUTHORIZATION, *map(identity_header, specs)}
