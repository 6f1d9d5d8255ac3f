"""What tuning a run while it goes has cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.config.run_config import RunConfig
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from profilers.records.writer import RecordWriter
from tests.support.samples import step_sample
from tests.support.studies.offline import OfflineExecutor, build_summary
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.executor import Ran
from tuning.report.study_result import Gain
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study
from workbench.analysis.live_report import (
    LiveReport,
    RecentGain,
    WindowRow,
    _gain_of,
    _gain_since,
    _Levels,
    _lost_seconds,
    _lost_since,
    _saved_seconds,
    _untuned_times,
    _windows,
    _with_baseline_s,
    since_words,
    tiles,
)
from workbench.analysis.live_timeline import AGAIN, Timeline, ValueChange, changes_of, timeline_of
from workbench.figures.search import live as figures
from workbench.pages.study.live import _leader_ratio_text


def row(trial: int, confirms: int | None = None) -> WindowRow:
    return WindowRow(trial, confirms, "", "run", 0, 1, "completed", 1.0, None, None, None, None)


def test_windows_of_the_baseline_cost_nothing() -> None:
    windows = [row(0), row(1), row(2), row(3), row(4, confirms=0), row(5, confirms=2)]
    saved = [-3.0, 5.0, -1.0, None, -7.0, -0.5]
    assert _lost_seconds(windows, saved, baseline=0) == pytest.approx(1.5)
    assert _lost_seconds(windows[:1], saved[:1], baseline=0) == 0.0
    undone = [replace(row(1), undone=True)]
    assert _lost_seconds(undone, [-2.0], baseline=0) == 0.0, "the run tells what was undone"


def test_what_the_window_under_way_has_lost_is_invested_already() -> None:
    """Or the run would have lost seconds that nobody invested."""
    steps = np.arange(10)
    timeline = Timeline(steps, np.ones(10), np.zeros(10))
    assert _lost_since(6, timeline, np.where(steps < 6, 1.0, -0.5)) == pytest.approx(2.0)
    assert _lost_since(6, timeline, np.full(10, 0.5)) == 0.0
    assert _lost_since(10, timeline, np.full(10, -1.0)) == 0.0


def test_what_was_lost_is_not_called_saved() -> None:
    assert "12.0 s (10.0 to 14.0) saved in 5 steps" in since_words(RecentGain(5, 10, 12.0, 10.0, 14.0))
    assert "2.0 s (-1.0 to 5.0) lost in 5 steps" in since_words(RecentGain(5, 10, -2.0, -5.0, 1.0))
    assert "step 5, with the values that it has now: 1.0 s saved" in since_words(
        RecentGain(5, 10, 1.0, None, None)
    )


class Beside(OfflineExecutor):
    """Windows that are a quarter faster than the leader around them."""

    def play(self, config: RunConfig, run: str) -> Ran:
        told = {"leader_level": 1.1, "leader_ratio": 1.25, "leader_ratio_low": 1.1, "leader_ratio_high": 1.4}
        return RunOutcome(Ending.COMPLETED), build_summary(run, config, [1.0] * 4, **told)


def test_a_window_tells_how_it_did_beside_the_leader_and_what_settled(tmp_path: Path) -> None:
    """From the journal and the window's own folder to the row of page and --json."""
    file = live_study(confirm_repeats=0, trials=2)
    result = run_study(file, tmp_path / STUDIES / file.name, Beside())
    names = [row.run for row in result.trials]
    covered = {"run": "the-run", "first": 4, "end": 16, "seconds": 3.0, "settling": 3}
    (tmp_path / str(names[0])).mkdir()
    run_folder.write_json(tmp_path / str(names[0]) / run_folder.STATUS, {"window": covered})
    [found] = _windows(tmp_path, result)
    assert (found.leader_ratio, found.leader_ratio_low, found.leader_ratio_high) == (1.25, 1.1, 1.4)
    assert (found.leader_level, found.settling_steps, found.first, found.end) == (1.1, 3, 4, 16)
    assert found.over_baseline == 1.0, "it is the baseline, whatever its level says"
    assert _leader_ratio_text(found) == "1.25 x (1.10 to 1.40)" and _leader_ratio_text(row(0)) == ""


def test_what_a_machine_that_becomes_faster_saves_is_not_the_tuners() -> None:
    """Steps take half as long from the second window on, and the leader's beside it, too: nothing was saved."""
    windows = [row(0), replace(row(1), first=20, end=30, leader_level=0.5, seconds=5.0)]
    windows[0] = replace(windows[0], end=10, seconds=10.0)
    steps = np.arange(40)
    seconds = np.where(steps < 15, 1.0, 0.5)
    timeline = Timeline(steps, seconds, np.zeros(40))
    levels = _Levels(windows)
    assert levels.interpolate(steps)[[0, 5, 25, 39]] == pytest.approx([1.0, 1.0, 0.5, 0.5])
    assert _saved_seconds(windows[1], timeline, 1.0, levels) == pytest.approx(0.0)
    equal, better = Gain(1.0, 0.9, 1.1, "undecided"), Gain(2.0, 1.5, 3.0, "better")
    assert _untuned_times(timeline, 1.0, levels, 30, equal)[30:] == pytest.approx(seconds[30:])
    assert _untuned_times(timeline, 2.0, levels, 30, better)[30:] == pytest.approx(2 * seconds[30:])
    assert _untuned_times(timeline, 1.0, levels, 30, None)[30:] == pytest.approx(1.0)


