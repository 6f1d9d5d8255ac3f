"""What executes a cell: the prior, random, boosted trees, Optuna's samplers without a prior, two tuners' orders."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.columns import Columns, take
from tests.support.studies.replay import Recorded
from tuning.predict.model.cases import Array
from tuning.search.acquisition import propose
from tuning.search.surrogate import Observations, Prior

BUDGET = 10
#: Trials before a sampler's model is asked; their default is the whole budget.
STARTUP = 3
#: What boosted trees see: the table's columns, and the model's size for its name.
COLUMNS = (
    "parameters", "nodes", "micro_batch", "micro_batches", "global_batch", "dp", "pp", "tp", "zero_stage",
)  # fmt: skip
#: Paddle's default tuner refuses larger degrees of tensor parallelism.
_MOST_TENSOR = 8


class Meter:
    """Executes rows of a cell, each once, and keeps them in order; throughput in sequences a second, NaN if failed."""

    def __init__(self, recorded: Recorded, budget: int = BUDGET) -> None:
        self._speeds = speeds(recorded)
        self.left = min(budget, len(recorded))
        self.rows: list[int] = []
        self.values: list[float] = []

    def __call__(self, row: int) -> float:
        """Execute a row.

        Raises:
            ValueError: it was executed before, or nothing is left of the budget.
        """
        if row in self.rows or not self.left:
            raise ValueError(f"row {row} cannot be executed (again)")
        self.left -= 1
        self.rows.append(row)
        self.values.append(float(self._speeds[row]))
        return self.values[-1]

    @property
    def seen(self) -> Observations:
        """As the prior takes it."""
        return Observations.from_lists(self.rows, [-float(np.log(value)) for value in self.values])


#: Executes rows of a cell until its meter's budget is spent.
Method = Callable[[Recorded, Meter, int], None]


def speeds(recorded: Recorded) -> Array:
    """Sequences a second of each configuration, NaN where it failed."""
    return np.asarray(recorded.columns["global_batch"] / recorded.seconds, np.float64)


def ours(prior: Prior, meter: Meter) -> None:
    """The prior's proposals, each after what the ones before it measured."""
    while meter.left:
        proposal = propose(prior, meter.seen)
        assert proposal is not None, "a meter has no more budget than rows"
        meter(proposal.row)


def in_order(order: Sequence[int], meter: Meter) -> None:
    """One row after the other."""
    for row in order[: meter.left]:
        meter(int(row))


def at_random(recorded: Recorded, meter: Meter, seed: int) -> None:
    """Rows in any order."""
    in_order(np.random.default_rng([seed, recorded.nodes]).permutation(len(recorded)).tolist(), meter)


