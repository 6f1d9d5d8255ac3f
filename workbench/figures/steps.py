"""How unevenly the ranks are busy, step after step. Pure.

The numbers behind every figure of a run: one named tuple each, made by a pure function from columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from profilers.analysis.steps import WORK
from profilers.model.rows import ChangeRow
from profilers.model.run_summary import CommunicationRow
from profilers.records.operations import is_message
from profilers.records.schema import PHASES
from workbench.records.columns import Array, Columns, common_steps, means_by_step, rows_of, stretch_length
from workbench.records.columns import slowest_rank as slowest_rank  # noqa: PLC0414  (figures find it here)
from workbench.records.live_records import LINES, PhaseMeans

#: Points of a line; more make a browser slow and show nothing new.
POINTS = 1000
#: Bars of a stacked chart.
BARS = 90
#: Above this many ranks a figure shows the fastest, the median and the slowest one instead of all.
RANKS = LINES

MILLI = 1e3
MIB = 2**20
GIB = 2**30


class Line(NamedTuple):
    """One named trace; ``y`` has None where there was no reading."""

    name: str
    x: list[float]
    y: list[float | None]


class PhaseSeries(NamedTuple):
    """Milliseconds per phase for each bar: the mean of ``steps_per_bar`` steps from the one in ``steps`` on.

    Steps that were not recorded in detail do not count; a bar that has no others is ``undivided``, else 0 there.
    """

    rank: str
    steps: list[int]
    steps_per_bar: int
    milliseconds: dict[str, list[float]]
    undivided: list[float]
    warmup_until: int | None


class Mark(NamedTuple):
    """A step from which on another configuration holds, and what was changed."""

    step: int
    text: str


class RankSeries(NamedTuple):
    """Step time of each rank in milliseconds."""

    lines: list[Line]
    warmup_until: int | None


class LossSeries(NamedTuple):
    """Training loss per step, averaged over the ranks that have one, and the validation loss at the end."""

    steps: list[float]
    losses: list[float | None]
    validation: float | None


class CollectiveSeries(NamedTuple):
    """Per operation and axis, for one step of one rank: milliseconds hidden and exposed, MB, GB/s."""

    labels: list[str]
    calls: list[float]
    hidden_milliseconds: list[float | None]
    exposed_milliseconds: list[float | None]
    megabytes: list[float]
    bus_gigabytes_per_second: list[float | None]


def thin(values: Array, limit: int = POINTS) -> Array:
    """Indices of at most ``limit`` points that keep the lowest and the highest of each stretch.

    While a series grows, those of all but its last stretch stay, until it is twice as long.
    """
    count = len(values)
    if count <= limit:
        return np.arange(count)
    width = stretch_length(count, limit // 2)
    padded = np.concatenate([values, np.full(-count % width, np.nan)]).reshape(-1, width)
    starts = np.arange(len(padded)) * width
    low = np.where(np.isnan(padded), np.inf, padded).argmin(axis=1)
    high = np.where(np.isnan(padded), -np.inf, padded).argmax(axis=1)
    picks = np.unique(np.concatenate([starts + low, starts + high]))
    return np.asarray(picks[picks < count])


def line(name: str, x: Array, y: Array, limit: int = POINTS) -> Line:
    """A thinned trace of plain numbers."""
    y = np.asarray(y, dtype=float)
    indices = thin(y, limit)
    return Line(name, [float(value) for value in x[indices]], plain(y[indices]))


def plain(values: Array) -> list[float | None]:
    """Floats, and None where there is none."""
    return [float(value) if np.isfinite(value) else None for value in values]


def phase_series(columns: Columns, rank: str, bars: int = BARS) -> PhaseSeries:
    """Stacked bars of one rank: neighbouring steps are averaged so that at most ``bars`` remain."""
    steps = columns.get("step", np.empty(0, dtype=int))
    per_bar = stretch_length(len(steps), bars)
    starts = np.arange(0, len(steps), per_bar)
    if not len(steps):
        return PhaseSeries(rank, [], per_bar, {phase: [] for phase in PHASES}, [], None)
    means = {phase: _means(columns[f"{phase}_seconds"], starts) * MILLI for phase in PHASES}
    undivided = np.where(np.isnan(means[PHASES[0]]), _means(columns["step_seconds"], starts) * MILLI, 0.0)
    milliseconds = {phase: np.nan_to_num(values).tolist() for phase, values in means.items()}
    first_steps = [int(steps[start]) for start in starts]
    return PhaseSeries(rank, first_steps, per_bar, milliseconds, undivided.tolist(), warmup_until(columns))


def bars_of(phase_means: PhaseMeans, rank: str, columns: Columns, bars: int = BARS) -> PhaseSeries:
    """Stacked bars from means over blocks of steps; above ``kept.BLOCKS`` steps a bar is some whole blocks, so that
    there can be fewer of them. ``columns`` tell where warm-up ends.
    """
    steps, per_bar, means = phase_means.bars(bars)
    if not len(steps):
        return PhaseSeries(rank, [], per_bar, {phase: [] for phase in PHASES}, [], None)
    by_phase = {phase: means[f"{phase}_seconds"] * MILLI for phase in PHASES}
    undivided = np.where(np.isnan(by_phase[PHASES[0]]), means["step_seconds"] * MILLI, 0.0)
    milliseconds = {phase: np.nan_to_num(values).tolist() for phase, values in by_phase.items()}
    return PhaseSeries(rank, steps.tolist(), per_bar, milliseconds, undivided.tolist(), warmup_until(columns))


def change_marks(rows: Sequence[ChangeRow]) -> list[Mark]:
    """One mark a step; ``rows`` are a run's changes."""
    texts: dict[int, list[str]] = {}
    for row in rows:
        texts.setdefault(row.step, []).append(f"{row.key} = {row.new}")
    return [Mark(step, ", ".join(parts)) for step, parts in sorted(texts.items())]


