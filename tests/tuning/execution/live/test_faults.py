"""Faults of a live study: what nobody answered, who was killed, and what a dead controller left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from engine.run import answers, commands, run_folder
from engine.run.outcome import Ending
from profilers.records.reader import RunRecords
from tests.support.waiting import wait_until
from tests.tuning.execution.live.test_live_study import PATIENCE_SECONDS, Live, live_study, losses
from tests.tuning.execution.live.test_lossy_windows import Lossy, lossy_study, undone
from tuning.execution.live import ongoing_run
from tuning.execution.live.ongoing_run import OngoingRun, runs_of
from tuning.execution.live.pinned_values import BY, PinnedValues
from tuning.spec.study_file import StudyFile
from tuning.storage import commands as inbox
from tuning.storage.journal import Journal
from tuning.storage.state import CHECK
from tuning.storage.study_folder import JOURNAL, StudyReader
from tuning.study import run_study
from workbench.analysis import studies

pytestmark = [pytest.mark.timeout(240), pytest.mark.drawn(6, of="windows of a real run")]
LABELS = {"study": "live", "trial": "0"}


class KilledError(BaseException):
    """What stands for the death of a controller in the middle of a window."""


def patient(seconds: float, **changes: Any) -> StudyFile:
    """A study whose ranks count as hung after so many seconds."""
    base: dict[str, Any] = live_study()._dump_given()["base"]
    base["train"] |= {"step_timeout_seconds": seconds}
    return live_study(base=base, live={"steps": 100_000, "max_slowdown": 100.0}, **changes)


def begun(tmp_path: Path, file: StudyFile) -> tuple[Live, OngoingRun]:
    """A study whose run goes on after one window."""
    live = Live(tmp_path / "home", file)
    live.folder.mkdir(parents=True)
    assert live.windows(usual(file), LABELS, lambda: False)[0].ending is Ending.COMPLETED
    run = live.starter.current
    assert run is not None
    return live, run


def usual(file: StudyFile, **values: Any) -> Any:
    return file.search_space.config(file.search_space.baseline[0]).with_values(values)


def launcher(run: OngoingRun) -> int:
    assert run.status.owner is not None
    return run.status.owner.pid


def test_a_turn_that_no_rank_answers_ends_as_its_run_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs it takes longer to call a rank hung than somebody once waited for the answer."""
    monkeypatch.setattr(ongoing_run, "PATIENCE_SECONDS", 4.0)
    live, run = begun(tmp_path, patient(6.0))
    os.kill(run.status.rank_pids[1], signal.SIGSTOP)
    try:
        outcome, _ = live.windows(usual(live.file, **{"batch.micro_batch": 2}), LABELS, lambda: False)
        assert (outcome.ending, outcome.rank) == (Ending.HANG, 1), outcome
        assert live.windows(usual(live.file), LABELS, lambda: False)[0].ending is Ending.COMPLETED
    finally:
        live.starter.stop()


