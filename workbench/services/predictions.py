"""Predictions for a study on this machine: there are some where it is calibrated for as many ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.config.errors import InputError
from engine.config.presets import is_decoder
from workbench.text.output import say

if TYPE_CHECKING:
    from tuning.predict.target import Target
    from tuning.search.prediction_prior import PredictionPrior, PriorMaker
    from tuning.space.space import Space
    from tuning.spec.study_file import StudyFile


def prior_maker(home: Path, file: StudyFile) -> PriorMaker | None:
    """What predicts a study's space; it says why, once the study begins, where nothing can. The formulas that play a
    simulated study would know its trials beforehand: they say only whether anything runs.
    """
    if file.prior == "none" or file.config.trainer or (file.simulate is not None and file.turns_work):
        return None

    def make_prior(space: Space) -> PredictionPrior | None:
        from tuning.search.prediction_prior import PredictionPrior

        target = _target(home, file) if file.simulate is None else _simulated_target(file)
        proposes = file.simulate is None and not file.turns_learning
        return None if target is None else PredictionPrior(space, target, file.seed, proposes)

    return make_prior


def _simulated_target(file: StudyFile) -> Target | None:
    from tuning.predict.target import parse_target

    return parse_target(file.simulate.cluster, None, file.ranks) if file.simulate else None


def _target(home: Path, file: StudyFile) -> Target | None:
    from workbench.home.calibrations import target_of

    if not is_decoder(file.config.model):
        say(f"no predictions: formulas know the decoder alone, and {file.config.model.workload} is trained")
        return None
    if file.turns_work:
        say("no predictions: the study turns its ranks or the tokens of a step")
        return None
    try:
        target = target_of(home, None, None, file.ranks)
        target.check(file.ranks)
    except InputError as error:
        say(f"no predictions: {error.remedy.partition(', or name a cluster')[0]}")
        return None
    return target
