"""The kinds of the API server that Paceline reads or writes, and how their URLs are built."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from paceline_crds.names import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind as the API server serves it; `group` is empty for the core group, `plural` is the URL word."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The value of an object's `apiVersion`, such as `v1` or `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of one object, or of a collection when `name` is absent.

        A namespaced kind without `namespace` means the collection over all namespaces.

        Raises:
            ValueError: a namespace for a cluster-scoped kind, a named object of a namespaced kind without its
                namespace, or a subresource without a name.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.kind} is cluster-scoped: leave the namespace out")
        if namespace is None and self.namespaced and name is not None:
            raise ValueError(f"{self.kind} {name!r} lives in a namespace: say which")
        if subresource is not None and name is None:
            raise ValueError(f"the subresource {subresource!r} needs the name of a {self.kind}")
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(quote(subresource, safe="/"))
        return "/" + "/".join(parts)


PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("", "v1", "events", "Event")
PERSISTENTVOLUMECLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
RESOURCEQUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
PODDISRUPTIONBUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
INFERENCESERVICES = Resource(GROUP, VERSION, "inferenceservices", "InferenceService")
INFERENCEREVISIONS = Resource(GROUP, VERSION, "inferencerevisions", "InferenceRevision")
