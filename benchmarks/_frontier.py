"""The three figures of the Frontier paper's abstract (arXiv 2312.12705) as trials, and constants of an MI250X.

What ran is taken from the authors' launch scripts, one for each model: the paper's own table could not be read. A
pipeline of DeepSpeed sends each tensor-parallel rank's slice (``PipelineEngine.is_pipe_partitioned``), and the authors'
logger counts what is computed again: their committed log has 149.46 TFLOP/s at 196.5 s, which is equation 3 of arXiv
2104.04473 with four forwards' worth of FLOPs a block. The abstract's percentages are taken to count so too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from benchmarks import _published as published
from benchmarks.published import columns as columns_of
from benchmarks.published import papers
from tuning.predict.fit import calibrate
from tuning.predict.fit.calibrate import FEATURES, CalibratedConstants, TrialMeasurements
from tuning.predict.fit.least_squares import fit
from tuning.predict.model import constants, step_time
from tuning.predict.model.cases import Array, Cases
from tuning.predict.model.constants import Constants

FILE = published.DATA / "frontier_2312.csv"
#: How far a fit may move each constant. An MI250X's products were timed nowhere that could be read: a factor of 1.5.
#: The catalogue's share of its attention is forward's alone, backward is slower by an unknown factor: 1.6.
FREE: Mapping[str, float] = {**constants.FREE, "gemm_share": 0.4, "attention_share": 0.5}
_SETTINGS = {
    "vocabulary": 51200.0,
    "sequence": 2048.0,
    "positions": 2048.0,
    "flash": 1.0,
    "reduce_bytes": 2.0,
    "scattered_boundary": 1.0,
}


@dataclass(frozen=True)
class Trials:
    """Names of models, and what ran: seconds are those of the abstract's percentages."""

    models: list[str]
    measured: TrialMeasurements

    def __len__(self) -> int:
        return len(self.models)

    def without(self, *rows: int) -> TrialMeasurements:
        """All but some."""
        return calibrate.select(self.measured, ~np.isin(np.arange(len(self)), rows))


def layouts() -> tuple[list[str], Cases]:
    """The three scripts that tell their batch; one for each model."""
    columns = papers.frontier_layouts(FILE)
    kept = ~np.isnan(columns["global_batch"]) & ~np.isnan(columns["zero_stage"])
    columns = columns_of.take(columns, kept)
    count = int(kept.sum())
    more = {name: np.full(count, value) for name, value in _SETTINGS.items()}
    more["micro_batches"] = columns["global_batch"] / columns["dp"] / columns["micro_batch"]
    return [str(name) for name in columns["model"]], columns_of.cases(columns | more)


def figures(metric: str) -> dict[str, float]:
    """Percent by model, of ``pct_of_peak``, ``weak_scaling_pct`` or ``strong_scaling_pct``."""
    columns = papers.frontier_results(FILE)
    rows = zip(columns["model"], columns["metric"], columns["value"], strict=True)
    return {str(model): float(value) for model, name, value in rows if name == metric}


def trials() -> Trials:
    """What the percentages are in seconds."""
    names, cases = layouts()
    paper = figures("pct_of_peak")
    machine = published.on("frontier", 2)
    rate = np.array([paper[name] for name in names]) / 100 * machine.device.peak * cases.world
    return Trials(names, TrialMeasurements(cases, machine, counted_flops(cases) / rate, np.array(names)))


def counted_flops(cases: Cases) -> Array:
    """Of a step as the authors count: blocks' forward twice, their backward, logits once (2104.04473, equation 3)."""
    head = 6 * cases.tokens * cases.hidden * cases.vocabulary
    counted: Array = (cases.model_flops - head) * 4 / 3 + head
    return counted


def of_peak(cases: Cases, seconds: Array) -> Array:
    """Percent of the peak, counted so."""
    share: Array = (
        100 * counted_flops(cases) / (seconds * published.on("frontier", 2).device.peak * cases.world)
    )
    return share


def predicted(measured: TrialMeasurements, found: Constants) -> Array:
    """Seconds of a step."""
    return step_time.step(measured.cases, measured.machine, found).seconds


def fitted(measured: TrialMeasurements) -> Constants:
    """From the shipped constants, each as free as ``FREE`` says."""

    def left(some: Constants) -> Array:
        return np.log(predicted(measured, some) / measured.seconds)

    return fit(left, calibrate.shipped_constants().constants, FREE).constants


def left_out(found: Trials) -> Array:
    """log(predicted / measured) of each, by constants that were fitted to the other two."""
    errors = [_error(found, row, fitted(found.without(row))) for row in range(len(found))]
    return np.array(errors)


def half_width(errors: Array) -> float:
    """Of 90 % of the next error, as a logarithm: Student's t of errors around zero, as many degrees as there are."""
    return float(stdtrit(len(errors), 0.95) * np.sqrt(np.mean(errors**2)))


def nested_half_width(found: Trials, row: int) -> float:
    """The same from two errors, each of constants fitted to a single trial: neither they nor it saw ``row``."""
    others = [other for other in range(len(found)) if other != row]
    errors = [_error(found, other, fitted(found.without(row, other))) for other in others]
    return half_width(np.array(errors))


def calibrated(found: Trials) -> CalibratedConstants:
    """Constants fitted to all three, and the range that their errors tell of, each left out."""
    width = half_width(left_out(found))
    cases = found.measured.cases
    columns = {name: getattr(cases, name) for name in FEATURES}
    ranges = {name: (float(column.min()), float(column.max())) for name, column in columns.items()}
    return CalibratedConstants(fitted(found.measured), -width, width, len(found), ranges)


def _error(found: Trials, row: int, of: Constants) -> float:
    own = calibrate.select(found.measured, np.array([row]))
    return float(np.log(predicted(own, of) / own.seconds)[0])