def linked_mark(step: int | None, ranks: Mapping[int, Columns]) -> list[Mark]:
    """Of the step that a link names, if it is among those that are drawn: a long run's may be thinned."""
    step_columns = [columns["step"] for columns in ranks.values() if len(columns.get("step", ()))]
    if step is None or not any(steps.min() <= step <= steps.max() for steps in step_columns):
        return []
    return [Mark(step, f"step {step:,}")]


def _means(values: Array, starts: Array) -> Array:
    """The mean of each stretch over what is known of it; NaN where nothing is."""
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite.astype(float), starts)
    sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
    return np.asarray(np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0))


def warmup_until(columns: Columns) -> int | None:
    """The first measured step, if steps before it were warm-up; one after the last while all are."""
    measured = columns.get("measured", np.empty(0, dtype=bool)).astype(bool)
    if not len(measured) or measured[0]:
        return None
    return int(columns["step"][measured.argmax()] if measured.any() else columns["step"][-1] + 1)


def rank_series(steps: Mapping[int, Columns]) -> RankSeries:
    """A line per rank; with many ranks only the fastest, the median and the slowest of each step."""
    written = {rank: columns for rank, columns in sorted(steps.items()) if len(columns.get("step", ()))}
    first = next(iter(written.values()), {})
    if len(written) > RANKS:
        return RankSeries(_spread_lines(list(written.values())), warmup_until(first))
    lines = [
        line(f"rank {rank}", columns["step"], columns["step_seconds"] * MILLI)
        for rank, columns in written.items()
    ]
    return RankSeries(lines, warmup_until(first))


def _spread_lines(ranks: Sequence[Columns]) -> list[Line]:
    common = common_steps([columns["step"] for columns in ranks])
    seconds = np.stack([c["step_seconds"][rows_of(c["step"], common)] for c in ranks]) * MILLI
    spread = {
        "slowest": seconds.max(axis=0),
        "median": np.median(seconds, axis=0),
        "fastest": seconds.min(axis=0),
    }
    return [line(name, common, values) for name, values in spread.items()]


