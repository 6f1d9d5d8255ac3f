"""What tuning a run while it goes has cost and brought, from the run's own steps and the windows of its study."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import run_config
from engine.config.errors import InputError, several
from engine.config.knobs.catalogue import live_parts
from engine.run import run_folder
from engine.run.run_folder import RunStatus
from profilers.analysis.statistics import mean_interval
from tuning.analysis.learning import learning
from tuning.execution.live.ongoing_run import runs_of
from tuning.report.study_result import Gain, StudyResult, TrialRow
from tuning.storage.state import CHECK
from workbench.analysis.live_timeline import Floats, Timeline, ValueChange, changes_of, timeline_of

#: Points of the curve, at the most.
POINTS = 400
#: So many steps say what a run does now: one alone may be a slow one.
LAST_STEPS = 20


@dataclass(frozen=True, slots=True)
class WindowRow:
    """Steps ``first`` to before ``end`` of a run, which measured a trial. ``confirms`` is the trial that it measured
    again. ``saved_seconds`` are what as many steps of the baseline would have taken more; negative where it lost time.
    """

    trial: int
    confirms: int | None
    label: str
    run: str
    first: int
    end: int
    outcome: str
    value: float | None
    low: float | None
    high: float | None
    saved_seconds: float | None
    #: By what share its held-out loss is above the baseline's after the same steps; None where none was compared.
    loss_increase: float | None
    #: Of the window itself, and whether its steps were done again with other values: then it is lost as a whole.
    seconds: float | None = None
    undone: bool = False
    #: What the leader's step took around it, over what it took when it was measured; None where nobody looked.
    leader_level: float | None = None
    #: Its rate over that of the leader around it, and the ends of the 95 % interval.
    leader_ratio: float | None = None
    leader_ratio_low: float | None = None
    leader_ratio_high: float | None = None
    #: Steps at its start that settled, by their own times, and were left out.
    settling_steps: int | None = None
    #: By which trials rank: its value over the baseline's as if the machine had been the same for both; None where a
    #: leader was measured again.
    over_baseline: float | None = None
    #: The share that it learned of what the baseline did in the same steps, and by what share its loss may so be above
    #: the baseline's in the end; None where none was compared, or too little was learned to tell.
    learned: float | None = None
    later_increase: float | None = None
    #: Whether it measured another trial's loss again, and its speed counts for nobody.
    checks_loss: bool = False


@dataclass(frozen=True, slots=True)
class RecentGain:
    """What the steps since the last window and the last change brought, whoever made it, with the values that the run
    has now: seconds that the baseline would have taken more, by the gain that the study tells of these values, and the
    ends of their 95 % interval; by the baseline's own seconds where they were set by somebody else.
    """

    first: int
    end: int
    seconds: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class LiveReport:
    """The run that a live study tunes. ``runs`` has more than one where it died or was stopped, and was started again;
    what was done twice then, or undone on the way, took ``repeated_seconds``.

    ``saved_seconds`` is what the baseline would have taken for the same steps, on a machine that became slower or
    faster as the leader's steps around windows show, minus what they took: ``invested`` in
    windows of other values that were slower than the baseline and in all that was undone, the baseline's own windows
    among it, ``gained`` in all other steps. ``break_even_step`` is
    the step from which on the whole is positive; None while it is not. A curve has the mean rate and the sum that was
    saved up to its steps.
    """

    run: str
    runs: list[str]
    state: str
    step: int
    steps: int
    now: dict[str, Any]
    baseline_step_seconds: float | None
    saved_seconds: float | None
    gained_seconds: float | None
    invested_seconds: float | None
    repeated_seconds: float
    break_even_step: int | None
    windows: list[WindowRow]
    #: Why the search ended, where it was not a budget.
    over: str
    #: The window that is measured now, its values and why; empty where none is.
    measuring: str
    since: RecentGain | None
    #: Every turn of the run, in order: the steps that were undone are not among them.
    changes: list[ValueChange]
    #: Over the last steps.
    tokens_per_second: float | None
    curve_steps: list[int]
    curve_tokens_per_second: list[float]
    curve_saved_seconds: list[float]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def report_live_study(folder: Path, result: StudyResult) -> LiveReport | None:
    """Of a study's folder; None of a study that is not live, or whose run has not begun."""
    home, names = folder.parent.parent, runs_of(folder)
    if not names or not (home / names[-1]).is_dir():
        return None
    last = home / names[-1]
    try:
        config = run_config.load(last / run_folder.CONFIG)
    except InputError:
        return None
    windows = _windows(home, result)
    timeline = timeline_of([home / name for name in names]).drop_before(
        min((row.first for row in windows), default=0)
    )
    levels = _Levels(windows)
    base = _baseline_seconds(windows, result, timeline, levels)
    now, after = _now(config.flat(), result), _end_of_search(windows)
    gain = _gain_of(now, result)
    reference = None if base is None else _untuned_times(timeline, base, levels, after, gain)
    saved = None if reference is None else reference - timeline.seconds - timeline.lost
    tokens = config.batch.global_batch * config.data.sequence_length
    status = RunStatus.from_folder(last)
    slow = [_saved_seconds(row, timeline, base, levels) for row in windows]
    measuring, invested = _measuring(result), None
    if saved is not None and result.baseline is not None:
        invested = _lost_seconds(windows, slow, result.baseline.trial) + timeline.undone_seconds
        invested += _lost_since(after, timeline, saved + timeline.lost) if measuring else 0.0
    gains = None if reference is None else reference - timeline.seconds
    turns = changes_of([home / name for name in names], now.keys() & live_parts().keys(), timeline, gains)
    if reference is not None and (share := _baseline_error(result)) is not None:
        turns = [_with_baseline_s(row, timeline, reference, share) for row in turns]
    changes, since = turns, None
    if base is not None and result.state != "running":
        basis = None if gain is None else (gain, _usual(base, levels, after, gain))
        since = _gain_since(max(after, *(row.step for row in turns[-1:]), 0), result, timeline, base, basis)
        changes = _by_gain(turns, since if gain is not None else None, after)
    total = None if saved is None else float(saved.sum())
    return LiveReport(
        run=last.name,
        runs=names,
        state=status.state,
        step=int(timeline.steps[-1]) + 1 if len(timeline.steps) else 0,
        steps=config.train.steps,
        now=now,
        baseline_step_seconds=base,
        saved_seconds=total,
        gained_seconds=None if total is None or invested is None else total + invested,
        invested_seconds=invested,
        repeated_seconds=float(timeline.lost.sum()),
        break_even_step=_break_even(timeline, saved),
        windows=[replace(row, saved_seconds=seconds) for row, seconds in zip(windows, slow, strict=True)],
        over=result.over,
        measuring=measuring,
        since=since,
        changes=changes,
        **_curve(timeline, tokens, saved),
    )


