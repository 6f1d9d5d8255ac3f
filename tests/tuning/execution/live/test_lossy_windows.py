"""Lossy windows of a live study: on the same steps and text as the baseline's, judged by the same held-out text."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.checkpoint_folder import complete, name_of
from engine.config.errors import InputError
from engine.config.run_config import load
from engine.run import run_folder
from engine.run.outcome import Ending
from profilers.records.reader import RunRecords
from profilers.records.schema import UNDONE_EVENT
from tests.tuning.execution.live.test_live_study import STEPS, Live, live_study, losses
from tuning.execution.live import ongoing_run, windows
from tuning.execution.live.limits import SlowdownBudget
from tuning.execution.live.transition import WindowTransitions, live_values
from tuning.execution.live.windows import LiveWindows
from tuning.spec.study_file import StudyFile
from workbench.analysis import live_report, studies

pytestmark = pytest.mark.drawn(6, of="windows of a real run")


def lossy_study(values: list[Any], **changes: Any) -> StudyFile:
    """Turns the share that is sent of a gradient."""
    base: dict[str, Any] = live_study()._dump_given()["base"]
    base = base | {"compression": {"ratio": 0.001, "error_feedback": False}}
    space = {"compression.method": values}
    return live_study(**{"base": base, "space": space, "confirm_repeats": 0} | changes)


class Lossy(Live):
    """With losses that are compared."""

    def __init__(self, home: Path, file: StudyFile) -> None:
        super().__init__(home, file)
        assert file.live is not None
        baseline = file.search_space.config(file.search_space.baseline[0])
        self.windows = LiveWindows(
            home, self.starter, SlowdownBudget(file.live), WindowTransitions(baseline, file.guard)
        )


def undone(folder: Path) -> list[dict[str, Any]]:
    return [one.data for one in RunRecords(folder / run_folder.RECORDS).events(0) if one.kind == UNDONE_EVENT]


@pytest.mark.timeout(240)
def test_a_lossy_window_is_on_the_steps_of_the_baseline_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """int8 loses next to nothing and stays; a thousandth of a gradient learns nothing more, and is undone. Ranks wait
    for what comes next: no step is done for nothing but those of the windows.
    """
    monkeypatch.setattr(ongoing_run, "WAIT_SECONDS", 15.0)
    monkeypatch.setattr(windows, "IDLE_SECONDS", 60.0)
    tuned = Lossy(
        tmp_path,
        lossy_study(["none", "int8", "topk"], trials=3, loss_guard={"threshold": 0.01, "min_steps": 1}),
    )
    found = tuned.search()
    rows = {row["config"]["compression.method"]: row for row in found["trials"]}
    exact, good, bad = rows["none"], rows["int8"], rows["topk"]
    assert exact["reference_loss"] is None and exact["validation_loss"] > 0
    assert {good["reference_loss"], bad["reference_loss"]} == {exact["validation_loss"]}, "of the same steps"
    assert good["guard"]["state"] == "satisfied" and good["validation_loss"] == pytest.approx(
        exact["validation_loss"], rel=1e-2
    )
    assert bad["guard"]["state"] == "violated" and bad["validation_loss"] > 1.01 * exact["validation_loss"]
    for row in (good, bad):
        assert row["leader_trial"] == exact["number"] and row["over_baseline"] == row["leader_ratio"] > 0
    firsts = {first for first, _ in tuned.covered(found)}
    assert len(firsts) == 1
    assert tuned.windows._transitions._spoilt == (found["trials"][-1] == bad)
    folder = tuned.to_the_end()
    assert len(losses(folder)) == STEPS
    assert {one["end"] - one["step"] for one in undone(folder)} == {tuned.file.config.train.steps}
    report = live_report.report_live_study(tuned.folder, studies.document(tuned.folder).result)
    assert report is not None and report.repeated_seconds == pytest.approx(
        sum(one["seconds"] for one in undone(folder))
    )
    lost = [row for row in report.windows if row.undone]
    assert len(lost) >= 2 and all((row.saved_seconds or 0) < 0 for row in lost)
    assert sorted(row.loss_increase > 0.01 for row in report.windows if row.loss_increase is not None) == [
        False,
        True,
    ]
    since = report.since
    assert since is not None and since.end == STEPS == report.step
    assert since.low is not None and since.high is not None and since.low <= since.seconds <= since.high
    assert "since step" in live_report.lines(report)[-1]


@pytest.mark.timeout(240)
def test_ranks_do_not_wait_for_what_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last window has the values that the run is left with: they are told to go on, after no wait of a minute."""
    monkeypatch.setattr(ongoing_run, "WAIT_SECONDS", 60.0)
    monkeypatch.setattr(windows, "IDLE_SECONDS", 60.0)
    tuned = Lossy(tmp_path, lossy_study(["none", "int8"]))
    tuned.folder.mkdir(parents=True)
    usual = tuned.file.search_space.config(tuned.file.search_space.baseline[0])
    lossy, labels = usual.with_values({"compression.method": "int8"}), {"study": "live", "trial": "0"}
    for config in (usual, lossy):
        outcome, _ = tuned.windows(config, labels | {"purpose": "sampler"}, lambda: False)
        assert outcome.ending is Ending.COMPLETED, outcome
    tuned.windows.leave(lossy, "live")
    run = tuned.starter.current
    assert run is not None
    told = [one.data for one in RunRecords(run.folder / run_folder.RECORDS).events(0) if one.kind == "order"]
    assert told[-1]["command"] == "set" and told[-1]["note"].startswith("nothing to change")
    assert len(losses(tuned.to_the_end())) == STEPS


