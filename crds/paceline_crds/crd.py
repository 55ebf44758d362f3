"""The CustomResourceDefinitions, as objects and as the committed YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .fields import VALIDATIONS, rule
from .names import ANNOTATION_POOLS, GROUP, VERSION
from .revision import REVISION_RULES, InferenceRevision, InferenceRevisionSpec, InferenceRevisionStatus
from .schema import structural_schema
from .service import SPEC_RULES, InferenceService, InferenceServiceSpec
from .status import InferenceServiceStatus

_META = {
    "apiVersion": {"type": "string", "description": "Version of this representation of the object."},
    "kind": {"type": "string", "description": "Kind of the object."},
    "metadata": {"type": "object"},
}

NAME_RULE = rule(
    "self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$')",
    message_expression="'the name has %d characters; it becomes a label value and the base of other names, so use at "
    "most 63 lower-case letters, digits and hyphens, beginning with a letter'.format([self.metadata.name.size()])",
)


def _crd(
    *,
    kind: str,
    plural: str,
    short: list[str],
    doc: str,
    schema: dict[str, Any],
    columns: list[dict[str, Any]],
    **version: Any,
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": short,
                "categories": ["paceline"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": {"type": "object", "description": doc, **schema}},
                    **version,
                }
            ],
        },
    }


def _column(name: str, path: str, type: str = "string", *, description: str, priority: int = 0) -> dict[str, Any]:
    return {"name": name, "jsonPath": path, "type": type, "description": description, "priority": priority}


def inference_service_crd() -> dict[str, Any]:
    """The CRD of `InferenceService`."""
    spec = structural_schema(InferenceServiceSpec)
    spec["description"] = "What is served, on what, and how many times."
    spec[VALIDATIONS] = list(SPEC_RULES)
    status = structural_schema(InferenceServiceStatus, defaults=False)
    status["description"] = "What Paceline saw."
    ready = ".status.conditions[?(@.type=='Ready')]"
    return _crd(
        kind="InferenceService",
        plural="inferenceservices",
        short=["psvc"],
        doc=_first_paragraph(InferenceService),
        schema={
            "required": ["spec"],
            "properties": {**_META, "spec": spec, "status": status},
            VALIDATIONS: [NAME_RULE],
        },
        columns=[
            _column("Model", ".spec.model.source", description="Where the weights come from."),
            _column("Ready", f"{ready}.status", description="Whether the spec serves as asked."),
            _column("Reason", f"{ready}.reason", description="Why it is ready, or not."),
            _column("Replicas", ".status.replicas", "integer", description="Pods that exist."),
            _column("Serving", ".status.readyReplicas", "integer", description="Pods that take traffic."),
            _column("Revision", ".status.currentRevision", description="Revision that serves.", priority=1),
            _column("URL", ".status.address.url", description="Base URL for OpenAI clients.", priority=1),
            _column("Message", f"{ready}.message", description="The reason in words.", priority=1),
            _column("Age", ".metadata.creationTimestamp", "date", description="Time since creation."),
        ],
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    )


def inference_revision_crd() -> dict[str, Any]:
    """The CRD of `InferenceRevision`."""
    spec = structural_schema(InferenceRevisionSpec, defaults=False)
    spec["description"] = "The rendered configuration; it never changes."
    spec[VALIDATIONS] = list(REVISION_RULES)
    status = structural_schema(InferenceRevisionStatus, defaults=False)
    status["description"] = "What was measured while it ran."
    return _crd(
        kind="InferenceRevision",
        plural="inferencerevisions",
        short=["prev"],
        doc=_first_paragraph(InferenceRevision),
        schema={"required": ["spec"], "properties": {**_META, "spec": spec, "status": status}},
        columns=[
            _column("Service", ".spec.service", description="The InferenceService it was made for."),
            _column(
                "Pools",
                ".metadata.annotations." + ANNOTATION_POOLS.replace(".", "\\."),
                description="Its pools, each with its hash.",
            ),
            _column("Age", ".metadata.creationTimestamp", "date", description="Time since creation."),
        ],
        subresources={"status": {}},
    )


def _first_paragraph(model: type) -> str:
    return (model.__doc__ or "").strip().split("\n\n")[0]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """The same rule twice is written twice: anchors are hard to read and some tools refuse them."""
        return True


def to_yaml(crd: dict[str, Any]) -> str:
    """The committed form: stable order, no anchors, a line that says where it came from."""
    body = yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return f"# Generated by `make crds` from crds/paceline_crds; edit the models, not this file.\n{body}"


def files() -> dict[str, str]:
    """File name → content of each CRD."""
    crds = (inference_service_crd(), inference_revision_crd())
    return {f"{GROUP}_{crd['spec']['names']['plural']}.yaml": to_yaml(crd) for crd in crds}


def write(*folders: Path) -> list[Path]:
    """Write every CRD into each folder; returns the paths."""
    paths = [folder / name for folder in folders for name in files()]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files()[path.name], encoding="utf-8")
    return paths
