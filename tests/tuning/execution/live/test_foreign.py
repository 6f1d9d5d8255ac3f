"""A trainer that is not this project's, on two real gloo ranks, tuned in its values while it goes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.rank.foreign import Tuned
from engine.run import run_folder
from engine.run.outcome import Ending
from engine.run.run_folder import RunStatus
from engine.session import Session
from tests.support.foreign import loop
from tests.support.waiting import wait_until
from tuning.execution.command.process import _GUARD, MARK
from tuning.execution.executor import EndOfTrialsError
from tuning.execution.live.bridge import FOLDER
from tuning.execution.live.exploitation import train_to_completion
from tuning.execution.live.limits import SlowdownBudget
from tuning.execution.live.ongoing_run import OngoingRun
from tuning.execution.live.starter import Starter
from tuning.execution.live.windows import LiveWindows
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.study_folder import STUDIES, StudyReader
from tuning.study import run_study
from workbench.analysis import live_report, studies
from workbench.export.launchers import external_trainer as export
from workbench.export.launchers import torchrun
from workbench.home import runs

pytestmark = pytest.mark.drawn(5, of="live tuning of foreign trainers")

LOOP = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 {loop.__file__}"
PATIENCE_SECONDS = 60.0


def study(steps: int = 100_000, **changes: Any) -> StudyFile:
    tree: dict[str, Any] = {
        "name": "foreign",
        "trials": 4,
        "confirm_repeats": 0,
        "live": {"steps": steps, "max_slowdown": 10.0, "look_again": None, "trainer": {"command": f"{LOOP} {steps}"}},
        "base": {
            "batch": {"global_batch": 8},
            "data": {"sequence_length": 8},
            "train": {"steps": 12, "warmup": 2},
            "trainer": {"accumulation": 1, "bucket_mb": 25.0},
        },
        "space": {"trainer.accumulation": [1, 2, 4]},
    }  # fmt: skip
    return parse(tree | changes)


def test_a_loop_may_call_the_steps_by_their_earlier_names() -> None:
    assert (Tuned.before, Tuned.after) == (Tuned.begin_step, Tuned.end_step)


class Tuning:
    """A study of the loop in a home of its own."""

    def __init__(self, home: Path, file: StudyFile) -> None:
        assert file.live is not None
        self.home, self.file, self.folder = home, file, home / STUDIES / file.name
        self.folder.mkdir(parents=True)
        self.starter = Starter(home, self.folder, file.name, file.live)
        self.windows = LiveWindows(home, self.starter, SlowdownBudget(file.live))

    def begun(self) -> OngoingRun:
        """The run, once its loop goes."""
        run = self.starter.run(self.file.config)
        assert wait_until(lambda: run.step > 2, PATIENCE_SECONDS)
        return run

    def noted(self, rank: int) -> list[dict[str, Any]]:
        """The values of each step, as a rank had them."""
        run = self.starter.current
        assert run is not None
        lines = (run.folder / FOLDER / f"rank-{rank}.jsonl").read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        assert [step for step, _ in found] == list(range(len(found)))
        return [values for _, values in found]


@pytest.fixture
def tuning(tmp_path: Path) -> Iterator[Tuning]:
    made = Tuning(tmp_path / "home", study())
    yield made
    made.starter.stop()


@pytest.mark.timeout(120)
def test_values_hold_on_all_ranks_from_the_same_step_and_one_that_is_refused_is_told(tuning: Tuning) -> None:
    run = tuning.begun()
    turned = run.turn({"trainer.accumulation": 2, "trainer.bucket_mb": 5.0}, "test")
    again = run.turn({"trainer.accumulation": 2}, "test")
    assert turned.has_changed and not again.has_changed
    with pytest.raises(InputError, match=r"trainer.accumulation=3.*refuses.*must divide 8"):
        run.turn({"trainer.accumulation": 3}, "test")
    with pytest.raises(
        InputError, match=r"trainer.hook='none'.*when a run starts.*trainer.bucket_mb"
    ) as refused:
        run.turn({"trainer.hook": "none"}, "test")
    assert str(refused.value).count("trainer.hook='none'") == 1
    with pytest.raises(InputError, match=r"back.*no copy"):
        run.turn({}, "test", "back")
    assert run.config.trainer == {"accumulation": 2, "bucket_mb": 5.0}
    later = run.step + 5
    assert wait_until(lambda: run.step > later, PATIENCE_SECONDS)
    # A loop that is stopped ends its ranks in the middle of a line; whole lines alone are read.
    usual, other = {"accumulation": 1, "bucket_mb": 25.0}, {"accumulation": 2, "bucket_mb": 5.0}
    for rank in range(2):
        found = tuning.noted(rank)
        assert found[: turned.step] == [usual] * turned.step
        assert set(map(str, found[turned.step :])) == {str(other)}
    run.refresh()
    measured = run.steps_since(turned.step)
    assert 0 < measured.measured_steps == measured.steps - measured.settling
    row = next(row for row in runs.load(run.folder).changes if row.key == "trainer.bucket_mb")
    assert (row.step, row.old, row.new, row.by) == (turned.step, 25.0, 5.0, "test")


@pytest.mark.timeout(120)
def test_a_study_finds_the_planted_value_and_exports_it(tmp_path: Path) -> None:
    tuning = Tuning(tmp_path / "home", study(300))
    result = run_study(tuning.file, tuning.folder, tuning.windows)
    assert result.state == "ended" and result.best is not None
    assert result.best.config["trainer.accumulation"] == 2
    outcome = train_to_completion(
        tuning.windows, tuning.file.search_space.config(result.best.config), "foreign", lambda: False
    )
    assert not isinstance(outcome, str) and outcome is not None and outcome.ending is Ending.COMPLETED
    assert len(tuning.noted(0)) == 300 and tuning.noted(1)[-1]["accumulation"] == 2

    report = live_report.report_live_study(tuning.folder, result)
    assert report is not None and (report.step, report.steps) == (300, 300)
    assert report.now["trainer.accumulation"] == 2 and (report.saved_seconds or 0) > 0
    summary = runs.load(tuning.home / report.run).summary
    assert summary is not None and summary.mfu is None  # nobody described its model

    view = runs.load(tuning.home / result.best.run)
    bundle = export.render(view, studies.document(tuning.folder))
    assert json.loads(bundle.files["values.json"])["values"] == {"accumulation": 2, "bucket_mb": 25.0}
    assert f"{LOOP} 300" in bundle.files["run.sh"]
    with pytest.raises(InputError, match=r"--to=.?torchrun.*give trainer"):
        torchrun.render(view)


@pytest.mark.timeout(120)
def test_a_trainer_that_dies_ends_the_study_with_one_line(tmp_path: Path) -> None:
    tuning = Tuning(tmp_path / "home", study(space={"trainer.accumulation": [1, 99]}))
    result = run_study(tuning.file, tuning.folder, tuning.windows)
    assert result.state == "ended"
    trial = next(row for row in result.trials if row.config["trainer.accumulation"] == 99)
    assert trial.outcome == "crashed"
    (note,) = [note for note in StudyReader(tuning.folder).view().journal.notes if "the search ended" in note]
    assert "the trainer ended with exit code 7, after step" in note and "trainer.log" in note
    assert len(note.splitlines()) == 1
    with pytest.raises(EndOfTrialsError, match="exit code 7"):
        tuning.starter.run(tuning.file.config)


def left(run: OngoingRun) -> list[psutil.Process]:
    """What the bridge of a run started and that lives yet, by the mark in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            marked = process.environ().get(MARK) == run.id and process.pid != os.getpid()
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", ["bridge", "launcher", "guard"])
def test_a_kill_leaves_no_rank_behind(tmp_path: Path, victim: str) -> None:
    """Neither of who follows the trainer, nor of its launcher, nor of what stands between them."""
    tuning = Tuning(tmp_path / "home", study())
    run = tuning.begun()
    known = {process.pid: process for process in left(run)}
    guard = next(process for process in known.values() if _GUARD in process.cmdline())
    (launcher,) = guard.children()
    ranks = launcher.children()
    assert len(ranks) == 2 and {launcher.pid, *(rank.pid for rank in ranks)} <= known.keys()
    bridge = guard.parent()
    assert bridge is not None
    {"bridge": bridge, "launcher": launcher, "guard": guard}[victim].kill()
    assert wait_until(lambda: not left(run), PATIENCE_SECONDS)
    assert not [rank for rank in ranks if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]
    if victim == "bridge":
        return  # nobody is there to say how it ended
    assert wait_until(lambda: run.outcome() is not None, PATIENCE_SECONDS)
    outcome = run.outcome()
    words = {"launcher": "the trainer was killed by SIGKILL", "guard": "watched over the trainer was killed"}
    assert outcome is not None and outcome.ending is Ending.CRASHED and words[victim] in outcome.reason


