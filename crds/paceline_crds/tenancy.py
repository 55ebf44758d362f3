"""Who sends requests and how much of the service each one gets."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field

from .base import Model
from .durations import Duration
from .fields import rule, rules, text


class IdentitySource(enum.StrEnum):
    """Where a request's tenant comes from."""

    API_KEY = "APIKey"
    TRUSTED_HEADER = "TrustedHeader"


class IdentitySpec(Model):
    """How the tenant of a request is known."""

    from_: Annotated[
        IdentitySource,
        Field(
            alias="from",
            description="APIKey: by the bearer key, whose SHA-256 is in the Secret; the client's own "
            "x-paceline-tenant is dropped. TrustedHeader: by a header that something in front of the router sets.",
        ),
    ]
    secret_name: Annotated[
        str | None,
        text(
            "Secret in the namespace of the service. Each entry is called after a tenant, or tenant.anything for a "
            "further key, and has the SHA-256 of the key, in hex.",
        ),
    ] = None
    header: Annotated[
        str | None,
        text(
            "Header with the tenant. Default x-paceline-tenant.",
            rule(
                "self.matches('^[A-Za-z0-9-]+$') && "
                "!(self.lowerAscii() in "
                "['host', 'content-length', 'authorization', 'transfer-encoding', 'connection', 'upgrade', 'expect', "
                "'content-type', 'content-encoding', 'traceparent', 'tracestate'])",
                "write the name of a header that something in front of the router sets, for example x-team",
            ),
            max_length=64,
        ),
    ] = None


IDENTITY_RULES = (
    rule(
        "self.from != 'APIKey' || has(self.secretName)",
        "from: APIKey needs secretName, the Secret with the hashes of the keys",
        field_path=".secretName",
    ),
    rule(
        "self.from == 'APIKey' || !has(self.secretName)",
        "secretName is for from: APIKey; remove it",
        field_path=".secretName",
    ),
    rule(
        "self.from == 'TrustedHeader' || !has(self.header)",
        "header is for from: TrustedHeader; remove it",
        field_path=".header",
    ),
)

_RPM = Field(ge=1, le=10_000_000, description="Requests in a minute; a burst of ten seconds' worth may come at once.")
_TPM = Field(
    ge=1,
    le=10_000_000_000,
    description="Tokens in a minute, prompt and answer; reserved by estimate on entry, settled on exit. A minute's "
    "worth may come at once.",
)
_SLOTS = Field(ge=1, le=100_000, description="Requests that may be at replicas at one time; more wait at the router.")


class LimitsSpec(Model):
    """Limits of one tenant. A limit left out does not bind."""

    requests_per_minute: Annotated[int | None, _RPM] = None
    tokens_per_minute: Annotated[int | None, _TPM] = None
    max_concurrent: Annotated[int | None, _SLOTS] = None


class TenantSpec(LimitsSpec):
    """One tenant by name. A limit left out is that of `default`."""

    name: Annotated[
        str,
        text(
            "Name of the tenant, as in the Secret or the header.",
            rule(
                "self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')",
                "a tenant's name has letters, digits and inner . _ -, for example team-a",
            ),
            max_length=63,
        ),
    ]
    weight: Annotated[
        int, Field(ge=1, le=1000, description="Share of the service among tenants that wait at the same time.")
    ] = 1


class TenancySpec(Model):
    """Whose requests these are, and how the service is shared between tenants. Nothing here restarts a replica."""

    identity: Annotated[
        IdentitySpec | None,
        Field(
            description="How the tenant of a request is known. Left out: by the header x-paceline-tenant, believed as "
            "it is.",
            json_schema_extra=rules(*IDENTITY_RULES),
        ),
    ] = None
    default: Annotated[LimitsSpec | None, Field(description="Limits of every tenant that has none of its own.")] = None
    tenants: Annotated[
        list[TenantSpec] | None,
        Field(
            max_length=256,
            description="Tenants with a share or limits of their own.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    max_queued_per_tenant: Annotated[
        int | None,
        Field(ge=0, le=100_000, description="Requests of one tenant that may wait at the router. Default 100."),
    ] = None
    max_wait: Annotated[
        Duration | None,
        Field(
            description="Longest wait at the router for one of the tenant's slots (then 429) or for room at a replica "
            "(then 503). Default 30s."
        ),
    ] = None
