"""What a sampler makes of trials that it did not propose, and of points that it has to draw again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.support.studies.fake import run_study, seconds, study
from tests.support.studies.weighed import Weighed, asked
from tuning.sampling.optuna_study import OptunaStudy
from tuning.sampling.samplers import Evolution
from tuning.space.encoding import Encoding
from tuning.space.points import point_key
from tuning.space.space import Space
from tuning.spec import sampler_choice
from tuning.spec.objectives import MeasuredValue
from tuning.spec.study_file import StudyFile
from tuning.storage.state import Trial

SEVERAL = ["tokens_per_second", "peak_memory_bytes"]


def file() -> StudyFile:
    return study(objectives=SEVERAL, space={"parallel.tp": [1, 2, 4], "parallel.pp": [1, 2, 4],
                 "parallel.zero_stage": [0, 1, 2, 3], "batch.micro_batch": [1, 2, 4]})  # fmt: skip


def told(space: Space, number: int, point: dict[str, Any], params: dict[str, Any] | None = None) -> Trial:
    """A quick step costs memory: both values follow from one."""
    speed = 1 / seconds(space.config(point))
    measures = {SEVERAL[0]: MeasuredValue(speed), SEVERAL[1]: MeasuredValue(100 * speed + number % 3)}
    return Trial(number, point, "sampler", params or {}, outcome="completed", value=speed, measures=measures)


def index(name: str, trials: int = 160) -> OptunaStudy:
    return OptunaStudy(Encoding(file().search_space), 1, 3, trials, name, file().aims)


def evolution(found: OptunaStudy) -> Evolution:
    inner = found._sampler.inner
    assert isinstance(inner, Evolution)
    return inner


def parents(found: OptunaStudy) -> list[optuna.trial.FrozenTrial]:
    """Of whom the last draw was made."""
    selected = evolution(found)._selected
    return selected[1] if selected else []


@pytest.mark.parametrize("handed_over", [True, False])
def test_nsga2_has_parents_among_trials_that_it_did_not_draw(handed_over: bool) -> None:
    """After another sampler, and after a restart, when all are told anew."""
    space, visited = file().search_space, set[str]()
    found = index("random" if handed_over else "nsga2")
    size = sampler_choice.population(160)
    points = space.legal_points[: 2 * size]
    for number, point in enumerate(points):
        found.tell(told(space, number, point))
        visited.add(point_key(point))
    if handed_over:
        found.replace_sampler("nsga2", 1, 3, 160)
    draw = found.ask(visited)
    assert draw is not None and point_key(draw.point) not in visited
    chosen = parents(found)
    assert len(chosen) == size
    front = {trial.number for trial in found._study.best_trials}
    smaller, larger = sorted((front, {trial.number for trial in chosen}), key=len)
    assert smaller <= larger


def test_nsga2_selects_again_when_a_generation_is_full() -> None:
    space, visited, found = file().search_space, set[str](), index("nsga2")
    size, seen = sampler_choice.population(160), list[set[int]]()
    for number in range(3 * size):
        draw = found.ask(visited)
        assert draw is not None and space.problem(draw.point) is None
        visited.add(point_key(draw.point))
        seen.append({trial.number for trial in parents(found)})
        found.tell(told(space, number, draw.point, draw.params))
    changes = [number for number in range(1, 3 * size) if seen[number] != seen[number - 1]]
    assert seen[:size] == [set()] * size
    assert set(changes) <= {size, 2 * size}
    assert changes[0] == size


def test_auto_hands_over_inside_a_study_of_several_objectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result says so, and the trials go on without a point measured twice, also when it is started again."""
    monkeypatch.setattr(sampler_choice, "AUTO_NSGA2_TRIALS", 14)
    monkeypatch.setattr(sampler_choice, "AUTO_NSGA2_AFTER", 8)
    changes = {"objective": SEVERAL, "confirm_repeats": 0}
    found = run_study(asked(**changes, trials=8), tmp_path / "alone", Weighed())
    assert found["sampler"]["name"] == "tpe"
    for trials in (14, 16):
        found = run_study(asked(**changes, trials=trials), tmp_path / "first", Weighed())
        assert (found["sampler"]["name"], found["trials_done"]) == ("nsga2", trials)
        assert f"2 objectives and a budget of {trials} trials: after 8 NSGA-II" in found["sampler"]["reason"]
    assert len({point_key(row["config"]) for row in found["trials"]}) == 16


def test_what_breaks_a_constraint_is_no_parent_while_others_are_there() -> None:
    space, visited, found = file().search_space, set[str](), index("nsga2")
    size = sampler_choice.population(160)
    for number, point in enumerate(space.legal_points[: 3 * size]):
        one = told(space, number, point)
        broken = {"loss_guard_undecided": 0.001} if number % 3 == 0 else {}
        found.tell(replace(one, constraints=broken))
        visited.add(point_key(point))
    assert found.ask(visited) is not None
    assert len(parents(found)) == size
    assert not any(trial.constraints for trial in parents(found))


def test_another_sampler_that_goes_on_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_choice, "AUTO_NSGA2_TRIALS", 8)
    monkeypatch.setattr(sampler_choice, "AUTO_NSGA2_AFTER", 5)
    asked_for = asked(trials=8, objective=SEVERAL)
    said: list[str] = []
    run_study(asked_for, tmp_path / "first", Weighed(), lambda news: said.append(news.note))
    notes = [note for note in said if note.startswith("sampler: ")]
    assert len(notes) == 1
    assert notes[0].startswith("sampler: nsga2 from here on: 2 objectives and a budget of 8 trials")
