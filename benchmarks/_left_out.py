"""Rows of every shipped table, each predicted by constants that never saw its group, with its printed range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import _predict_memory as memory
from benchmarks import _published as published
from benchmarks.published import columns as columns_of
from benchmarks.published import llmfoundry, nanotron, playbook
from benchmarks.published.stalls import crowded, stalled
from tuning.predict.fit import calibrate
from tuning.predict.fit.calibrate import TrialMeasurements
from tuning.predict.model import step_time
from tuning.predict.model.cases import Array, Cases

Names = NDArray[np.str_]
#: A range holds this part of rows that are about as likely to stall: chances up to each of these, and above.
_HELD, _CHANCES, _FEWEST = 0.9, (0.05, 0.15, 0.5, 0.85), 20


class Table(NamedTuple):
    """Rows to predict, the ways in which they fall into groups, and rows that are always fitted to as well."""

    name: str
    rows: TrialMeasurements
    ways: Mapping[str, Names]
    also: TrialMeasurements | None = None


class LeftOut(NamedTuple):
    """Of one table and one way: each row's group, seconds predicted and measured, and the printed 90 % range.

    ``usual`` are rows that did not stall, whose prediction is ``fast``. ``expected`` orders layouts: the median over
    stalling and not does not tell a layout that often stalls from one that never does.
    """

    table: str
    way: str
    groups: Names
    predicted: Array
    measured: Array
    low: Array
    high: Array
    fast: Array
    usual: NDArray[np.bool_]
    expected: Array
    cells: Names

    def take(self, rows: NDArray[np.bool_]) -> LeftOut:
        """Some of the rows."""
        return LeftOut(self.table, self.way, *(column[rows] for column in self[2:]))

    @property
    def error(self) -> Array:
        """Of each row, |predicted / measured - 1|."""
        return np.asarray(np.abs(self.predicted / self.measured - 1), np.float64)

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether each row lies in its range."""
        return np.asarray((self.low <= self.measured) & (self.measured <= self.high), np.bool_)


def ways(cases: Cases, sizes: NDArray[np.generic], **more: NDArray[np.generic]) -> dict[str, Names]:
    """Model size, node count, tp width, and size with node count, where rows differ in them."""
    nodes = np.ceil(cases.world / cases.devices_per_node).astype(int).astype(str)
    found = {"size": sizes.astype(str), "nodes": nodes, "tp": cases.tp.astype(int).astype(str)}
    found |= {name: column.astype(str) for name, column in more.items()}
    pairs = [f"{size} on {count}" for size, count in zip(found["size"], nodes, strict=True)]
    found["size and nodes"] = np.array(pairs)
    plain = {name: groups for name, groups in found.items() if len(np.unique(groups)) > 1}
    if "nodes" not in plain:
        plain.pop("size and nodes", None)
    return plain


def tables() -> Iterator[Table]:
    """Those without stalls. Megatron's four rows are predicted from vTrain's, those of fp8 from bf16."""
    one = published.single(published.FILES["vtrain_single"])
    many = published.multi(published.FILES["vtrain_multi"])
    yield Table("vTrain, 1 node", one, ways(one.cases, one.groups))
    yield Table("vTrain, 64 to 512", many, ways(many.cases, many.groups), one)
    columns = llmfoundry.runs(published.FILES["llmfoundry"])
    fsdp = published.fsdp(published.FILES["llmfoundry"], "model")
    yield Table("llm-foundry", fsdp, ways(fsdp.cases, columns["model"], machine=columns["accelerator"]))
    eight = columns["format"] == "fp8"
    halves = calibrate.select(fsdp, eight), calibrate.select(fsdp, ~eight)
    yield Table("llm-foundry, fp8", halves[0], {"format": columns["format"][eight]}, halves[1])
    known = published.recomputation(published.FILES["megatron_2205_table3_table5"])
    whole = np.full(len(known.seconds), "all of it")
    yield Table("Megatron 2205", known, {"table": whole}, published.joined(one, many))