def _baseline_error(result: StudyResult) -> float | None:
    """How far the baseline's rate reaches to each side, as a share of it; None where that is not known."""
    row = result.baseline
    if row is None or not row.value or row.low is None or row.high is None:
        return None
    return (row.high - row.low) / 2 / row.value


def _with_baseline_s(row: ValueChange, timeline: Timeline, reference: Floats, share: float) -> ValueChange:
    """A turn whose interval counts that of the baseline, too, as all that is said to be saved does."""
    if row.saved_seconds is None or row.saved_low is None or row.saved_high is None:
        return row
    inside = (timeline.steps >= row.step) & (timeline.steps < row.end)
    saved, baseline_error = row.saved_seconds, share * float(reference[inside].sum())
    low = saved - math.hypot(saved - row.saved_low, baseline_error)
    return replace(row, saved_low=low, saved_high=saved + math.hypot(row.saved_high - saved, baseline_error))


def _by_gain(changes: list[ValueChange], since: RecentGain | None, after: int) -> list[ValueChange]:
    """The last turn, where it is of after the search, brought what the gain that is told says."""
    if not changes or since is None or changes[-1].step < after:
        return changes
    last = replace(changes[-1], saved_seconds=since.seconds, saved_low=since.low, saved_high=since.high)
    return [*changes[:-1], last]


