"""Optuna's database catches up bit by bit: a few trials a call, in the order in which they ended, each of them once."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest

from engine.run import run_folder
from tests.support.studies.fake import Machine, run_study, study
from tuning.controllers.status import Update
from tuning.sampling import optuna_export
from tuning.sampling.optuna_export import Mirror, drain, rebuild
from tuning.space.encoding import Encoding
from tuning.storage import journal, study_folder
from tuning.storage.state import StudyState

pytestmark = pytest.mark.drawn(5, of="exports to Optuna")

TRIALS, LOT = 12, 3
FILE = study(trials=TRIALS, confirm_repeats=0)
MORE = study(trials=TRIALS + 1, confirm_repeats=0)
Row = tuple[int, Any, Any, Any, Any, Any]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that has ended, with a database that grew trial by trial."""
    folder = tmp_path_factory.mktemp("whole") / "first"
    run_study(FILE, folder, Machine())
    return folder


@pytest.fixture
def folder(done: Path, tmp_path: Path) -> Path:
    """The same study without its database."""
    shutil.copytree(done, tmp_path / "first")
    (tmp_path / "first" / study_folder.DATABASE).unlink()
    return tmp_path / "first"


def state_of(folder: Path) -> StudyState:
    return journal.load(folder / study_folder.JOURNAL)


def opened(folder: Path, lot: int = LOT) -> Mirror:
    return Mirror(folder, Encoding(FILE.search_space), lot=lot)


def rows(folder: Path) -> list[Row]:
    """All that Optuna's tools see of each trial, in their order."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / study_folder.DATABASE}")
    try:
        found = optuna.load_study(study_name="first", storage=storage).get_trials(deepcopy=False)
        return [(t.number, t.state, t.values, t.params, t.user_attrs, t.datetime_complete) for t in found]
    finally:
        storage.remove_session()
        storage.engine.dispose()


def numbers(folder: Path) -> list[int]:
    return [row[4]["number"] for row in rows(folder)]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lots of a few trials, and a moment that is over soon."""
    for name in ("LOT", "MOMENT"):
        monkeypatch.setattr(f"tuning.sampling.optuna_export.{name}", LOT)


def test_a_few_trials_a_call_until_it_is_as_one_that_grew(folder: Path, done: Path) -> None:
    mirror, state, left = opened(folder), state_of(folder), []
    while not left or mirror.missing:
        assert mirror.follow(state) == ""
        left.append(mirror.missing)
    mirror.close()
    assert left == [9, 6, 3, 0]
    assert rows(folder) == rows(done)


def test_it_goes_on_in_the_middle(folder: Path, done: Path) -> None:
    """What was begun and left is compared, and not added again."""
    for missing in (9, 6):
        mirror = opened(folder)
        mirror.follow(state_of(folder))
        assert mirror.missing == missing
        mirror.close()
    assert rebuild(folder) == ""
    assert rows(folder) == rows(done)


def test_a_trial_that_ends_meanwhile_comes_last(folder: Path) -> None:
    mirror, state = opened(folder), state_of(folder)
    earlier = StudyState(trials=(*state.trials[:4], *state.trials[5:-1]))  # trial 4 still runs
    late = state.trials[4]
    mirror.follow(earlier)
    object.__setattr__(late, "ended_unix", (state.trials[-1].ended_unix or 0.0) + 1.0)
    while mirror.follow(state) or mirror.missing:
        pass
    mirror.close()
    assert numbers(folder) == [0, 1, 2, 3, *range(5, TRIALS), 4]


def test_two_that_catch_up_share_the_work(folder: Path, done: Path) -> None:
    ours, theirs, state = opened(folder), opened(folder), state_of(folder)
    seen = []
    for mirror in (ours, theirs) * 2:
        assert mirror.follow(state) == ""
        seen.append(mirror.missing)
    ours.close()
    theirs.close()
    assert seen == [9, 6, 3, 0]
    assert rows(folder) == rows(done)