def loss_series(steps: Mapping[int, Columns], validation: float | None = None) -> LossSeries:
    """The mean over ranks; ranks without a loss (inner pipeline stages) do not count."""
    pairs = [(c["step"], c["loss"]) for c in steps.values() if len(c.get("step", ()))]
    if not pairs:
        return LossSeries([], [], validation)
    numbers = np.concatenate([step for step, _ in pairs]).astype(int)
    losses = np.concatenate([loss for _, loss in pairs]).astype(float)
    finite = np.isfinite(losses)
    steps_with_loss, means = means_by_step(numbers[finite], losses[finite])
    loss_line = line("loss", steps_with_loss, means)
    return LossSeries(loss_line.x, loss_line.y, validation)


def losses_of(
    losses: Sequence[float | None], validation: float | None = None, first_step: int = 0
) -> LossSeries:
    """The loss curve of a summary, which has one value per step from its first one on."""
    values = np.array([np.nan if loss is None else loss for loss in losses], dtype=float)
    loss_line = line("loss", first_step + np.arange(len(values)), values)
    return LossSeries(loss_line.x, loss_line.y, validation)


def collective_series(communication: Sequence[CommunicationRow]) -> CollectiveSeries:
    """The ``communication`` rows of a summary (per step and rank), the longest first."""
    rows = sorted(communication, key=lambda row: row.seconds or 0.0, reverse=True)
    return CollectiveSeries(
        labels=[f"{row.operation} · {row.axis}" for row in rows],
        calls=[float(row.calls) for row in rows],
        hidden_milliseconds=[_hidden_milliseconds(row) for row in rows],
        exposed_milliseconds=[_scale(row.exposed_seconds, MILLI) for row in rows],
        megabytes=[row.bytes / 1e6 for row in rows],
        bus_gigabytes_per_second=[_scale(row.bus_bandwidth, 1e-9) for row in rows],
    )


def _hidden_milliseconds(row: CommunicationRow) -> float | None:
    # Summaries that older versions wrote still have seconds for messages.
    if row.seconds is None or is_message(row.operation):
        return None
    return max(0.0, row.seconds - (row.exposed_seconds or 0.0)) * MILLI


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


class SkewSeries(NamedTuple):
    """Busiest minus least busy rank in milliseconds, and the busiest one's number, for each step."""

    steps: list[int]
    milliseconds: list[float]
    busiest: list[int]


def skew_series(steps: Mapping[int, Columns]) -> SkewSeries:
    """Busy is what a rank computes: forward, backward and optimizer, since ranks that wait end together."""
    written = {rank: columns for rank, columns in sorted(steps.items()) if len(columns.get("step", ()))}
    common = common_steps([columns["step"] for columns in written.values()])
    common = common[_recorded_mask(written, common)] if len(written) > 1 else common[:0]
    if not len(common):
        return SkewSeries([], [], [])
    busy = np.stack([_busy(columns)[rows_of(columns["step"], common)] for columns in written.values()])
    skew = (busy.max(axis=0) - busy.min(axis=0)) * MILLI
    indices = thin(skew, POINTS)
    ranks = np.array(list(written))[busy.argmax(axis=0)]
    return SkewSeries(common[indices].tolist(), skew[indices].tolist(), ranks[indices].tolist())


def _recorded_mask(ranks: Mapping[int, Columns], common: np.ndarray) -> np.ndarray:
    """Which steps every rank recorded in detail."""
    busy = [_busy(columns)[rows_of(columns["step"], common)] for columns in ranks.values()]
    return np.asarray(np.isfinite(busy).all(axis=0))


def _busy(columns: Columns) -> np.ndarray:
    return np.asarray(sum(columns[f"{phase}_seconds"] for phase in WORK))
