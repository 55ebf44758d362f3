"""Names that two parts share: API group, labels, annotations, images, ports, environment, and derived object names."""

from __future__ import annotations

import functools
import hashlib
import re

GROUP = "paceline.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# Labels on owned objects. Selectors use these only: served model names have another alphabet and never become labels.
LABEL_SERVICE = f"{GROUP}/service"
LABEL_POOL = f"{GROUP}/pool"
LABEL_POOL_HASH = f"{GROUP}/pool-hash"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "paceline"

# Annotations, only ever on owned objects.
ANNOTATION_ROLLOUT = f"{GROUP}/rollout"
ANNOTATION_DRAINING = f"{GROUP}/draining"

ANNOTATION_ASKED_BY = f"{GROUP}/asked-by"
"""On a revision: the field manager whose change of the spec it was made for."""

ANNOTATION_POOLS = f"{GROUP}/pools"
"""On a revision: each pool with its hash, for people. A column of `kubectl get` shows one value, never a list."""

ANNOTATION_ORDER_CAUSE = f"{GROUP}/order-cause"
"""On a revision: the stated cause of the order that brought the traffic to it last; it outlives the order."""

# Written by users, or by `paceline` for them, on their own objects.
ANNOTATION_UPGRADE = f"{GROUP}/upgrade"
ANNOTATION_CHANGE_CAUSE = "kubernetes.io/change-cause"
"""Why the spec was changed, as kubectl has it; copied to the revision that the change makes."""

FIELD_MANAGER_OPERATOR = "paceline-operator"
FIELD_MANAGER_CLI = "paceline-cli"

DEFAULT_POOL = "default"

REPLICA_PORT = 8000
REPLICA_PORT_NAME = "metrics"
ROUTER_PORT = 8080
ROUTER_ADMIN_PORT = 8081
OPERATOR_HEALTH_PORT = 8080
OPERATOR_METRICS_PORT = 9090

CONTAINER_RUNTIME = "runtime"
CONFIG_MOUNT_PATH = "/etc/paceline"
CONFIG_FILE_NAME = "config.json"
CONFIG_FILE_PATH = f"{CONFIG_MOUNT_PATH}/{CONFIG_FILE_NAME}"

ENV_BIND_HOST = "PACELINE_BIND_HOST"
ENV_POOL_HASH = "PACELINE_POOL_HASH"
ENV_PREFIX = "PACELINE_"

NAME_LIMIT = 63
"""A DNS label and a label value both end at 63 characters."""


@functools.lru_cache(maxsize=65536)
def derived_name(*parts: str, limit: int = NAME_LIMIT) -> str:
    """Join `parts` with `-` into a DNS label of at most `limit` characters.

    Names that fit, and need no cleaning, stay as they are; any other is cut and gets a hash of the whole as suffix, so
    that two different inputs never meet in one name. Every name that Paceline derives for an object or a label value
    comes from here.

    Raises:
        ValueError: when no letter or digit is left to make a name of, or `limit` is too small for a hash.
    """
    if limit < 12:
        raise ValueError(f"a name limit of {limit} leaves no room for a hash; use at least 12")
    whole = "-".join(parts)
    clean = re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", whole.lower())).strip("-")
    if not clean:
        raise ValueError(f"cannot derive a Kubernetes name from {whole!r}: it has no letter or digit")
    if clean == whole and len(clean) <= limit:
        return clean
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{clean[: limit - 9].rstrip('-')}-{digest}"
