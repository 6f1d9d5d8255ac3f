"""Optuna's samplers by their names here. Nothing else of the tuner's imports torch, which the page must not."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from tuning.samplers import Name, population

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


def _one_thread() -> None:
    """Fits of a few dozen points gain nothing from threads, and wait long for cores that ranks keep busy."""
    import torch

    torch.set_num_threads(1)


def make(name: Name, seed: int, startup_trials: int, trials: int) -> BaseSampler:
    """The sampler itself. ``startup_trials`` explore first; ``trials`` is the budget, which sizes a generation."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "gp":
            _one_thread()
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup_trials)
        if name == "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=startup_trials)
        if name == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        if name == "nsga2":
            from tuning.evolution import Evolution

            return Evolution(seed, population(trials))
        from tuning.redraws import Redrawing

        return Redrawing(seed, startup_trials)