class _Levels:
    """What a step takes over the run, over what it took when the baseline was measured: a machine becomes slower and
    faster, and the baseline would have, too. From the leader's steps around windows; 1 where these tell no difference.
    """

    def __init__(self, windows: Sequence[WindowRow]) -> None:
        levels = [row for row in windows if row.leader_level and not row.undone]
        first = [row for row in windows[:1] if row not in levels]
        self._places = [(row.first + row.end) / 2 for row in (*first, *levels)]
        self._logs = [math.log(row.leader_level or 1.0) for row in (*first, *levels)]

    def interpolate(self, steps: np.ndarray[Any, Any]) -> Floats:
        """Of each of these steps."""
        if not self._logs:
            return np.ones(len(steps))
        return np.asarray(np.exp(np.interp(steps, self._places, self._logs)), dtype=np.float64)

    def middle(self, row: WindowRow) -> float:
        """Of a window, in its middle."""
        return row.leader_level or float(self.interpolate(np.array([(row.first + row.end) / 2]))[0])


def _windows(home: Path, result: StudyResult) -> list[WindowRow]:
    """In the order in which they were measured."""
    windows = []
    for row in sorted((*result.trials, *result.confirmations), key=lambda trial: trial.number):
        document = (run_folder.read_json(home / (row.run or "") / run_folder.STATUS) or {}).get("window")
        if row.run and document:
            span = document["run"], document["first"], document["end"]
            parts = document.get("seconds"), bool(document.get("undone")), row.leader_level
            increase = _increase(row.validation_loss, row.reference_loss)
            value = row.value, row.low, row.high, None, increase
            window = WindowRow(row.number, row.confirms, row.label, *span, row.outcome or "", *value, *parts)
            learned = learning(row, row.validation_loss, row.reference_loss, row.steps)
            windows.append(
                replace(
                    window,
                    checks_loss=row.source == CHECK,
                    learned=learned.share if learned else None,
                    later_increase=learned.increase if learned else None,
                    leader_ratio=row.leader_ratio,
                    leader_ratio_low=row.leader_ratio_low,
                    leader_ratio_high=row.leader_ratio_high,
                    settling_steps=document.get("settling"),
                    over_baseline=row.over_baseline if isinstance(row, TrialRow) else None,
                )
            )
    return windows


def _increase(loss: float | None, usual: float | None) -> float | None:
    return None if loss is None or not usual else loss / usual - 1


def _measuring(result: StudyResult) -> str:
    running = next((row for row in reversed(result.trials) if row.outcome == "running"), None)
    if running is None:
        return ""
    return f"trial {running.number}, {running.label}" + (f": {running.why}" if running.why else "")


def change_columns(report: LiveReport) -> dict[str, list[Any]]:
    """Each turn as a row, the newest first: what it brought, with its interval. The last one's, after the search, is by
    the gain that is told.
    """
    rows = report.changes[::-1]
    return {
        "steps": [f"{row.step:,} to {max(row.step, row.end - 1):,}" for row in rows],
        "turned": [", ".join(f"{key} = {value}" for key, value in row.values.items()) for row in rows],
        "by": [row.by for row in rows],
        "saved, s": [None if row.saved_seconds is None else f"{row.saved_seconds:+,.2f}" for row in rows],
        "95 % interval": [
            ""
            if row.saved_low is None or row.saved_high is None
            else f"{row.saved_low:+,.2f} to {row.saved_high:+,.2f}"
            for row in rows
        ],
    }


def change_words(row: ValueChange) -> str:
    """A turn in one line."""
    values = ", ".join(f"{key} = {value}" for key, value in row.values.items())
    saving_text = (
        "" if row.saved_seconds is None else f": {_seconds(row.saved_seconds)} saved until step {row.end:,}"
    )
    return f"from step {row.step:,} on {values} ({row.by}){saving_text}"


def _gain_of(now: Mapping[str, Any], result: StudyResult) -> Gain | None:
    """What the values that a run has now are worth beside the baseline; None where the study tells it of others."""
    if result.state == "running" or result.gain is None or result.best is None:
        return None
    return result.gain if now == {key: result.best.config.get(key) for key in now} else None


def _untuned_times(timeline: Timeline, base: float, levels: _Levels, after: int, gain: Gain | None) -> Floats:
    """Seconds that each step would have taken with the baseline. From the step ``after`` the windows on nobody looks
    how fast the machine is: the run's own steps tell, and the ``gain`` of its values.
    """
    early = timeline.steps < after
    reference: Floats = base * np.where(early, levels.interpolate(timeline.steps), 1.0)
    if gain is not None:
        own_seconds = timeline.seconds[~early]
        gain_seconds = _gain_seconds(own_seconds, _usual(base, levels, after, gain), gain)
        reference[~early] = own_seconds + (gain.ratio - 1) * gain_seconds
    return reference


