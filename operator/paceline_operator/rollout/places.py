"""How many more replicas would find a place: by the nodes, what runs on them, and the quotas of the namespace. Pure,
but for `Places`.

It reads what the scheduler reads first: resources, labels, taints, node selectors and required node affinity. Rules
about other pods, volumes and priorities are not looked at, nor nodes that would only be made for a pod.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from paceline_crds.quantities import parse_quantity
from paceline_crds.revision import RevisionPool
from paceline_kube import NODES, PODS, RESOURCEQUOTAS, JsonObject, Key, KubeClient, KubeError

log = logging.getLogger(__name__)

PODS_RESOURCE = "pods"
Amounts = Mapping[str, Fraction]


class Places:
    """Asks the API server, and remembers the answer for a while: it is about every pod of the cluster."""

    def __init__(self, client: KubeClient, clock: Callable[[], float], keep: float) -> None:
        """`clock` counts seconds; an answer is kept for `keep` of them."""
        self._client = client
        self._clock = clock
        self._keep = keep
        self._known: dict[Key, tuple[float, frozenset[str], int | None]] = {}

    def forget(self, key: Key) -> None:
        """The service is gone, or its rollout has begun."""
        self._known.pop(key, None)

    async def free(self, key: Key, pools: Sequence[RevisionPool]) -> int | None:
        """Replicas of these pools that would find a place; None where that cannot be known."""
        hashes, now = frozenset(pool.hash for pool in pools), self._clock()
        known = self._known.get(key)
        if known is not None and known[1] == hashes and now - known[0] < self._keep:
            return known[2]
        try:
            nodes = (await self._client.list(NODES)).items
            pods = (await self._client.list(PODS)).items
            quotas = (await self._client.list(RESOURCEQUOTAS, key[0])).items
            found = min((free(pool.pod_template, nodes, pods, quotas) for pool in pools), default=None)
        except KubeError as exc:
            log.info("%s/%s: it is not known how many replicas have room: %s", *key, exc)
            found = None
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            log.warning("%s/%s: nodes, pods or quotas are of another form: %r", *key, exc)
            found = None
        self._known[key] = now, hashes, found
        return found


def free(
    template: JsonObject, nodes: Iterable[JsonObject], pods: Iterable[JsonObject], quotas: Iterable[JsonObject]
) -> int:
    """How many more pods of a template find a place."""
    wanted = requests_of(template["spec"])
    used: dict[str, list[Amounts]] = {}
    for pod in pods:
        name = pod["spec"].get("nodeName")
        if name and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            used.setdefault(name, []).append(requests_of(pod["spec"]))
    places = sum(
        _fit(wanted, node["status"].get("allocatable") or {}, used.get(node["metadata"]["name"], ()))
        for node in nodes
        if takes(node, template["spec"])
    )
    return int(min([places, *(_allowed(template["spec"], quota) for quota in quotas)]))


def requests_of(spec: JsonObject) -> Amounts:
    """What a pod asks for, as the scheduler counts it: all containers together, or the largest of the first ones."""
    total: dict[str, Fraction] = {PODS_RESOURCE: Fraction(1)}
    for container in spec.get("containers") or ():
        for name, amount in _asked(container).items():
            total[name] = total.get(name, Fraction(0)) + amount
    for container in spec.get("initContainers") or ():
        for name, amount in _asked(container).items():
            total[name] = max(total.get(name, Fraction(0)), amount)
    for name, text in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, Fraction(0)) + _amount(text)
    return total


def _asked(container: JsonObject) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    # Where there is a limit only, it is the request too.
    texts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: _amount(text) for name, text in texts.items()}


def _amount(value: Any) -> Fraction:
    return Fraction(parse_quantity(str(value)))


def _fit(wanted: Amounts, allocatable: Mapping[str, Any], used: Iterable[Amounts]) -> int:
    taken = list(used)
    found = []
    for name, amount in wanted.items():
        if amount > 0:
            left = _amount(allocatable.get(name, "0")) - sum(one.get(name, Fraction(0)) for one in taken)
            found.append(max(0, math.floor(left / amount)))
    return min(found)


def takes(node: JsonObject, spec: JsonObject) -> bool:
    """Whether a node takes pods like this one, its resources aside."""
    node_spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    conditions = (node.get("status") or {}).get("conditions") or ()
    if node_spec.get("unschedulable") or not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
        return False
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    tolerations = spec.get("tolerations") or ()
    hard = [taint for taint in node_spec.get("taints") or () if taint.get("effect") in ("NoSchedule", "NoExecute")]
    if not all(any(_tolerates(one, taint) for one in tolerations) for taint in hard):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not affinity:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(_matches(one, labels) for one in term.get("matchExpressions") or ())
        and all(_matches(one, fields) for one in term.get("matchFields") or ())
        for term in affinity.get("nodeSelectorTerms") or ()
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(expression["key"])
    values: Sequence[str] = expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
        case other:
            raise ValueError(f"a node selector has the operator {other}")


def _allowed(spec: JsonObject, quota: JsonObject) -> int | float:
    """How many more pods a quota allows; one for some pods only is not looked at."""
    if (quota.get("spec") or {}).get("scopes") or (quota.get("spec") or {}).get("scopeSelector"):
        return math.inf
    status = quota.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    wanted = _counted(spec)
    found: list[float] = [math.inf]
    for name, text in hard.items():
        amount = wanted.get(name, Fraction(0))
        if amount > 0:
            found.append(max(0, math.floor((_amount(text) - _amount(used.get(name, "0"))) / amount)))
    return min(found)


def _counted(spec: JsonObject) -> Amounts:
    """What a pod counts as under each name that a quota may have."""
    counted = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for name, amount in requests_of(spec).items():
        if name != PODS_RESOURCE:
            counted |= {name: amount, f"requests.{name}": amount}
    for container in spec.get("containers") or ():
        for name, text in ((container.get("resources") or {}).get("limits") or {}).items():
            counted[f"limits.{name}"] = counted.get(f"limits.{name}", Fraction(0)) + _amount(text)
    return counted
