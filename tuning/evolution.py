"""NSGA-II over all that a study knows: whoever proposed a trial, and whoever measured it, it may become a parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optuna.samplers import NSGAIISampler
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    from optuna.study import Study


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
            self._drawing = trial.number, len(_completed(study)) // self._size
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
        return _completed(study)

    def select_parent(self, study: Study, generation: int) -> list[FrozenTrial]:
        """By rank and crowding distance, within constraints first."""
        return self._elite_population_selection_strategy(study, self.get_population(study, generation))


def _completed(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