def _usual(base: float, levels: _Levels, after: int, gain: Gain) -> float:
    """Seconds of a step of the leader when its ``gain`` was measured, by the last that is known of the machine."""
    return base * float(levels.interpolate(np.array([after]))[0]) / gain.ratio


def _gain_seconds(seconds: Floats, usual: float, gain: Gain) -> Floats:
    """For which part of these steps a gain counts: in the mean for no more than steps took when it was measured. What
    slows a run down later need not have slowed the baseline as many times.
    """
    mean = float(seconds.mean()) if len(seconds) else 0.0
    return seconds * (usual / mean) if gain.ratio > 1 and mean > usual else seconds


def _gain_since(
    first: int, result: StudyResult, timeline: Timeline, base: float, basis: tuple[Gain, float] | None
) -> RecentGain | None:
    """Of the steps from ``first`` on: the study's last turn, one by hand, or of a search that followed. ``basis``: the
    gain of the run's values, and what a step took when it was measured.
    """
    seconds = timeline.seconds[timeline.steps >= first]
    if not len(seconds):
        return None
    last = int(timeline.steps[-1]) + 1
    if basis is not None:
        gain_seconds = float(_gain_seconds(seconds, basis[1], basis[0]).sum())
        saved, *ends = (None if ratio is None else gain_seconds * (ratio - 1) for ratio in _three(basis[0]))
        return RecentGain(first, last, saved or 0.0, ends[0], ends[1])
    interval, count = mean_interval(seconds), len(seconds)
    saved, half = count * (base - interval.value), None
    share = _baseline_error(result)
    if interval.low is not None and interval.high is not None and share is not None:
        half = count * math.hypot((interval.high - interval.low) / 2, base * share)
    ends = [None, None] if half is None else [saved - half, saved + half]
    return RecentGain(first, last, saved, ends[0], ends[1])


def _three(gain: Gain) -> tuple[float, float | None, float | None]:
    return gain.ratio, gain.low, gain.high


def _baseline_seconds(
    windows: Sequence[WindowRow], result: StudyResult, timeline: Timeline, levels: _Levels
) -> float | None:
    """Seconds of a step of the baseline: the mean over all windows that measured it, their first steps included, as if
    all had been when the first one was.
    """
    if result.baseline is None:
        return None
    rows = [row for row in windows if result.baseline.trial in (row.trial, row.confirms)]
    steps = sum(row.end - row.first for row in rows)
    return sum(_seconds_of(row, timeline) / levels.middle(row) for row in rows) / steps if steps else None


def _seconds_of(row: WindowRow, timeline: Timeline) -> float:
    """As the window told it; of one from before windows did, what its steps took that count in the end."""
    inside = (timeline.steps >= row.first) & (timeline.steps < row.end)
    return float(timeline.seconds[inside].sum()) if row.seconds is None else row.seconds


def _saved_seconds(row: WindowRow, timeline: Timeline, base: float | None, levels: _Levels) -> float | None:
    """An undone window is lost as a whole: its steps count where they were done again."""
    counts = 0 if row.undone else row.end - row.first
    return None if base is None else base * levels.middle(row) * counts - _seconds_of(row, timeline)


def _lost_seconds(windows: Sequence[WindowRow], saved: Sequence[float | None], baseline: int) -> float:
    """Seconds lost in slow windows; the baseline's stray about their own mean, which costs nothing. What was undone is
    told by the run, with the baseline's steps that others were compared with.
    """
    others = (
        seconds
        for row, seconds in zip(windows, saved, strict=True)
        if not row.undone and baseline not in (row.trial, row.confirms)
    )
    return sum(max(0.0, -(seconds or 0.0)) for seconds in others)


def _end_of_search(windows: Sequence[WindowRow]) -> int:
    """The step from which on no window measured what the run did in the end: undone steps are done again after it."""
    return max((row.first if row.undone else row.end for row in windows), default=0)


def _lost_since(first: int, timeline: Timeline, saved: Floats) -> float:
    """By the window that is being measured, which has no row until it is over."""
    return max(0.0, -float(saved[timeline.steps >= first].sum()))