def left_out(table: Table) -> Iterator[LeftOut]:
    """Every row by constants that were fitted to other groups; ranges by the errors of other groups alone."""
    for way, groups in table.ways.items():
        seconds = table.rows.seconds
        predicted = np.zeros(len(seconds))
        for name in np.unique(groups):
            out = groups == name
            rest = calibrate.select(table.rows, ~out)
            train = published.joined(rest, table.also) if table.also else rest
            constants = calibrate.fit_constants(
                train if (~out).any() else table.also or train, most=published.EFFECTIVE_ROWS
            )
            own = calibrate.select(table.rows, out)
            predicted[out] = step_time.step(own.cases, own.machine, constants).seconds
        low, high = _ranges(np.log(predicted / seconds), groups, table)
        usual = np.full(len(seconds), True)
        ends = predicted * low, predicted * high
        yield LeftOut(table.name, way, groups, predicted, seconds, *ends, predicted, usual, predicted, groups)


def _ranges(left: Array, groups: Names, table: Table) -> tuple[Array, Array]:
    """Factors of a prediction: what others' left-out errors say; of one group those of the table fitted besides."""
    low, high = np.ones(len(left)), np.ones(len(left))
    for name in np.unique(groups):
        out = groups == name
        others = left[~out]
        if not len(others):
            assert table.also is not None, "a table of one group is predicted from another"
            others = calibrate.cross_validate(table.also, most=published.EFFECTIVE_ROWS)
        ends = np.percentile(others, [5, 95])
        low[out], high[out] = np.exp(-ends[1]), np.exp(-ends[0])
    return low, high


def playbook_left_out() -> Iterator[LeftOut]:
    """Finished trials of the playbook: seconds without stalls, and what stalls make of them."""
    trials = playbook.trials(published.FILES["ultrascale_playbook_benchmarks"])
    own = nanotron.dealt(columns_of.cases(trials))
    refused, ran = nanotron.refuses(own), ~trials["failed"]
    for way, groups in ways(own, trials["model"]).items():
        parts = [_playbook_group(trials, own, refused, groups == name) for name in np.unique(groups[ran])]
        place = np.concatenate([np.flatnonzero((groups == name) & ran) for name in np.unique(groups[ran])])
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        predicted, fast, likely, usual, expected = columns
        measured, names = trials["iteration_seconds"][place], groups[place]
        low, high = ends_by_chance(np.log(measured / predicted), likely, names)
        ends, kind = (predicted * low, predicted * high), usual.astype(np.bool_)
        pairs = zip(trials["model"][place], trials["nodes"][place], strict=True)
        cells = np.array([f"{model} on {nodes}" for model, nodes in pairs])
        yield LeftOut("playbook", way, names, predicted, measured, *ends, fast, kind, expected, cells)


def ends_by_chance(off: Array, likely: Array, groups: Names) -> tuple[Array, Array]:
    """Factors of a prediction between which its step is: the shortest range that holds 90 % of log(measured /
    predicted) in other groups, of rows about as likely to stall; wider by how much one more group varies.
    """
    kinds, low, high = np.digitize(likely, _CHANCES), np.ones(len(off)), np.ones(len(off))
    for name, kind in sorted(set(zip(groups.tolist(), kinds.tolist(), strict=True))):
        own, others = (groups == name) & (kinds == kind), groups != name
        alike = others & (kinds == kind)
        wider = np.sqrt(1 + 1 / len(np.unique(groups[others])))
        ends = shortest(off[alike if alike.sum() >= _FEWEST else others]) * wider
        low[own], high[own] = np.exp(min(ends[0], 0.0)), np.exp(max(ends[1], 0.0))
    return low, high


def shortest(values: Array) -> Array:
    """The two ends of the shortest range that holds 90 % of them."""
    ordered = np.sort(values)
    count = int(np.ceil(_HELD * len(ordered)))
    first = int(np.argmin(ordered[count - 1 :] - ordered[: len(ordered) - count + 1]))
    return ordered[[first, first + count - 1]]


def _playbook_group(
    trials: columns_of.Columns, own: Cases, refused: NDArray[np.bool_], out: NDArray[np.bool_]
) -> tuple[Array, ...]:
    """Of one group: seconds predicted, those of a run that does not stall, the chance that it does, whether it did
    not, and the seconds that order layouts.
    """
    fold = memory.learned(trials, own, refused, ~out)
    asked = out & ~trials["failed"]
    left, measured = own.take(asked), trials["iteration_seconds"][asked]
    fast, full = fold.without[asked], crowded(left, fold.peaks)
    usual = stalled(left, measured, fast, fold.stalls.waits) == 0
    predicted, expected = fold.stalls.median(left, fast, full), fold.stalls.slowed(left, fast, full)
    return predicted, fast, fold.stalls.likely(left, full), usual.astype(np.float64), expected
