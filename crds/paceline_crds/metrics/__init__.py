"""What each component shows at `/metrics`, by the names of the text exposition format.

Components take name, help and labels from here. How values are kept and histograms' buckets are the component's own.
Only the standard library is imported: routers and replicas read this at start. What is made of all of them together
(the reference page, alerts, dashboards) is in `paceline_observability`.
"""

from __future__ import annotations

from typing import Final

from . import operator, recorder, router, runtime
from .metric import *  # noqa: F403
from .metric import Metric as Metric
from .operator import *  # noqa: F403
from .recorder import *  # noqa: F403
from .router import *  # noqa: F403
from .runtime import *  # noqa: F403


def _of(module: object) -> tuple[Metric, ...]:
    """Whatever metric a module has, in its order; gathered, so that none can be left out."""
    return tuple(value for value in vars(module).values() if isinstance(value, Metric))


RUNTIME: Final = _of(runtime)
ROUTER: Final = _of(router)
OPERATOR: Final = _of(operator)
RECORDER: Final = _of(recorder)

CATALOGUE: Final = RUNTIME + ROUTER + OPERATOR + RECORDER