def test_a_turn_that_is_carried_out_late_is_no_window_and_nobody_s_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher stands still while the run goes on; the next controller waits for what the one before ordered."""
    monkeypatch.setattr(ongoing_run, "PATIENCE_SECONDS", 1.0)
    live, run = begun(tmp_path, patient(2.0))
    os.kill(launcher(run), signal.SIGSTOP)
    try:
        outcome, _ = live.windows(usual(live.file, **{"batch.micro_batch": 2}), LABELS, lambda: False)
        assert (outcome.ending, "was not answered" in outcome.reason) == (Ending.STOPPED, True), outcome
        monkeypatch.setattr(ongoing_run, "PATIENCE_SECONDS", 20.0)
        following = Live(tmp_path / "home", live.file)
        timer = threading.Timer(2.0, os.kill, (launcher(run), signal.SIGCONT))
        timer.start()
        assert following.windows(usual(live.file), LABELS, lambda: False)[0].ending is Ending.COMPLETED
        assert run.config.batch.micro_batch == 1
        inbox.send(run.folder, commands.SET, {"batch.micro_batch": 4}, "study live, trial 7")
        late = following.windows(usual(live.file), LABELS, lambda: False)[0]
        assert late.ending is Ending.COMPLETED, late
        assert following.windows._hand.values == {}
    finally:
        os.kill(launcher(run), signal.SIGCONT)
        live.starter.stop()


def test_an_order_of_the_study_within_a_window_ends_it_and_is_not_held(tmp_path: Path) -> None:
    live, run = begun(tmp_path, patient(20.0))
    sent: list[str] = []

    def late() -> bool:
        if not sent:
            sent.append(inbox.send(run.folder, commands.SET, {"batch.micro_batch": 4}, "study live, trial 7"))
        return False

    try:
        long = usual(live.file, **{"train.steps": 100_000})
        outcome, _ = live.windows(long, LABELS, late)
        assert (outcome.ending, "earlier order" in outcome.reason) == (Ending.STOPPED, True), outcome
        assert live.windows._hand.values == {}
    finally:
        live.starter.stop()


def test_nobody_waits_for_the_answers_of_a_run_whose_process_was_killed(tmp_path: Path) -> None:
    _, run = begun(tmp_path, patient(60.0))
    os.kill(launcher(run), signal.SIGKILL)
    assert wait_until(lambda: run.outcome() is not None, PATIENCE_SECONDS)
    since = time.monotonic()
    assert answers.wait_for(run.folder, "never", 2, 60.0) == []
    with pytest.raises(ongoing_run.UnansweredError, match="ended before"):
        run.turn({"batch.micro_batch": 2}, "somebody")
    assert time.monotonic() - since < 10


_KILLED_WHILE_STARTING = """
import os, signal, sys
from pathlib import Path
from engine.run import child_process
from tests.tuning.execution.live.test_faults import patient, usual
from tuning.execution.live.starter import Starter

start = child_process.start

class Output:
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def readline(self): os.kill(os.getpid(), signal.SIGKILL)

def started(*given, **named):
    child = start(*given, **named)
    child.stdout = Output()
    return child

