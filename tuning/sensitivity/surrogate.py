"""A model of what a study measured, boosted trees of scikit-learn, and how good it is on points not seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tuning.sensitivity.columns import Array

FOLDS = 5
#: Shallow trees: interactions of up to four knobs, and SHAP of a thousand trials in seconds.
_SETTINGS = {"n_estimators": 100, "max_depth": 4, "learning_rate": 0.12, "min_samples_leaf": 2}
_SEED = 0


@dataclass(frozen=True, slots=True)
class Surrogate:
    """``model`` is fitted to all rows; ``held_out`` has each row as models predict it that have not seen its point."""

    model: Any
    measured: Array
    held_out: Array

    @property
    def r_squared(self) -> float:
        """Share of the variance that is predicted on points not seen; below 0 is worse than the mean."""
        spread = float(((self.measured - self.measured.mean()) ** 2).sum())
        return 1 - float(((self.measured - self.held_out) ** 2).sum()) / spread if spread else float("nan")

    @property
    def auc(self) -> float:
        """How often a failed row is held likelier to fail than one that ran; 0.5 is a coin."""
        bad, good = self.held_out[self.measured > 0.5], self.held_out[self.measured <= 0.5]
        above = bad[:, None] - good[None, :]
        return float(((above > 0) + 0.5 * (above == 0)).mean())

    @property
    def error(self) -> float:
        """What 90 % of held-out rows are off by at most."""
        return float(np.quantile(np.abs(self.measured - self.held_out), 0.9))

    def predict(self, rows: Array) -> Array:
        """Of other rows."""
        return np.asarray(self.model.predict(rows), np.float64)


def fit(rows: Array, measured: Array) -> Surrogate:
    """Least squares, so that of 0 and 1 it is a chance; equal rows are always held out together."""
    held_out = np.full(len(measured), measured.mean())
    folds = _folds(rows)
    for fold in np.unique(folds):
        rest = folds != fold
        if rest.any():
            held_out[~rest] = _model().fit(rows[rest], measured[rest]).predict(rows[~rest])
    return Surrogate(_model().fit(rows, measured), measured, held_out)


def _folds(rows: Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    _, which = np.unique(rows, axis=0, return_inverse=True)
    order = np.random.default_rng(_SEED).permutation(int(which.max()) + 1)
    return np.asarray(order[which.reshape(-1)] % FOLDS, np.int64)


def _model() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(**_SETTINGS, random_state=_SEED)
