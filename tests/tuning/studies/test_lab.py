"""Studies on what was measured in the lab: the file is whole, and a study finds the best layout in a seventh of it."""

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import _lab_points as lab
from benchmarks import lab_study

KEPT = lab.Kept(lab_study.KEPT)


def test_every_legal_point_was_measured_three_times() -> None:
    assert len(lab.points()) >= 60
    assert set(KEPT.rows) == {name for name, _ in lab.order()}
    assert all(row["outcome"] == "completed" for row in KEPT.rows.values())


def test_rounds_were_measured_one_after_the_other() -> None:
    begun = [[KEPT.rows[f"{repeat} {key}"]["begun"] for key in lab.points()] for repeat in range(lab.REPEATS)]
    for earlier, later in pairwise(begun):
        assert max(earlier) < min(later)


def test_a_study_finds_the_best_in_a_seventh_of_the_points(tmp_path: Path) -> None:
    found = lab_study.replayed(KEPT, 0, {}, tmp_path)
    assert found.points <= lab_study.SHARE * len(lab.points())
    assert found.held, found


@pytest.mark.slow
def test_eighteen_of_twenty_studies_find_it(tmp_path: Path) -> None:
    found = [lab_study.replayed(KEPT, seed, {}, tmp_path) for seed in range(20)]
    assert sum(one.held for one in found) >= lab_study.OF_TWENTY
