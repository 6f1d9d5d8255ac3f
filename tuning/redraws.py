"""TPE that draws many times for one trial at little more than the price of once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.samplers import TPESampler

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

#: So many draws are made at a time at most: two once the first could not be kept, then twice as many each time.
AT_ONCE = 24


class Redrawing(TPESampler):
    """Optuna's TPE. What it knows does not change while points for one trial are drawn again because they were illegal
    or known: both densities are kept until the next trial, and draws are made several at a time. Each is what it was:
    the best of ``n_ei_candidates``.
    """

    def __init__(self, seed: int, startup_trials: int) -> None:
        # One controller asks for one point at a time: there is no other worker to tell lies to.
        super().__init__(seed=seed, n_startup_trials=startup_trials, constant_liar=False)
        self._drawing: tuple[int, tuple[str, ...]] | None = None
        self._densities: list[Any] = []
        self._drawn: list[dict[str, Any]] = []
        self._next = 1

    def _build_parzen_estimator(self, *given: Any, **named: Any) -> Any:
        self._densities.append(super()._build_parzen_estimator(*given, **named))
        return self._densities[-1]

    def _sample(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        drawing = trial.number, tuple(search_space)
        if drawing != self._drawing:
            self._drawing, self._densities, self._drawn, self._next = drawing, [], [], 1
            return super()._sample(study, trial, search_space)
        if (
            len(self._densities) != 2
        ):  # another Optuna may estimate them elsewhere, and is asked anew each time
            return super()._sample(study, trial, search_space)
        if not self._drawn:
            self._next = min(2 * self._next, AT_ONCE)
            self._drawn = self._draws(self._next)
        found = self._drawn.pop()
        return {name: kind.to_external_repr(found[name]) for name, kind in search_space.items()}

    def _draws(self, count: int) -> list[dict[str, Any]]:
        below, above = self._densities
        each = self._n_ei_candidates
        candidates: dict[str, NDArray[np.float64]] = below.sample(self._rng.rng, count * each)
        worth = self._compute_acquisition_func(candidates, below, above).reshape(count, each)
        best = [
            first + int(row.argmax()) for first, row in zip(range(0, worth.size, each), worth, strict=True)
        ]
        return [{name: values[place].item() for name, values in candidates.items()} for place in best]