def test_what_slows_a_run_down_after_the_search_saves_nothing() -> None:
    """Steps of 1 s beside 3 s of the baseline's, as measured; later they take 4 s for a while: 2 s each are saved."""
    steps = np.arange(30)
    timeline = Timeline(steps, np.where(steps < 20, 1.0, 4.0), np.zeros(30))
    triple, worse = Gain(3.0, 2.5, 3.5, "better"), Gain(0.5, 0.4, 0.6, "worse")
    saved = _untuned_times(timeline, 3.0, _Levels([]), 10, triple) - timeline.seconds
    assert saved[:20].sum() == pytest.approx(10 * 2.0 + saved[10:20].sum())
    assert saved[10:].sum() == pytest.approx(20 * 2.0)
    lost = _untuned_times(timeline, 0.5, _Levels([]), 10, worse) - timeline.seconds
    assert lost[10:] == pytest.approx(-timeline.seconds[10:] / 2), "what is lost is lost with every step"


def test_what_the_last_values_brought_is_by_the_gain_that_is_told(tmp_path: Path) -> None:
    file = live_study(confirm_repeats=0, trials=2)
    result = run_study(file, tmp_path / STUDIES / file.name, Beside())
    timeline = Timeline(np.arange(10), np.full(10, 0.5), np.zeros(10))
    found = _gain_since(4, result, timeline, 1.0, (Gain(2.0, 1.5, None, "better"), 0.5))
    assert found == RecentGain(4, 10, pytest.approx(3.0), pytest.approx(1.5), None)
    assert _gain_of(dict(result.best.config), result) == result.gain if result.best else False
    assert _gain_of(dict(result.trials[0].config) | {"batch.micro_batch": 99}, result) is None


def test_a_turn_holds_until_the_next_one_and_one_that_was_done_twice_counts_once(tmp_path: Path) -> None:
    """The first run dies after step 9, the second goes on from step 5 with what it began with."""
    first, second = (tmp_path / name for name in ("first", "second"))
    for run, begin, end, turns in ((first, 0, 10, (3, 7)), (second, 5, 12, (8,))):
        (run / run_folder.RECORDS).mkdir(parents=True)
        run_folder.write_json(run / run_folder.CONFIG, live_study().config.model_dump(mode="json"))
        writer = RecordWriter(run / run_folder.RECORDS, "rank-0")
        for step in range(begin, end):
            writer.write(step_sample(step, step_seconds=1.0))
        for step in turns:
            about = {"key": "batch.micro_batch", "old": 1, "new": step}
            writer.event("changed", step=step, by="somebody", id="", **about)
        writer.close()
    timeline = timeline_of([first, second])
    found = changes_of([first, second], ["batch.micro_batch"], timeline, np.ones(12))
    told = [(each.step, each.end, each.values["batch.micro_batch"], each.by) for each in found]
    assert told == [(3, 5, 3, "somebody"), (5, 8, 1, AGAIN), (8, 12, 8, "somebody")]
    assert [each.saved_seconds for each in found] == [2.0, 3.0, 4.0]


def test_what_a_turn_saved_is_as_unsure_as_the_baseline_is() -> None:
    """Ten steps of 2 s in place of 3 s, within 1 s; the baseline's rate is known to a tenth, 3 s of its 30."""
    steps = np.arange(20)
    timeline = Timeline(steps, np.full(20, 2.0), np.zeros(20))
    row = ValueChange(10, 20, {"batch.micro_batch": 4}, "somebody", 10.0, 9.0, 11.0)
    found = _with_baseline_s(row, timeline, np.full(20, 3.0), 0.1)
    assert found.saved_seconds == 10.0
    assert (found.saved_low, found.saved_high) == pytest.approx((10 - 10**0.5, 10 + 10**0.5))
    assert _with_baseline_s(replace(row, saved_low=None), timeline, np.full(20, 3.0), 0.1).saved_high == 11.0


def test_the_chart_marks_each_turn_and_says_what_it_brought() -> None:
    turned = ValueChange(7, 12, {"batch.micro_batch": 4, "overlap.bucket_mb": 1.0}, "somebody", -2.5)
    report = LiveReport(
        "run", ["run"], "running", 12, 100, {}, 1.0, -2.5, None, None, 0.0, None, [], "", "", None, [turned],
        96.0, [6, 11], [64.0, 128.0], [0.0, -2.5],
    )  # fmt: skip
    assert tiles(report)[0][:2] == ("Now", "96 tokens/s")
    assert tiles(replace(report, state="ended"))[0][0] == "At the end"
    [marks] = [trace for trace in figures.live(report).data if trace.name == "changed"]
    assert (list(marks.x), list(marks.y)) == ([7], [128.0])
    words = (
        "from step 7 on batch.micro_batch = 4, overlap.bucket_mb = 1.0 (somebody): -2.5 s saved until step 12"
    )
    assert list(marks.text) == [words]
    assert not [trace for trace in figures.live(replace(report, changes=[])).data if trace.name == "changed"]
