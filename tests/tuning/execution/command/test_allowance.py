"""What a trial may take of a study's budget of time: real processes that start slowly, and the arithmetic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from tests.support.foreign import printing
from tests.tuning.execution.command.test_trial import left
from tuning.execution.command.allowance import LEAST_MEASURED, Allowance
from tuning.execution.command.trial import CommandTrials
from tuning.report.study_result import StudyResult
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.study_folder import STUDIES, StudyReader
from tuning.study import run_study


def study(seconds: float, starts: float = 1.0, more: str = "", **changes: Any) -> StudyFile:
    """Steps of 20 ms after the start; 8 ms with a micro-batch of 4."""
    command = (
        f"{sys.executable} {printing.__file__} --prints megatron --starts {starts} --num-layers 2 {more}"
    )
    tree: dict[str, Any] = {
        "name": "tight",
        "trainer": {"command": f"{command} --micro-batch-size 2 --global-batch-size 16 --seq-length 32"},
        "base": {"train": {"steps": 200, "warmup": 2}},
        "space": {"trainer.micro_batch": [1, 2, 4, 8]},
        "budget": {"wall_seconds": seconds},
        "racing": False,
    }
    return parse(tree | changes)


def tune(home: Path, file: StudyFile) -> StudyResult:
    return run_study(file, home / STUDIES / file.name, CommandTrials(home, file))


@pytest.mark.timeout(120)
def test_of_little_time_others_are_tried_and_measured_again(tmp_path: Path) -> None:
    """The 200 steps of a trial would take 5 of the 14 s; even if one takes 2 s on a busy machine, seven fit in."""
    result = tune(tmp_path / "home", study(14.0))
    assert len(result.trials) >= 3
    searched = [*result.trials, *result.confirmations]
    assert sum(row.seconds for row in searched) <= 14 * 1.2
    assert all(7 <= row.steps < 200 for row in result.trials), [row.steps for row in result.trials]
    assert "s of budget.wall_seconds=14 are its share" in str(result.trials[0].reason)
    rounds = result.confirmation_rounds
    assert rounds is not None and {len(arm.rounds) for arm in rounds.arms} <= {1, 2, 3}
    assert result.gain is not None and result.gain.ratio > 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("seconds", "starts", "words"),
    [
        (2.0, 30.0, ("told of no step for 1 s", "give more than 10, with a confirmation 20")),
        (8.0, 0.0, ("for 155 steps", "give at least", "with a confirmation")),
    ],
)
def test_a_study_that_could_measure_its_baseline_alone_says_what_it_would_take(
    tmp_path: Path, seconds: float, starts: float, words: tuple[str, ...]
) -> None:
    """155 steps of 60 ms are more than the four seconds that half of the time is."""
    home = tmp_path / "home"
    file = study(seconds, starts, "--slow True", base={"train": {"steps": 200, "warmup": 150}})
    with pytest.raises(InputError) as caught:
        tune(home, file)
    assert caught.value.field == "budget.wall_seconds"
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)
    assert not StudyReader(home / STUDIES / file.name).view().journal.trials
    assert not left(home)


def test_a_share_is_cut_only_of_a_trial_that_can_be_judged() -> None:
    tight = Allowance.from_file(study(120.0))
    assert tight.least == 2 + LEAST_MEASURED
    assert not tight.why_spent(9.9, 100) and not tight.why_spent(60.0, 6)
    assert tight.why_spent(10.0, 7) == "ended after 7 steps: 10 s of budget.wall_seconds=120 are its share"
    without = Allowance.from_file(study(120.0, budget=None))
    assert not without.why_spent(1e6, 10_000) and without.no_room(1e6, 0, None) is None


def test_what_it_would_take_follows_from_the_steps_so_far() -> None:
    tight = Allowance.from_file(study(120.0))
    assert tight.no_room(59.9, 2, 40.0) is None and tight.no_room(60.0, 7, 40.0) is None
    problem = tight.no_room(60.0, 2, 40.0)
    assert problem is not None
    # 40 s to the first step, and six more of 20 s / 2 each.
    assert "takes about 100 s for 7 steps, 40 of them to the first" in str(problem)
    assert str(problem).endswith("give at least 300, with a confirmation 1200")