child_process.start = started
home, folder = map(Path, sys.argv[1:])
file = patient(20.0)
Starter(home, folder, file.name, file.live).run(usual(file))
"""


def test_a_run_whose_controller_was_killed_as_it_started_it_is_taken_over(tmp_path: Path) -> None:
    live = Live(tmp_path / "home", patient(20.0))
    live.folder.mkdir(parents=True)
    asked = [sys.executable, "-c", _KILLED_WHILE_STARTING, str(live.home), str(live.folder)]
    assert subprocess.run(asked, check=False, timeout=100).returncode == -signal.SIGKILL
    try:
        run = live.starter.run(usual(live.file))
        of_study = [
            path.parent.name
            for path in live.home.glob(f"*/{run_folder.STATUS}")
            if "live" in run_folder.RunStatus.from_folder(path.parent).labels
        ]
        assert of_study == [run.id] == runs_of(live.folder)
        assert wait_until(lambda: run.step > 3, PATIENCE_SECONDS)
    finally:
        live.starter.stop()


@pytest.mark.parametrize(("dies", "purpose"), [(False, "sampler"), (True, "sampler"), (False, CHECK)])
def test_what_a_killed_controller_tried_is_undone_by_the_next(
    dies: bool, purpose: str, tmp_path: Path
) -> None:
    """On the run itself, and where that dies, too, by going on from before it. A check is no other window."""
    base: dict[str, Any] = lossy_study(["none", "topk"])._dump_given()["base"]
    base["train"] = {"steps": 160, "warmup": 2}  # long enough to be killed in on a fast machine
    file = lossy_study(["none", "topk"], base=base, live={"steps": 4000, "checkpoint_every": 4})
    tuned = Lossy(tmp_path, file)
    tuned.folder.mkdir(parents=True)
    labels = LABELS | {"purpose": purpose}
    tuned.windows(usual(file), labels, lambda: False)
    run = tuned.starter.current
    assert run is not None

    def killed() -> bool:
        if undone(run.folder) and run.step > (copy := undone(run.folder)[0]["step"]) + 12:
            if dies:
                os.kill(launcher(run), signal.SIGKILL)
                assert wait_until(lambda: run.outcome() is not None, PATIENCE_SECONDS)
            raise KilledError(copy)
        return False

    try:
        with pytest.raises(KilledError) as caught:
            tuned.windows(usual(file, **{"compression.method": "topk"}), labels, killed)
        copy = caught.value.args[0]
        following = Lossy(tmp_path, file)
        outcome, _ = following.windows(usual(file), labels, lambda: False)
        assert outcome.ending is Ending.COMPLETED, outcome
        assert following.starter.revertible_steps is None
        if dies:
            point = next(
                one.data
                for one in RunRecords(following.run / run_folder.RECORDS).events(0)
                if one.kind == "resumed"
            )
            assert following.run != run.folder and point["step"] <= copy
        else:
            assert [one["step"] for one in undone(run.folder)] == [copy, copy]
            assert following.run == run.folder and min(losses(run.folder)) == 0
    finally:
        tuned.starter.stop()
        Lossy(tmp_path, file).starter.stop()


def test_a_baseline_in_whose_window_somebody_set_a_value_is_measured_with_it(tmp_path: Path) -> None:
    base: dict[str, Any] = live_study()._dump_given()["base"]
    base["train"] |= {"steps": 40}
    live = Live(
        tmp_path / "home", live_study(base=base, trials=3, live={"steps": 100_000, "max_slowdown": 100.0})
    )
    live.folder.mkdir(parents=True)
    sent: list[str] = []

    def update(_: Any) -> None:
        run = live.starter.current
        if run is not None and run.step > 3 and not sent:
            sent.append(inbox.send(run.folder, commands.SET, {"memory.recompute": "full"}, "somebody"))

    def windows(config: Any, labels: dict[str, str], should_stop: Any, on_start: Any = None) -> Any:
        def looked() -> Any:
            update(None)
            return should_stop()

        return live.windows(config, labels, looked, on_start)

    try:
        run_study(live.file, live.folder, windows)
        trials = StudyReader(live.folder).view().journal.trials
        assert (trials[0].source, trials[0].outcome) == ("baseline", "stopped"), trials[0]
        found = studies.document(live.folder).result
        assert found.baseline is not None
        assert found.baseline.config["memory.recompute"] == "full" and found.baseline.value
    finally:
        live.starter.stop()


def test_unpin_lifts_what_the_run_was_given_by_hand(tmp_path: Path) -> None:
    """Whoever asks, the controller that saw it or the next one; what the study could not pin stays, too."""
    hand = PinnedValues(tmp_path)
    hand.hold({"memory.recompute": "full"})
    hand.hold({"overlap.prefetch": 2})
    assert hand.values == {"memory.recompute": "full", "overlap.prefetch": 2}
    journal = Journal(tmp_path / JOURNAL)
    for command in inbox.pending_commands(tmp_path, []):
        known = {"id": command.id, "command": command.command, "arguments": command.arguments}
        journal.append(
            "command", **known, by=BY, accepted="overlap.prefetch" not in command.arguments, reason=""
        )
    assert PinnedValues(tmp_path).values == hand.values == {"memory.recompute": "full", "overlap.prefetch": 2}
    about = {"id": "x", "command": "unpin", "arguments": {"memory.recompute": None}, "by": "command line"}
    journal.append("command", **about, accepted=True, reason="")
    assert PinnedValues(tmp_path).values == hand.values == {"overlap.prefetch": 2}
    hand.release()
    assert hand.values == {}
    journal.close()
