"""What a generic learner makes of the playbook's trials: gradient boosting on the table's columns, default settings."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _predict_memory as memory
from benchmarks._predict_memory import Predicted
from benchmarks.published.columns import Columns
from tuning.predict.model.cases import Array

NAME = "gradient boosting (scikit-learn)"
#: By table: what a learner of the same kind reached on a fuller table of these trials; quoted, not computed here.
QUOTED = {
    "order": [("median cell, gradient boosting (quoted, on a fuller table)", "", "", "0.68", "54%", "")]
}
#: What a trial measured, and what follows from that.
_MEASURED = {
    "failed", "mfu", "tokens_per_second", "tokens_per_second_per_device", "iteration_seconds", "memory_bytes",
    "reported_flops_per_token",
}  # fmt: skip
_SEED = 0


def features(trials: Columns) -> Array:
    """A row for each trial: the columns that are known before it runs and differ, as log2(1 + x)."""
    known = [trials[name].astype(np.float64) for name in sorted(trials) if _is_known(name, trials[name])]
    return np.log2(1 + np.stack([column for column in known if np.unique(column).size > 1], axis=1))


def predicted(trials: Columns) -> Predicted | None:
    """Every trial by what was learned from all other model sizes, like ours; None without scikit-learn."""
    if importlib.util.find_spec("sklearn") is None:
        return None
    given, models = features(trials), trials["model"]
    found = Predicted(*(np.zeros(len(models)) for _ in Predicted._fields))
    for model in dict.fromkeys(models.tolist()):
        _predict(found, given, trials, models == model)
    return found


def rows(name: str, trials: Columns, found: Predicted | None) -> Iterator[Sequence[str]]:
    """Its rows of the table ``name``: those over all trials, or one that says that it is not installed."""
    if found is None:
        yield NAME, "not installed", *[""] * (len(memory.HEADERS[name]) - 2)
        return
    made = {"peaks": memory.peak_rows, "calls": memory.call_rows, "order": memory.order_rows}
    for first, *cells in made[name](trials, found):
        if name == "calls" or first in ("all", "median cell"):
            yield f"{first}, {NAME}", *cells


def _predict(found: Predicted, given: Array, trials: Columns, out: NDArray[np.bool_]) -> None:
    ran = ~out & ~trials["failed"]
    for name, into in (("memory_bytes", found.peaks), ("iteration_seconds", found.seconds)):
        learner = _regressor().fit(given[ran], np.log(trials[name][ran]))
        into[out] = np.exp(learner.predict(given[out]))
    learner = _classifier().fit(given[~out], trials["failed"][~out])
    found.fails[out] = learner.predict_proba(given[out])[:, 1]


def _is_known(name: str, column: Any) -> bool:
    return name not in _MEASURED and np.issubdtype(column.dtype, np.number)


def _regressor() -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(random_state=_SEED)


def _classifier() -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=_SEED)