def boosted(columns: Columns, rows: NDArray[np.intp], candidates: Columns, seed: int) -> list[int]:
    """Rows by expected throughput: histogram gradient boosting of log throughput times the probability to run.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    known = take(columns, rows)
    ran = ~known["failed"]
    speed = np.log(known["global_batch"][ran] / known["iteration_seconds"][ran])
    size = HistGradientBoostingRegressor(random_state=seed).fit(_matrix(known)[ran], speed)
    runs = HistGradientBoostingClassifier(random_state=seed).fit(_matrix(known), ran)
    asked = _matrix(candidates)
    expected = np.exp(size.predict(asked)) * runs.predict_proba(asked)[:, 1]
    return [int(row) for row in np.argsort(-expected, kind="stable")]


def _matrix(columns: Columns) -> Array:
    sizes = columns["layers"] * columns["hidden"] * (4 * columns["hidden"] + 3 * columns["ffn_hidden"])
    named = columns | {"parameters": sizes}
    return np.stack([named[name] for name in COLUMNS], axis=1).astype(np.float64)


def sampled(kind: str, recorded: Recorded, meter: Meter, seed: int) -> None:
    """Optuna's sampler over exponents of the degrees and the micro-batch; a proposal stands for the nearest row
    that was not executed. A failed trial counts as no throughput at all.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    places = _places(recorded)
    space = {
        name: optuna.distributions.IntDistribution(int(column.min()), int(column.max()))
        for name, column in places.items()
    }
    table = np.stack(list(places.values()), axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(direction="maximize", sampler=_sampler(kind, seed))
        while meter.left:
            asked = study.ask(space)
            wanted = np.array([asked.params[name] for name in places])
            apart = ((table - wanted) ** 2).sum(axis=1).astype(np.float64)
            apart[meter.rows] = np.inf
            row = int(np.argmin(apart))
            value = meter(row)
            params = {name: int(column[row]) for name, column in places.items()}
            told = 0.0 if np.isnan(value) else value
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            study.add_trial(optuna.create_trial(params=params, distributions=space, value=told))


def _sampler(kind: str, seed: int) -> Any:
    from optuna import samplers

    if kind == "TPE":
        return samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    return samplers.GPSampler(seed=seed, n_startup_trials=STARTUP)


def _places(recorded: Recorded) -> dict[str, NDArray[np.int64]]:
    columns = recorded.columns
    powers = {name: np.log2(columns[name]).round().astype(np.int64) for name in ("tp", "pp", "micro_batch")}
    return powers | {"zero_stage": columns["zero_stage"].astype(np.int64)}


def deepspeed(recorded: Recorded, meter: Meter, _: int) -> None:
    """DeepSpeed's autotuner: one ZeRO stage after the other, in each micro-batches that grow until one fails or gains
    nothing. It holds model parallelism; here the least comes first, tp before pp. What is left follows in that order.
    """
    columns = recorded.columns
    order = np.lexsort(
        (columns["micro_batch"], columns["zero_stage"], columns["pp"], columns["tp"] * columns["pp"])
    )
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in order.tolist():
        group = tuple(int(columns[name][row]) for name in ("tp", "pp", "zero_stage"))
        groups.setdefault(group, []).append(row)
    for rows in groups.values():
        best = 0.0
        for row in rows:
            if not meter.left:
                return
            value = meter(row)
            if not value > best:
                break
            best = value
    in_order([row for row in order.tolist() if row not in meter.rows], meter)


def paddle(recorded: Recorded, meter: Meter, _: int) -> None:
    """Paddle's auto tuner with a baseline: what needs least memory (most tp, then pp, ZeRO, least micro-batch) until
    one runs, then the largest micro-batches. It passes over micro-batches above one that failed and below one that
    ran, and degrees of tp above 8; those follow when nothing else is left.
    """
    columns = recorded.columns
    small = columns["tp"] <= _MOST_TENSOR
    order = np.lexsort(
        (columns["micro_batch"], -columns["zero_stage"], -columns["pp"], -columns["tp"], ~small)
    ).tolist()
    passed: list[int] = []
    ran = False
    while order and meter.left:
        row = order.pop(0)
        if not small[row] or _pruned(columns, meter, row):
            passed.append(row)
            continue
        if not np.isnan(meter(row)) and not ran:
            ran = True
            order.sort(key=lambda other: -int(columns["micro_batch"][other]))
    in_order(passed, meter)


def _pruned(columns: Columns, meter: Meter, row: int) -> bool:
    sizes = columns["micro_batch"]
    for other, value in zip(meter.rows, meter.values, strict=True):
        same = all(columns[name][row] == columns[name][other] for name in ("dp", "tp", "pp", "zero_stage"))
        if same and (sizes[row] > sizes[other] if np.isnan(value) else sizes[row] < sizes[other]):
            return True
    return False


def omniscient(recorded: Recorded, meter: Meter, _: int) -> None:
    """The fastest first: no method can do better, and what fails here must fail."""
    known = speeds(recorded)
    in_order(np.argsort(-np.where(np.isnan(known), 0.0, known), kind="stable").tolist(), meter)


#: Methods that know nothing of other cells. Those without chance give the same for every seed.
WITHOUT_PRIOR: dict[str, Method] = {
    "random": at_random,
    "TPE": functools.partial(sampled, "TPE"),
    "GP": functools.partial(sampled, "GP"),
    "DeepSpeed's order": deepspeed,
    "Paddle's order": paddle,
    "every row known": omniscient,
}
