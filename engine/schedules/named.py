"""Schedules by the names that configurations use."""

from __future__ import annotations

from engine.schedules.actions import Action, Schedule
from engine.schedules.gpipe import gpipe
from engine.schedules.one_f_one_b import one_f_one_b

SCHEDULES: dict[str, Schedule] = {"gpipe": gpipe, "1f1b": one_f_one_b}


def actions_for(kind: str, stage: int, stages: int, micro_batches: int) -> list[Action]:
    """The list that one stage executes.

    Without a pipeline both schedules shrink to one: each micro-batch forward, then backward, so that
    accumulation never keeps more than one micro-batch of activations.
    """
    return SCHEDULES["1f1b" if stages == 1 else kind](stage, stages, micro_batches)