def test_a_file_that_is_removed_or_replaced_meanwhile_is_noticed(folder: Path, done: Path) -> None:
    mirror, state = opened(folder), state_of(folder)
    mirror.follow(state)
    (folder / study_folder.DATABASE).unlink()
    mirror.follow(state)
    assert (mirror.missing, len(rows(folder))) == (9, LOT)
    whole = folder / "whole.db"
    shutil.copy(done / study_folder.DATABASE, whole)
    whole.replace(folder / study_folder.DATABASE)
    assert (mirror.follow(state), mirror.missing) == ("", 0)
    mirror.close()
    assert rows(folder) == rows(done)


def test_harm_in_the_middle_begins_anew(folder: Path, done: Path) -> None:
    mirror, state = opened(folder), state_of(folder)
    mirror.follow(state)
    (folder / study_folder.DATABASE).write_bytes(b"no database " * 1000)
    note = mirror.check(state)
    assert note.startswith("optuna.db is being rebuilt from the journal (")
    drain(mirror, lambda: mirror.follow(state), lambda _: None)
    mirror.close()
    assert rows(folder) == rows(done)


def test_trouble_that_comes_again_ends_the_draining(folder: Path) -> None:
    mirror, calls = opened(folder), list[int]()
    mirror.follow(state_of(folder))

    def lot() -> str:
        calls.append(1)
        return "trouble"

    drain(mirror, lot, lambda _: None)
    mirror.close()
    assert len(calls) == 2


def test_the_first_proposal_does_not_wait_for_the_database(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    seen, notes = [], list[str]()

    def during(number: int, run: Path | None) -> None:
        status = run_folder.read_json(folder / run_folder.STATUS) or {}
        seen.append((len(rows(folder)), status[study_folder.LAG]))

    def news(update: Update) -> None:
        notes.append(update.note)

    found = run_study(MORE, folder, Machine(during=during), news)
    assert [(there, words.partition(":")[0]) for there, words in seen] == [(LOT, "optuna.db lacks 9 trials")]
    assert notes[0].startswith("optuna.db lacks 9 trials: they are added while")
    assert any(note.startswith("optuna.db lacks 4 trials; adding them") for note in notes)
    assert (found["state"], found[study_folder.LAG], len(rows(folder))) == ("ended", "", TRIALS + 1)
    assert (run_folder.read_json(folder / run_folder.STATUS) or {})[study_folder.LAG] == ""


def test_ctrl_c_leaves_the_rest_for_later(folder: Path, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)

    def news(update: Update) -> None:
        if "adding them" in update.note:
            os.kill(os.getpid(), signal.SIGINT)

    found = run_study(FILE, folder, Machine(), news)
    assert found["state"] == "ended"
    assert found[study_folder.LAG].startswith("optuna.db lacks ")
    assert 0 < len(rows(folder)) < TRIALS
    assert rebuild(folder) == ""
    assert rows(folder) == rows(done)
    assert (run_folder.read_json(folder / run_folder.STATUS) or {})[study_folder.LAG] == ""


def test_rebuilding_says_how_many_are_left(folder: Path, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    monkeypatch.setattr(optuna_export, "APART_SECONDS", 0.0)
    said: list[str] = []
    assert rebuild(folder, said.append) == ""
    assert [line.partition(" trials")[0] for line in said] == ["optuna.db lacks 9", "optuna.db lacks 6"]
    assert rows(folder) == rows(done)


def test_a_large_study_is_left_as_it_is_where_nobody_waits(folder: Path) -> None:
    note = rebuild(folder, most=TRIALS - 1)
    assert note.startswith(f"optuna.db lacks {TRIALS} trials: they are added while the study runs, or by")
    assert not (folder / study_folder.DATABASE).exists()
    assert (run_folder.read_json(folder / run_folder.STATUS) or {})[study_folder.LAG] == note
    assert rebuild(folder, most=TRIALS) == ""
    assert len(rows(folder)) == TRIALS