@pytest.mark.timeout(240)
def test_a_copy_is_returned_to_whatever_held_before_it(tmp_path: Path) -> None:
    """An exact window of other values comes before the baseline's that the lossy one is held against."""
    base: dict[str, Any] = lossy_study(["none", "int8"])._dump_given()["base"]
    space = {"compression.method": ["none", "int8"], "batch.micro_batch": [1, 4]}
    tuned = Lossy(tmp_path, lossy_study(["none", "int8"], base=base, space=space))
    tuned.folder.mkdir(parents=True)
    usual = tuned.file.search_space.config(tuned.file.search_space.baseline[0])
    small = usual.with_values({"batch.micro_batch": 4})
    labels = {"study": "live", "trial": "0", "purpose": "sampler"}
    for config in (usual, small, usual.with_values({"compression.method": "int8"})):
        outcome, summary = tuned.windows(config, labels, lambda: False)
        assert outcome.ending is Ending.COMPLETED, outcome
    assert live_values(load(tuned.run / run_folder.CONFIG), config) == {}
    assert summary.reference_loss == pytest.approx(summary.validation_loss, rel=0.02)
    tuned.starter.stop()


@pytest.mark.timeout(240)
def test_a_run_that_dies_in_a_lossy_window_goes_on_from_before_it(tmp_path: Path) -> None:
    """Though it was saved in that window, too."""
    base: dict[str, Any] = lossy_study(["none", "int8"])._dump_given()["base"]
    base["train"] = {"steps": 200, "warmup": 2}
    tuned = Lossy(
        tmp_path, lossy_study(["none", "int8"], base=base, live={"steps": 2000, "checkpoint_every": 4})
    )
    tuned.folder.mkdir(parents=True)
    usual = tuned.file.search_space.config(tuned.file.search_space.baseline[0])
    labels = {"study": "live", "trial": "0", "purpose": "sampler"}

    def kill_late() -> bool:
        run = tuned.starter.current
        assert run is not None
        if 20 <= run.step < 190 and complete(run.folder)[-1].name > name_of(12):
            assert run.status.owner is not None
            os.kill(run.status.owner.pid, signal.SIGKILL)
        return False

    tuned.windows(usual, labels, lambda: False)
    run = tuned.starter.current
    assert run is not None
    tuned.windows(usual.with_values({"compression.method": "int8"}), labels, kill_late)
    assert run.outcome() is not None
    tuned.windows(usual, labels, lambda: False)
    copy = next(one["step"] for one in undone(run.folder))
    point = next(
        one.data for one in RunRecords(tuned.run / run_folder.RECORDS).events(0) if one.kind == "resumed"
    )
    assert tuned.run != run.folder and point["run"] == run.id and point["step"] <= copy
    tuned.starter.stop()


def test_without_held_out_text_nothing_lossy_is_searched() -> None:
    base = lossy_study(["none", "int8"])._dump_given()["base"]
    base["train"]["validation_batches"] = 0
    with pytest.raises(InputError, match=r"base\.train\.validation_batches=0") as refused:
        lossy_study(["none", "int8"], base=base)
    assert "held-out text" in refused.value.remedy
    usual = live_study(base=base | {"compression": {}}, space=None)
    assert not usual.turns_lossy and usual.knobs