def _now(flat: Mapping[str, Any], result: StudyResult) -> dict[str, Any]:
    """The values of the study's knobs that hold now."""
    keys = result.trials[0].config if result.trials else {}
    return {key: flat[key] for key in keys}


def _break_even(timeline: Timeline, saved: Floats | None) -> int | None:
    if saved is None or not len(saved) or saved.sum() <= 0:
        return None
    losing_steps = np.flatnonzero(saved.cumsum() <= 0)
    return int(timeline.steps[losing_steps[-1]]) + 1 if len(losing_steps) else int(timeline.steps[0])


def _curve(timeline: Timeline, tokens: int, saved: Floats | None) -> dict[str, Any]:
    """The run's rate and what was saved, over its steps and at the end of them."""
    places, seconds = _group_bounds(len(timeline.steps)), timeline.seconds
    return {
        "tokens_per_second": float(tokens / seconds[-LAST_STEPS:].mean()) if places else None,
        "curve_steps": [int(timeline.steps[end - 1]) for _, end in places],
        "curve_tokens_per_second": [float(tokens / seconds[a:b].mean()) for a, b in places],
        "curve_saved_seconds": [] if saved is None else [float(saved[:b].sum()) for _, b in places],
    }


def _group_bounds(steps: int) -> list[tuple[int, int]]:
    """Begin and end of at most ``POINTS`` groups of steps one after the other."""
    ends = np.unique(np.linspace(0, steps, min(steps, POINTS) + 1).astype(int))
    return [(int(a), int(b)) for a, b in itertools.pairwise(ends)]


def run_progress(report: LiveReport) -> str:
    """Where the run is, and what it went through."""
    text = f"step {report.step:,} of {report.steps:,}" + (", ended" if report.state == "ended" else "")
    if len(report.runs) > 1:
        restarts = len(report.runs) - 1
        times = "once" if restarts == 1 else f"{restarts:,} times"
        text += f"; started again {times}, {report.repeated_seconds:.1f} s of steps were done twice"
    return text


_SAVED = (
    "The baseline's seconds for the steps since the first window, minus the run's. Where the leader's steps around "
    "windows show that the machine became slower or faster, the baseline's are as much longer or shorter. Checkpoints, "
    "evaluations and the start of ranks are part of neither."
)


def tiles(report: LiveReport) -> list[tuple[str, str, str]]:
    """Name, value and explanation of each figure."""
    rate, name = report.tokens_per_second, "At the end" if report.state == "ended" else "Now"
    break_even = "not yet" if report.break_even_step is None else f"step {report.break_even_step:,}"
    return [
        (name, "-" if rate is None else f"{rate:,.0f} tokens/s", f"Over the last {LAST_STEPS} steps."),
        ("Invested", _seconds(report.invested_seconds),
         "Windows that were slower than the baseline, and steps that were undone."),
        ("Saved so far", _seconds(report.saved_seconds), _SAVED),
        ("Break-even", break_even, "From this step on the run is ahead of one that nobody tuned."),
    ]  # fmt: skip


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:+,.1f} s" if value < 0 else f"{value:,.1f} s"


def since_words(since: RecentGain) -> str:
    """What the values that the run has now have brought so far."""
    verb, sign = ("saved", 1) if since.seconds >= 0 else ("lost", -1)
    ends = sorted(sign * end for end in (since.low, since.high) if end is not None)
    interval = f" ({ends[0]:,.1f} to {ends[1]:,.1f})" if ends else ""
    return (
        f"since step {since.first:,}, with the values that it has now: {sign * since.seconds:,.1f} s{interval} {verb} "
        f"in {several(since.end - since.first, 'steps')}"
    )


def lines(report: LiveReport) -> list[str]:
    """What ``tune`` and ``show`` print of it."""
    text = [f"run {report.run}: {run_progress(report)}"]
    if report.saved_seconds is not None:
        break_even = "not yet" if report.break_even_step is None else f"at step {report.break_even_step:,}"
        text.append(
            f"tuning: {_seconds(report.invested_seconds)} invested in {several(len(report.windows), 'windows')}, "
            f"{_seconds(report.saved_seconds)} saved so far; break-even {break_even}"
        )
    if report.over:
        text.append(f"the search ended: {report.over}")
    if report.since is not None:
        text.append(since_words(report.since))
    return text
