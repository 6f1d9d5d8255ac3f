"""Predictions for a study on this machine: there are some where it is calibrated for as many ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import InputError
from workbench.output import say

if TYPE_CHECKING:
    from tuning.foresight import Foresee, Foresight
    from tuning.space import Space
    from tuning.studyfile import StudyFile


def foresight_of(home: Path, file: StudyFile) -> Foresee | None:
    """What predicts a study's space; None, and a line that says why, where nothing can."""
    if file.prior == "none":
        return None
    from workbench.targets import target_of

    try:
        target = target_of(home, None, None, file.ranks)
        target.check(file.ranks)
    except InputError as error:
        say(f"no predictions: {error.remedy.partition(', or name a cluster')[0]}")
        return None
    if file.turns_work:
        say("no predictions: the study turns its ranks or the tokens of a step")
        return None
    from tuning.foresight import Foresight

    def foresee(space: Space) -> Foresight:
        return Foresight(space, target, file.seed)

    return foresee
