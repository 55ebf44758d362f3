"""Limits that change while the engine runs. Pure.

What a knob may be is bounded by what the engine was started with: activations were measured, graphs captured and the
KV cache sized for that, and a smaller step needs less of each. Nothing else of the configuration can change so: the
length of the model, blocks, types and the cache are memory that is laid out, and the rules of the queue are what
requests that wait were told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import ValidationError

from paceline_crds.runtime_config import RuntimeParameters
from paceline_crds.tuning import FIELDS, Knob
from paceline_runtime.config import in_words

from .limits import SchedulerLimits


def tuned(started: RuntimeParameters, limits: SchedulerLimits, knobs: Mapping[str, int]) -> SchedulerLimits:
    """The limits with other knobs; those that are not named are as at the start.

    Args:
        started: what the engine was started with.
        limits: the scheduler's.
        knobs: by camelCase name.

    Raises:
        ValueError: with what to write instead; nothing of it holds then.
    """
    unknown = sorted(knobs.keys() - {knob.value for knob in Knob})
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} cannot change while the engine runs; write some of {', '.join(Knob)}, and change "
            "others in the configuration"
        )
    values = {}
    for knob, field in FIELDS.items():
        most = getattr(started, field)
        value = values[field] = knobs.get(knob, most)
        if value > most:
            raise ValueError(
                f"{knob} {value} is more than {most}, with which this replica was started and for which it took "
                f"memory: write at most {most}"
            )
    try:
        RuntimeParameters(**{**started.model_dump(by_alias=False), **values})
    except ValidationError as error:
        raise ValueError(in_words(error)) from error
    return replace(limits, **values)


def in_effect(limits: SchedulerLimits) -> dict[str, int]:
    """Every knob as it is, by camelCase name."""
    return {knob.value: getattr(limits, field) for knob, field in FIELDS.items()}
