"""A study that an older version began, before context, expert and hybrid-sharding degrees were knobs, goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from tests.support.studies.fake import Machine, run_study
from tuning.space.points import point_key
from tuning.spec import study_file
from tuning.storage import journal, study_folder

pytestmark = pytest.mark.drawn(2, of="old studies")

OLD = Path(__file__).parent / "old_study"
TRIALS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The old study's folder, to write in."""
    return Path(shutil.copytree(OLD, tmp_path / "long"))


def given(folder: Path, **changes: Any) -> study_file.StudyFile:
    file = study_file.load(folder / study_folder.STUDY_GIVEN)
    return study_file.parse(file.model_dump(exclude_unset=True) | changes)


def test_the_same_command_measures_nothing_again(folder: Path) -> None:
    before, machine = (folder / study_folder.JOURNAL).read_bytes(), Machine()
    found = run_study(given(folder), folder, machine)
    assert (found["state"], found["trials_done"], machine.configs) == ("ended", TRIALS, [])
    assert (folder / study_folder.JOURNAL).read_bytes() == before


def test_what_was_chosen_for_it_stays_chosen_when_it_grows(folder: Path) -> None:
    file = given(folder, trials=TRIALS + 4)
    assert "parallel.cp" in file.search_space.by_key
    known = {point_key(trial.config) for trial in journal.load(folder / study_folder.JOURNAL).trials}
    machine = Machine()
    found = run_study(file, folder, machine)
    assert found["trials_done"] == TRIALS + 4
    points = [trial["config"] for trial in found["trials"]]
    assert {key for point in points for key in point}.isdisjoint({"parallel.cp", "parallel.cp_method"})
    fresh = [row["config"] for row in found["trials"][-4:]]
    assert known.isdisjoint(point_key(point) for point in fresh)


@pytest.mark.parametrize("changes", [{"space": {"parallel.tp": [1, 2]}}, {"base": {}}, {"ranks": 2}])
def test_another_question_is_still_refused(folder: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="asks another question"):
        run_study(given(folder, **changes), folder, Machine())


def test_a_space_that_was_given_is_not_forgotten(folder: Path) -> None:
    (folder / study_folder.STUDY_GIVEN).write_text("name: long\nspace: {parallel.tp: [1, 2, 4]}\n")
    bare = study_file.load(OLD / study_folder.STUDY_GIVEN)
    with pytest.raises(InputError, match="asks another question"):
        run_study(bare, folder, Machine())
