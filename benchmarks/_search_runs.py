"""One seed of one method over all cells of a table: scores, failures, and what is said where nothing runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks import _search_methods as methods
from benchmarks import _search_prior as physics
from benchmarks._search_methods import Meter
from benchmarks._search_prior import Physics
from benchmarks.published import playbook
from tests.support.studies import replay
from tests.support.studies.replay import Recorded
from tuning.predict.model.constants import Constants
from tuning.search import acquisition
from tuning.search.surrogate import Observations, Prior

#: What a prior has never seen: the cell that it is asked about, any cell of that model's size, on that number of nodes,
#: or of either.
Unseen = Literal["cell", "size", "nodes", "size and nodes"]
#: What is unseen, the model and the number of nodes; "" or 0 where it does not matter.
Split: TypeAlias = tuple[Unseen, str, int]
#: A result of one seed: for each cell its score, failing share, and what was said where nothing ran.
Result: TypeAlias = dict[str, dict[str, Any]]
SAY_WITHIN = 12


class Replayed:
    """A table that is searched, the shipped one that priors are fitted to, and fits before rows are resampled."""

    def __init__(self, table: Path, known: dict[str, Any], folds: Path | None = None) -> None:
        self.cells = replay.cells(playbook.trials(table))
        self.shipped = Physics.of(playbook.trials())
        self.known, self._folds = known, folds

    def training(self, split: Split) -> NDArray[np.intp]:
        """Rows of the shipped table that a prior may be fitted to."""
        unseen, model, nodes = split
        sizes, counts = self.shipped.trials["model"] == model, self.shipped.trials["nodes"] == nodes
        out = sizes & counts if unseen == "cell" else sizes | counts
        return np.flatnonzero(~out)

    def drawn(self, split: Split, seed: int) -> NDArray[np.intp]:
        """As many of those rows, drawn with replacement."""
        rows = self.training(split)
        name = sum(ord(letter) * place for place, letter in enumerate(split[1], 1))
        return np.random.default_rng([seed, name, split[2]]).choice(rows, len(rows))

    def fold(self, split: Split, seed: int) -> physics.Fold:
        """The physics fitted to resampled rows, from where it was without resampling; kept where a folder is given."""
        kept = self._folds / f"{'-'.join(map(str, split))}-{seed}.pickle" if self._folds else None
        if kept and kept.is_file():
            found: physics.Fold = pickle.loads(kept.read_bytes())
            return found
        fold = physics.learned(self.shipped, self.drawn(split, seed), self._near(split))
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(pickle.dumps(fold))
        return fold

    def _near(self, split: Split) -> Constants:
        rows = self.training(split)
        name = "-".join(map(str, split)) if len(rows) < len(self.shipped.trials["model"]) else "all"
        if name not in self.known:
            self.known[name] = asdict(physics.learned(self.shipped, rows).constants)
        return Constants(**self.known[name])

    def folds(self, unseen: Unseen) -> Iterator[tuple[Split, list[Recorded]]]:
        """Every split with the cells that it is asked about."""
        groups: dict[Split, list[Recorded]] = {}
        for cell in self.cells:
            model, nodes = "" if unseen == "nodes" else cell.model, 0 if unseen == "size" else cell.nodes
            split: Split = (unseen, model, nodes)
            groups.setdefault(split, []).append(cell)
        yield from groups.items()


def name(cell: Recorded) -> str:
    """Of a cell."""
    return f"{cell.model}@{cell.nodes}"


def with_physics(table: Replayed, unseen: Unseen, seed: int) -> Result:
    """The prior of this project."""
    found: Result = {}
    for split, cells in table.folds(unseen):
        fold = table.fold(split, seed)
        for cell in cells:
            believed = physics.make_prior(fold, cell.columns)
            meter = Meter(cell, methods.BUDGET if cell.runs else SAY_WITHIN)
            if cell.runs:
                methods.ours(believed, meter)
                found[name(cell)] = scored(cell, meter) | {"wrongly": _said(believed, meter)}
            else:
                said = _said_after(believed, meter)
                found[name(cell)] = {"said_after": said[0], "reason": said[1]}
    return found


def with_trees(table: Replayed, unseen: Unseen, seed: int) -> Result:
    """Boosted trees on the same splits."""
    found: Result = {}
    for split, cells in table.folds(unseen):
        rows = table.drawn(split, seed)
        for cell in (one for one in cells if one.runs):
            meter = Meter(cell)
            methods.in_order(methods.boosted(table.shipped.trials, rows, cell.columns, seed), meter)
            found[name(cell)] = scored(cell, meter)
    return found


def without_prior(method: methods.Method) -> Callable[[Replayed, int], Result]:
    """A method that knows nothing of other cells."""

    def run(table: Replayed, seed: int) -> Result:
        found: Result = {}
        for cell in (one for one in table.cells if one.runs):
            meter = Meter(cell)
            method(cell, meter, seed)
            found[name(cell)] = scored(cell, meter)
        return found

    return run


def scored(cell: Recorded, meter: Meter) -> dict[str, Any]:
    """Best throughput of what was executed over the cell's best, 0 if none ran; and the share that failed."""
    ran = [value for value in meter.values if not np.isnan(value)]
    best = max(ran, default=0.0) / float(np.nanmax(methods.speeds(cell)))
    return {"score": round(best, 5), "failed": round(1 - len(ran) / len(meter.values), 5)}


def _said_after(believed: Prior, meter: Meter) -> tuple[int | None, str]:
    """After how many trials it is said that nothing runs, and why."""
    while meter.left:
        proposal = acquisition.propose(believed, meter.seen)
        assert proposal is not None, "a meter has no more budget than rows"
        meter(proposal.row)
        reason = acquisition.explain_infeasibility(believed, meter.seen)
        if reason:
            return len(meter.rows), reason
    return None, ""


def _said(believed: Prior, meter: Meter) -> bool:
    """Whether it was said at any time that nothing runs, where something does."""
    whole = meter.seen
    return any(
        acquisition.explain_infeasibility(
            believed, Observations(whole.rows[:count], whole.log_seconds[:count])
        )
        for count in range(1, len(whole.rows) + 1)
    )
