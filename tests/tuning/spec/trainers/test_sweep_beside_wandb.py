"""Sweeps drawn at random beside W&B's own code: what is a sweep, which points it has, and which command each starts."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml

from engine.config.errors import InputError
from tests.support.drawn import SEED
from tests.support.trainers import sweep as wandb
from tests.support.trainers.environments import answers, problems, require
from tests.support.trainers.results import noted
from tuning.spec.study_file import StudyFile, parse
from tuning.spec.trainers.invocation import ARGUMENTS_FILE, FOLDER, MACROS
from tuning.spec.trainers.sweep import study_of_sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MANY = 300
_NAMES = ("lr", "batch-size", "optim.momentum", "compile", "width", "text")
_VALUES = (1, 8, -3, 0.5, 1e-5, 3.0, True, False, "adam", "a b", "", "1e-3")


@pytest.fixture(scope="module", autouse=True)
def _there() -> None:
    require("sweep")


def _parameter(pick: random.Random) -> dict[str, Any]:
    low = pick.choice([1, 8, 0.5, 1e-4])
    kinds: list[dict[str, Any]] = [
        {"value": pick.choice(_VALUES)},
        {"value": 3, "distribution": "constant"},
        {"values": pick.sample(_VALUES, pick.randint(1, 4))},
        {"values": [4, 2], "distribution": "categorical"},
        {"min": 1, "max": pick.choice([2, 4])},
        {"min": low, "max": pick.choice([20, 20.0])},
        {"min": low, "max": 20, "distribution": pick.choice(["uniform", "log_uniform_values"])},
        {"min": 1, "max": 4, "distribution": "int_uniform"},
        # What is not supported, or is no parameter at all.
        {"min": 1, "max": 4, "q": 2, "distribution": "q_uniform"},
        {"min": 4, "max": 1},
        {"min": 1.5, "max": 4, "distribution": "int_uniform"},
        {"mu": 0, "sigma": 1, "distribution": "normal"},
        {"value": 1, "values": [1, 2]},
        {"value": 1, "min": 0, "max": 2},
        {"values": [1, 2], "distribution": "uniform"},
        {"min": 1, "max": 4, "distribution": "categorical"},
        {"values": []},
        {"min": 1},
        {},
    ]
    usual = pick.random() < 0.8
    return pick.choice(kinds[:8] if usual else kinds)


def _sweep(pick: random.Random) -> dict[str, Any]:
    command = [
        *pick.choice([["${env}", "${interpreter}"], ["torchrun", "--nproc-per-node", 2], ["python"]]),
        "${program}",
        *pick.choice([[], ["--steps", 4], ["--name=a b"]]),
        *pick.choice([[], [pick.choice(MACROS)], [pick.choice(MACROS)]]),
    ]
    tree: dict[str, Any] = {
        "program": "train.py",
        "method": pick.choice(["grid", "random", "bayes"]),
        "metric": {"name": pick.choice(["step_time", "train/step_seconds"]), "goal": "minimize"},
        "parameters": {name: _parameter(pick) for name in pick.sample(_NAMES, pick.randint(1, 4))},
        "command": command,
        "run_cap": pick.choice([5, 20]),
        "early_terminate": {"type": "hyperband", "min_iter": 3},
        "name": "drawn",
    }
    for key in ("metric", "command", "run_cap", "early_terminate", "name"):
        if (key != "metric" or tree["method"] != "bayes") and pick.random() < 0.4:
            del tree[key]
    return tree


def _study(tree: dict[str, Any]) -> StudyFile | None:
    try:
        return parse(study_of_sweep(tree, "sweep"))
    except InputError:
        return None


def _drawn(what: str) -> list[dict[str, Any]]:
    pick = random.Random(f"{SEED} {what}")
    return [_sweep(pick) for _ in range(MANY)]


def test_what_is_taken_is_a_sweep_there_too() -> None:
    trees = _drawn("sweeps")
    *said, wrong = problems(
        "sweep", [{"text": yaml.safe_dump(tree)} for tree in trees] + [{"text": wandb.WRONG}]
    )
    assert wrong, "its schema refuses what is no sweep"
    taken = [_study(tree) is not None for tree in trees]
    assert 20 < sum(taken) < MANY - 20
    assert {
        trees.index(tree): text for tree, text, ok in zip(trees, said, taken, strict=True) if ok and text
    } == {}
    noted("sweep", "parsed", "sweeps drawn at random", f"{sum(taken)} of {MANY} taken, and valid there")


def _beside_points(method: str, many: int) -> list[tuple[StudyFile, list[dict[str, Any]]]]:
    """Studies of sweeps of one method, and the points that W&B has of each."""
    trees = [tree | {"method": method, "run_cap": 9999} for tree in _drawn(method)]
    files = {at: file for at, tree in enumerate(trees) if (file := _study(tree)) is not None}
    assert len(files) > 20
    asked = [{"sweep": trees[at], "many": many, "seed": at} for at in files]
    return list(zip(files.values(), answers("sweep", "points", asked), strict=True))


def test_a_grid_has_the_same_points() -> None:
    for file, points in _beside_points("grid", 2000):
        assert len({repr(point) for point in points}) == len(points) == file.trials - 1
        for knob in file.knobs:
            found = {repr(point[_option(file, knob.key)]) for point in points}
            assert found == {repr(value) for value in knob.choices}


def test_ranges_are_the_same() -> None:
    for file, points in _beside_points("random", 400):
        for knob in file.knobs:
            found = [point[_option(file, knob.key)] for point in points]
            if not knob.is_range:
                assert {*map(repr, found)} <= {*map(repr, knob.choices)}
                continue
            low, high = knob.low, knob.high
            assert low is not None and high is not None
            assert all(low <= value <= high for value in found)
            assert {isinstance(value, int) for value in found} == {knob.integer}, (knob, found[:4])
            if high / low > 10:
                assert (sorted(found)[len(found) // 2] < (low + high) / 2 * 0.7) == knob.log


def test_a_point_starts_the_same_command() -> None:
    asked, ours = [], []
    pick = random.Random(f"{SEED} values")
    for tree in _drawn("commands"):
        file = _study(tree)
        if file is None or file.command is None:
            continue
        values = dict(file.config.trainer)
        for knob in file.knobs:
            name = knob.key.removeprefix("trainer.")
            values[name] = pick.choice(knob.choices) if knob.choices else pick.choice([knob.low, knob.high])
        command = tree.get("command", ["${env}", "${interpreter}", "${program}", "${args}"])
        if not any(word in MACROS for word in command):
            continue  # there the values go nowhere; here at the end
        ours.append(file.command.trial_invocation(values).words)
        named = {_option(file, name): value for name, value in values.items()}
        asked.append({"command": command, "program": "train.py", "values": named})
    theirs = answers("sweep", "words", asked)
    assert len(asked) > 20
    for own, wanted in zip(ours, theirs, strict=True):
        assert [_file(word) for word in own] == [_file(word) for word in wanted]
    noted("sweep", "command", "values drawn at random", f"{len(asked)} commands as its agent starts them")


def _option(file: StudyFile, key: str) -> str:
    """The name that a sweep has for a key of its study."""
    assert file.command is not None
    return file.command.option(key.removeprefix("trainer."))


def _file(word: str) -> str:
    """Both name a JSON file for values, each in a folder of its own."""
    is_theirs = word.endswith("/config-one.json")
    return ARGUMENTS_FILE if is_theirs or word == f"{FOLDER}/{ARGUMENTS_FILE}" else word
