"""The body of `GET /v1/paceline/samples`: what happened lately, by revision and shape, in a form that can be merged
over routers.
"""

from __future__ import annotations

from typing import Any

from paceline_crds.sketch import RELATIVE_ERROR, SCALE
from paceline_router.report.cells import OUTCOMES, SIGNALS
from paceline_router.report.labels import NONE
from paceline_router.report.metrics import Metrics
from paceline_router.report.service import SHAPE_LABELS


def samples_page(metrics: Metrics, since: float, now: float, only: str | None = None) -> dict[str, Any]:
    """Everything after `since`.

    Args:
        since, now: Unix seconds.
        only: a service's key, to leave out the others.
    """
    services: dict[str, Any] = {}
    for key, service in list(metrics.services.items()):
        if only is not None and key != only:
            continue
        begin, rows = service.windows.since(service.cells, since, now)
        services[key] = {
            "from": round(begin, 3),
            "rows": [
                {
                    "pool": pool or NONE,
                    "revision": revision or NONE,
                    "shape": SHAPE_LABELS[shape],
                    "outcomes": {
                        outcome: count for outcome, count in zip(OUTCOMES, row.outcomes, strict=True) if count
                    },
                    "met": row.met,
                    "missed": row.missed,
                    "promptTokens": row.prompt_tokens,
                    "outputTokens": row.output_tokens,
                    **{name: sketch.encode() for name, sketch in zip(SIGNALS, row.times, strict=True)},
                }
                for ((pool, revision), shape), row in sorted(rows.items())
            ],
        }
    return {"scale": SCALE, "relativeError": RELATIVE_ERROR, "to": round(now, 3), "services": services}