@pytest.mark.timeout(60)
def test_one_that_cannot_start_or_tells_nothing_is_told(tmp_path: Path) -> None:
    nothing = study(live={"trainer": {"command": "no-such-trainer"}})
    with pytest.raises(InputError, match=r"live.trainer.*no-such-trainer"):
        Tuning(tmp_path / "one", nothing).starter.run(nothing.config)
    silent = study(live={"trainer": {"folder": str(tmp_path / "nobody"), "silent_seconds": 0.5}})
    run = Tuning(tmp_path / "two", silent).starter.run(silent.config)
    assert wait_until(lambda: RunStatus.from_folder(run.folder).state == "ended", PATIENCE_SECONDS)
    outcome = run.outcome()
    assert (
        outcome is not None and outcome.ending is Ending.HANG and "told nothing for 0.5 s" in outcome.reason
    )


@pytest.mark.timeout(60)
def test_a_trainer_that_somebody_else_starts_is_followed_with_the_values_that_it_has(tmp_path: Path) -> None:
    """By the protocol's two files alone: this one is no process, and counts steps of half the tokens twice."""
    place = tmp_path / "place"
    place.mkdir()
    lines = [
        {"event": "begin", "values": {"accumulation": 4, "bucket_mb": 25.0}, "ranks": 1},
        "no document",
        *({"event": "step", "step": step, "seconds": 0.5, "tokens": 32} for step in range(4)),
    ]
    told = place / "trainer.jsonl"
    told.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = study(live={"trainer": {"folder": str(place)}})
    run = Tuning(tmp_path / "home", file).starter.run(file.config)
    assert wait_until(lambda: run.step == 3, PATIENCE_SECONDS)
    assert run.config.trainer["accumulation"] == 4
    run.refresh()
    assert run.steps_since(0).seconds == pytest.approx(4 * 1.0)
    with told.open("a") as more:
        more.write('{"event": "end"}\n')
    assert wait_until(lambda: run.outcome() is not None, PATIENCE_SECONDS)
    outcome = run.outcome()
    assert outcome is not None and outcome.ending is Ending.COMPLETED
    assert run_folder.read_json(run.folder / run_folder.SUMMARY)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"live": {}}, ("base.trainer", "live.trainer")),
        ({"live": {"trainer": {}}}, ("live.trainer", "command")),
        ({"ranks": 2}, ("ranks", "the trainer's own")),
        ({"objective": "mfu"}, ("objective", "tokens_per_second")),
        ({"space": {"batch.micro_batch": [1, 2]}}, ("space.batch.micro_batch", "trainer.accumulation")),
        ({"space": {"trainer.hook": [1, 2]}}, ("space.trainer.hook", "unknown key")),
        ({"space": None}, ("space", "trainer.NAME")),
    ],
)
def test_what_cannot_be_asked_of_a_trainer_is_refused(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        study(**changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_our_own_ranks_refuse_such_values(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"trainer": {"hook": "none"}})
    with Session(tmp_path) as session, pytest.raises(InputError, match=r"trainer='hook'.*live.trainer"):
        session.execute(config, {}, lambda: False)
