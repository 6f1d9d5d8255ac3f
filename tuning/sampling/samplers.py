"""Optuna's samplers by their names here. Nothing else of the tuner imports torch, which the page must not.

NSGA-II selects parents among all that a study knows, whoever proposed a trial and whoever measured it. Private names of
Optuna stand in this file alone; ``tests/tuning/sampling/test_optuna_private.py`` calls each.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import optuna
from optuna.samplers import CmaEsSampler, NSGAIISampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from tuning.spec.sampler_choice import find_sampler, population

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial


class Evolution(NSGAIISampler):
    """Optuna's NSGA-II marks the trials that it drew itself and selects parents among those. Here the completed trials
    are counted instead, ``population_size`` to a generation, and parents are selected among all of them. So it goes on
    after another sampler, after a restart and beside other controllers with what was measured, and first tries count.
    """

    def __init__(self, seed: int, population_size: int) -> None:
        super().__init__(seed=seed, population_size=population_size)
        self._size = population_size
        self._drawing: tuple[int, int] | None = None
        self._selected: tuple[int, list[FrozenTrial]] | None = None

    def get_trial_generation(self, study: Study, trial: FrozenTrial) -> int:
        """How many generations are full; the same for all draws of one trial."""
        if self._drawing is None or self._drawing[0] != trial.number:
            self._drawing = trial.number, len(_completed_trials(study)) // self._size
        return self._drawing[1]

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        """The best of all, chosen once a generation; none before the first is full."""
        if generation == 0:
            return []
        if self._selected is None or self._selected[0] != generation:
            self._selected = generation, self.select_parent(study, generation)
        return self._selected[1]

    def get_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        """All that could be selected: that ``generation`` and those before it."""
        return _completed_trials(study)

    def select_parent(self, study: Study, generation: int) -> list[FrozenTrial]:
        """By rank and crowding distance, within constraints first."""
        return self._elite_population_selection_strategy(study, self.get_population(study, generation))


class Cmaes(CmaEsSampler):
    """Optuna's CMA-ES warns of every trial with constraints that it does not look at them. A study that names some is
    refused; what is left are failures, which it is not told of.
    """

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """As Optuna has it, without a word."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            super().after_trial(study, trial, state, values)


def _completed_trials(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def _one_thread() -> None:
    """Fits of a few dozen points gain nothing from threads, and wait long for cores that ranks keep busy."""
    import torch

    torch.set_num_threads(1)


def make(name: str, seed: int, startup_trials: int, trials: int) -> BaseSampler:
    """The sampler itself. ``startup_trials`` explore first; ``trials`` is the budget, which sizes a generation.

    Raises:
        KeyError: there is no sampler of that name.
    """
    sampler = find_sampler(name)
    if sampler is None:
        raise KeyError(name)
    module, _, function = sampler.build.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        built: BaseSampler = getattr(importlib.import_module(module), function)(seed, startup_trials, trials)
        return built


def tpe(seed: int, startup_trials: int, trials: int) -> BaseSampler:
    """Tree-structured Parzen estimator."""
    # One controller asks for one point at a time: there is no other worker to tell lies to.
    return TPESampler(seed=seed, n_startup_trials=startup_trials, constant_liar=False)


def gaussian_process(seed: int, startup_trials: int, trials: int) -> BaseSampler:
    """A Gaussian process."""
    _one_thread()
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup_trials)


def cmaes(seed: int, startup_trials: int, trials: int) -> BaseSampler:
    """CMA-ES."""
    return Cmaes(seed=seed, n_startup_trials=startup_trials)


def uniform(seed: int, startup_trials: int, trials: int) -> BaseSampler:
    """Random draws."""
    return optuna.samplers.RandomSampler(seed=seed)


def nsga2(seed: int, startup_trials: int, trials: int) -> BaseSampler:
    """NSGA-II whose generations are a part of the budget."""
    return Evolution(seed, population(trials))
