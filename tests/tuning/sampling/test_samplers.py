"""Which sampler is taken and why, what each of them draws, and what earlier studies are worth."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.fake import Machine, run_study, seconds, study
from tuning.sampling import samplers
from tuning.sampling.optuna_study import OptunaStudy
from tuning.space.encoding import Encoding
from tuning.space.points import point_key
from tuning.spec import sampler_choice
from tuning.spec.objectives import MeasuredValue
from tuning.spec.sampler_choice import Sampler
from tuning.storage import effective_config, journal, study_folder
from tuning.storage.commands import send
from tuning.storage.state import StudyState, Trial

SEVERAL = ["tokens_per_second", "peak_memory_bytes"]
NUMBERS = {"parallel.tp": [1, 2, 4], "parallel.pp": [1, 2, 4], "batch.micro_batch": [1, 2, 4]}
RATIO = {"compression.ratio": {"low": 0.01, "high": 0.25}, "overlap.bucket_mb": {"low": 1.0, "high": 64.0}}
TOPK = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": 24, "warmup": 4},
        "compression": {"method": "topk"}}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told", "name", "why"),
    [
        ({"space": NUMBERS}, 0, "tpe", "layouts are searched"),
        ({"space": RATIO, "base": TOPK}, 0, "gp", "2 ordered numbers and a budget of 6 trials"),
        ({"space": RATIO, "base": TOPK, "trials": 100}, 0, "tpe", "a budget of 100 trials, too many"),
        ({}, 0, "tpe", "parameters are categories"),
        ({"sampler": "random"}, 0, "random", "asked for"),
        ({"sampler": "gp"}, 0, "gp", "asked for"),
        ({"sampler": "gp"}, sampler_choice.GP_TRIALS, "tpe", "is too slow beyond"),
        (
            {"objectives": SEVERAL},
            0,
            "tpe",
            "2 objectives and a budget of 6 trials, in which TPE finds as much",
        ),
        ({"objectives": SEVERAL, "trials": 499}, 300, "tpe", "of their front as NSGA-II or more"),
        ({"objectives": SEVERAL, "trials": 500}, 199, "tpe", "after 200 NSGA-II goes on"),
        ({"objectives": SEVERAL, "trials": 500}, 200, "nsga2", "NSGA-II finds as much of the front"),
        ({"objectives": SEVERAL, "trials": 500, "sampler": "tpe"}, 200, "tpe", "asked for"),
    ],
)
def test_the_sampler_follows_from_the_space_and_the_budget(
    changes: dict[str, Any], told: int, name: str, why: str
) -> None:
    file = study(**changes)
    found = effective_config.sampler(file, StudyState(trials=(Trial(0, {}, "sampler"),) * told))
    assert found.name == name
    assert why in found.reason


def test_cmaes_is_taken_only_where_it_fits_and_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    space = study(space=RATIO, base=TOPK).search_space
    kinds = {parameter.kind for parameter in Encoding(space).parameters}
    assert kinds == {"number"}
    sampler_choice.check("cmaes", space)
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(
            InputError, match=r"needs cmaes, which is not installed: pip install '.*\[samplers\]'"
        ):
            sampler_choice.check("cmaes", space)
    with pytest.raises(InputError, match=r"is a category; take tpe|is a category"):
        sampler_choice.check("cmaes", study().search_space)


def test_an_unknown_sampler_is_one_line() -> None:
    with pytest.raises(InputError, match="sampler") as caught:
        study(sampler="luck")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [sampler.name for sampler in sampler_choice.SAMPLERS])
def test_every_sampler_draws_legal_new_points(name: Any) -> None:
    space = study(space=NUMBERS).search_space
    index, visited = OptunaStudy(Encoding(space), 1, 4, 12, name), set[str]()
    for number in range(6 if name == "gp" else 12):
        draw = index.ask(visited)
        assert draw is not None
        assert space.problem(draw.point) is None
        assert point_key(draw.point) not in visited
        visited.add(point_key(draw.point))
        value = 1 / seconds(space.config(draw.point))
        index.tell(Trial(number, draw.point, "sampler", draw.params, outcome="completed", value=value))


SPACES: dict[str, dict[str, Any]] = {
    "numbers": {"space": RATIO, "base": TOPK},
    "categories": {"space": {"memory.recompute": ["none", "full"], "batch.micro_batch": [1, 2, 4],
                             "overlap.bucket_mb": {"low": 1.0, "high": 64.0}}},
}  # fmt: skip


#: One that refuses other things than those there are, beside them.
MADE_UP = Sampler("rows", f"{samplers.__name__}:uniform", only_ordered_numbers=True)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("objectives", [1, 2])
@pytest.mark.parametrize("entry", [*sampler_choice.SAMPLERS, MADE_UP], ids=lambda entry: entry.name)
def test_a_sampler_draws_what_its_entry_does_not_refuse(
    monkeypatch: pytest.MonkeyPatch, entry: Sampler, objectives: int, space: str
) -> None:
    """With trials that fail and trials that break a constraint among those it is told; a warning is an error here."""
    monkeypatch.setattr(sampler_choice, "SAMPLERS", (*sampler_choice.SAMPLERS, MADE_UP))
    name = entry.name
    refused = (entry.only_ordered_numbers and space == "categories") or (
        objectives > 1 and not entry.several_objectives
    )
    several = {"objectives": SEVERAL} if objectives > 1 else {}
    file = study(**SPACES[space], **several, sampler=name, trials=8)
    if refused:
        with pytest.raises(InputError, match=f"sampler='{name}'"):
            sampler_choice.check(name, file.search_space, len(file.aims))
        return
    sampler_choice.check(name, file.search_space, len(file.aims))
    aims = file.aims if several else ()
    index, visited = OptunaStudy(Encoding(file.search_space), 1, 3, 8, name, aims), set[str]()
    for number in range(8):
        draw = index.ask(visited)
        assert draw is not None
        visited.add(point_key(draw.point))
        speed = 1 / seconds(file.search_space.config(draw.point))
        trial = Trial(number, draw.point, "sampler", draw.params, outcome="oom", constraints={"oom": 1.0})
        if number % 4 != 1:
            kept = {"power": -1.0 if number % 3 else 2.0}
            measures = {SEVERAL[0]: MeasuredValue(speed), SEVERAL[1]: MeasuredValue(100 * speed + number)}
            trial = replace(trial, outcome="completed", value=speed, constraints=kept, measures=measures)
        index.tell(trial)
    assert len(visited) == 8


def test_a_trial_that_another_controller_withdrew_is_forgotten() -> None:
    space = study(space=NUMBERS).search_space
    index = OptunaStudy(Encoding(space), 1, 2, 30, "tpe")
    for number, point in enumerate(space.legal_points[:3]):
        index.runs_elsewhere(Trial(number, point, "sampler"))
    index.only_elsewhere([0, 2])
    index.tell(Trial(2, space.legal_points[2], "sampler", outcome="completed", value=1.0))
    states = [trial.state.name for trial in index._study.get_trials(deepcopy=False)]
    assert (states.count("RUNNING"), states.count("COMPLETE")) == (1, 1)


def test_a_sampler_that_is_changed_knows_what_the_last_one_was_told() -> None:
    space = study(space=NUMBERS).search_space
    index, visited = OptunaStudy(Encoding(space), 1, 2, 30, "random"), set[str]()
    for number in range(30):
        if number == 6:
            index.replace_sampler("tpe", 1, 2, 30)
        draw = index.ask(visited)
        if draw is None:
            break
        visited.add(point_key(draw.point))
        value = 1 / seconds(space.config(draw.point))
        index.tell(Trial(number, draw.point, "sampler", draw.params, outcome="completed", value=value))
    assert len(visited) == len(space.legal_points)


def oom(config: Any) -> RunOutcome | None:
    return RunOutcome(Ending.OOM, "rank 1 ran out of memory", 1) if config.batch.micro_batch == 4 else None


def test_the_same_question_on_the_same_machine_is_not_asked_again(tmp_path: Path) -> None:
    send(tmp_path / "first", "enqueue", {"parallel.pp": 2, "batch.micro_batch": 2}, "test")
    earlier = run_study(study(trials=16), tmp_path / "first", Machine(by_config=oom))
    found = run_study(
        study(name="second", trials=8, inherit=["first"], space=study().resolve()["space"]),
        tmp_path / "second",
        Machine(by_config=oom),
    )
    (told,) = found["inherited"]
    assert (told["study"], told["same"], told["trials"]) == ("first", True, 16)
    best = earlier["best"]["config"]
    assert (found["trials"][1]["config"], found["trials"][1]["why"]) == (
        best,
        "among the best of study first",
    )
    known = {point_key(row["config"]) for row in earlier["trials"]}
    drawn = [point_key(row["config"]) for row in found["trials"][2:]]
    assert known.isdisjoint(drawn)
    assert all(row["outcome"] == "completed" for row in found["trials"][:2])
    again = run_study(study(name="second", trials=9, inherit=["first"]), tmp_path / "second", Machine())
    assert len(again["inherited"]) == 1


@pytest.mark.parametrize("other", ["question", "machine"])
def test_another_question_or_machine_only_says_what_to_try_first(tmp_path: Path, other: str) -> None:
    base = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": 30, "warmup": 4}}
    changes = {"base": base} if other == "question" else {}
    run_study(study(trials=10, **changes), tmp_path / "first", Machine())
    if other == "machine":
        path = tmp_path / "first" / study_folder.JOURNAL
        known = journal.load(path).machine
        assert known is not None
        path.write_text(path.read_text().replace(known, "another"))
    found = run_study(study(name="second", trials=6, inherit=["first"]), tmp_path / "second", Machine())
    (told,) = found["inherited"]
    assert (told["same"], told["trials"]) == (False, 0)
    assert ("base.train.steps was 30" if other == "question" else "on this machine") in told["words"]
    assert [row["why"] for row in found["trials"][1:4]] == ["among the best of study first"] * 3


def test_points_outside_the_space_are_not_inherited(tmp_path: Path) -> None:
    run_study(study(trials=10), tmp_path / "first", Machine())
    space = {"parallel.tp": [1, 2], "batch.micro_batch": [1, 2, 4]}
    found = run_study(
        study(name="second", trials=4, inherit=["first"], space=space), tmp_path / "second", Machine()
    )
    told = found["inherited"][0]
    assert told["same"]
    assert 0 < told["trials"] < 10
    assert all(row["outcome"] == "completed" for row in found["trials"])


def test_a_study_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for name in ("nowhere", "second"):
        with pytest.raises(InputError, match=r"no such study in this home|is this study itself"):
            run_study(study(name="second", inherit=[name]), tmp_path / "second", Machine())
