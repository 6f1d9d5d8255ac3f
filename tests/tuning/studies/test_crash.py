"""The controller dies anywhere: nothing is lost, nothing counts twice."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.studies.fake import Machine, run_study, study
from tuning.sampling.optuna_export import rebuild
from tuning.space.points import point_key
from tuning.storage import journal, study_folder

ROOT = Path(__file__).parents[3]
TRIALS = 3
SPACE = {"parallel.tp": [1, 2, 4], "batch.micro_batch": [1, 2, 4]}
FILE = study(trials=TRIALS, space=SPACE, confirm_repeats=1, confirm_runners_up=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole") / "first"
    run_study(FILE, folder, Machine())
    return (folder / "journal.jsonl").read_bytes()


def cut(path: Path, text: bytes) -> Path:
    folder = path / "first"
    folder.mkdir()
    (folder / "journal.jsonl").write_bytes(text)
    return folder


def check_complete(found: dict[str, Any], folder: Path) -> None:
    state = journal.load(folder / "journal.jsonl")
    good = [trial for trial in state.trials if trial.outcome == "completed" and trial.confirms is None]
    assert len({point_key(trial.config) for trial in good}) == len(good) == found["trials_done"] == TRIALS
    assert len({trial.run for trial in state.trials if trial.run}) == len([t for t in state.trials if t.run])
    assert sum(trial.outcome == "lost" for trial in state.trials) <= 1
    assert found["baseline"] is not None
    assert (found["state"], state.damage) == ("ended", ())
    confirmed = [row for row in found["confirmations"] if row["outcome"] == "completed"]
    assert len(confirmed) == (0 if found["best"]["config"] == found["baseline"]["config"] else 6)


@pytest.mark.drawn(1, of="crashes after any line")
@pytest.mark.parametrize("half", [False, True])
def test_a_crash_after_any_line_loses_nothing(tmp_path: Path, whole: bytes, half: bool) -> None:
    lines = whole.splitlines(keepends=True)
    for count in range(len(lines)):
        kept = b"".join(lines[:count]) + (lines[count][: len(lines[count]) // 2] if half else b"")
        place = tmp_path / str(count)
        place.mkdir()
        folder, machine = cut(place, kept), Machine()
        told = sum(json.loads(line)["kind"] == "tell" for line in lines[:count])
        found = run_study(FILE, folder, machine)
        check_complete(found, folder)
        assert len(machine.configs) + told == TRIALS + len(found["confirmations"]) - sum(
            row["outcome"] == "lost" for row in found["confirmations"]
        )


CONTROLLER = """
import sys, os
from pathlib import Path
from tests.support.studies.fake import Machine
from tests.tuning.studies.test_crash import FILE
from tests.support.studies.fake import run_study
machine = Machine(run_seconds=0.2, during=lambda number, run: print("begun", number, flush=True))
print(run_study(FILE, Path(sys.argv[1]), machine)["state"], flush=True)
"""


def test_kill_minus_nine_and_the_same_command_again(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    command = [sys.executable, "-c", CONTROLLER, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        for _ in range(2):
            controller.stdout.readline()
        time.sleep(0.05)
        os.kill(controller.pid, signal.SIGKILL)
    assert study_folder.load_study(folder).state == "interrupted"
    found = run_study(FILE, folder, Machine())
    assert [row["outcome"] for row in found["trials"]] == ["completed", "lost", "completed", "completed"]
    assert (found["trials"][2]["source"], found["trials"][2]["retry_of"]) == ("retry", 1)
    check_complete(found, folder)


def optuna_rows(folder: Path) -> int:
    with sqlite3.connect(folder / "optuna.db") as database:
        count = database.execute("select count(*) from trials").fetchone()[0]
    database.close()
    return int(count)


def corrupt(path: Path) -> None:
    path.write_bytes(b"not a database at all " * 100)


def disagree(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("update trial_values set value = value + 1")
    database.close()


@pytest.mark.parametrize("harm", [corrupt, disagree, Path.unlink])
def test_the_database_is_only_an_index(tmp_path: Path, harm: Any) -> None:
    folder = tmp_path / "first"
    run_study(FILE, folder, Machine())
    harm(folder / "optuna.db")
    found = run_study(study(trials=TRIALS + 1, space=SPACE), folder, Machine())
    assert (found["trials_done"], optuna_rows(folder)) == (TRIALS + 1, TRIALS + 1)
    notes = journal.load(folder / "journal.jsonl").notes
    assert any("rebuilt from the journal" in note for note in notes) == (harm is not Path.unlink)


def test_a_database_that_is_harmed_while_the_study_runs_is_sound_at_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "first"

    def harm(number: int, run: Path | None) -> None:
        if number == TRIALS - 1:
            with (folder / "optuna.db").open("r+b") as file:
                file.seek(9 * 4096)  # a page that adding one more trial does not read
                file.write(b"\x99" * 64)

    run_study(study(trials=TRIALS, space=SPACE, confirm_repeats=0), folder, Machine(during=harm))
    assert optuna_rows(folder) == TRIALS
    database = sqlite3.connect(folder / "optuna.db")
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    database.close()


def test_a_locked_database_does_not_stop_a_study(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    run_study(FILE, folder, Machine())
    database = sqlite3.connect(folder / "optuna.db", isolation_level=None)
    database.execute("begin exclusive")
    try:
        found = run_study(study(trials=TRIALS + 1, space=SPACE), folder, Machine())
    finally:
        database.close()
    assert (found["trials_done"], optuna_rows(folder)) == (TRIALS + 1, TRIALS + 1)


def test_reindex_makes_the_database_again(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    run_study(FILE, folder, Machine())
    assert rebuild(folder) == ""
    corrupt(folder / "optuna.db")
    assert "rebuilt" in rebuild(folder)
    assert optuna_rows(folder) == TRIALS


def test_a_bad_line_in_the_middle_is_reported_and_survived(tmp_path: Path, whole: bytes) -> None:
    lines = whole.splitlines(keepends=True)
    tell = next(index for index, line in enumerate(lines) if b'"tell"' in line)
    folder = cut(tmp_path, b"".join([*lines[:tell], b"garbage\n", *lines[tell + 1 :]]))
    found = run_study(FILE, folder, Machine())
    assert found["damage"] == [f"journal.jsonl line {tell + 1} cannot be read and is left out"]
    assert found["trials_done"] == TRIALS
    assert found["baseline"] is not None
