"""What Optuna sees: legal points only, failures as constraints, and nothing of it in the page's process."""

import subprocess
import sys
from pathlib import Path

import pytest
from optuna.trial import TrialState

from tests.support.studies.fake import seconds, study
from tuning.sampling.optuna_study import OptunaStudy, to_frozen_trial
from tuning.sensitivity.importance import importance
from tuning.sensitivity.outcomes import Importance
from tuning.space.encoding import Encoding
from tuning.space.points import Point, point_key
from tuning.storage.state import StudyState, Trial

ROOT = Path(__file__).parents[3]
SPACE = study().search_space
ENCODING = Encoding(SPACE)
LIGHT = (
    "storage.study_folder",
    "storage.journal",
    "report.result",
    "spec.study_file",
    "space.space",
    "storage.commands",
    "storage.controllers",
    "analysis.scoring",
    "controllers.status",
    "study",
)


def ended(number: int, point: Point, value: float | None, **more: object) -> Trial:
    outcome = "completed" if value is not None else "oom"
    return Trial(number, point, "sampler", outcome=outcome, value=value, **more)  # type: ignore[arg-type]


def worth(point: Point) -> float:
    return 1 / seconds(SPACE.config(point))


@pytest.mark.parametrize("seed", range(3))
def test_draws_are_legal_and_new_and_find_the_winner(seed: int) -> None:
    index, visited, found = OptunaStudy(ENCODING, seed, startup_trials=5), set[str](), list[float]()
    for number in range(32):
        draw = index.ask(visited)
        assert draw is not None
        assert SPACE.problem(draw.point) is None
        assert point_key(draw.point) not in visited
        assert ENCODING.decode(draw.params) == draw.point
        visited.add(point_key(draw.point))
        found.append(worth(draw.point))
        index.tell(ended(number, draw.point, found[-1], params=draw.params))
    assert max(found) >= 0.95 * max(map(worth, SPACE.legal_points))


def test_unwanted_points_come_last_and_then_none() -> None:
    space = study(space={"parallel.tp": [1, 2], "batch.micro_batch": [1, 2]}).search_space
    index, visited, drawn = OptunaStudy(Encoding(space), 0, 3), set[str](), list[Point]()
    while (draw := index.ask(visited, lambda point: point["parallel.tp"] == 2)) is not None:
        visited.add(point_key(draw.point))
        drawn.append(draw.point)
        index.tell(ended(len(drawn), draw.point, 1.0, params=draw.params))
    assert [point["parallel.tp"] for point in drawn] == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("value", "constraints", "state"),
    [
        (5.0, {}, TrialState.COMPLETE),
        (5.0, {"loss_guard": 0.1}, TrialState.COMPLETE),
        (None, {"oom": 1.0}, TrialState.PRUNED),
        (None, {}, TrialState.FAIL),
    ],
)
def test_how_an_end_looks_to_optuna(
    value: float | None, constraints: dict[str, float], state: TrialState
) -> None:
    told = to_frozen_trial(ended(0, SPACE.baseline[0], value, constraints=constraints), ENCODING)
    assert told is not None
    assert (told.state, told.value, told.constraints) == (state, value, constraints)


def test_what_the_sampler_cannot_say_is_kept_from_it() -> None:
    outside = study(space={"parallel.tp": [2, 4]}).search_space
    assert to_frozen_trial(ended(0, outside.baseline[0], 1.0), Encoding(outside)) is None
    assert to_frozen_trial(ended(0, SPACE.baseline[0], 1.0, confirms=0), ENCODING) is None


def test_importance_finds_the_knob_that_matters() -> None:
    points = [point for point in SPACE.legal_points if point["parallel.zero_stage"] == 0][:20]
    trials = tuple(
        ended(n, point, 10.0 * point["batch.micro_batch"] + n * 0.01) for n, point in enumerate(points)
    )
    found = importance(StudyState(trials=trials), SPACE)
    assert next(iter(found.values or ())) == "batch.micro_batch"
    few = importance(StudyState(trials=trials[:3]), SPACE)
    assert few == Importance(None, "needs 8 measured trials; there are 3", 3)


def test_the_page_loads_neither_optuna_nor_torch() -> None:
    names = ", ".join(f"tuning.{name}" for name in LIGHT)
    code = f"import sys, {names}; sys.exit('optuna' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
