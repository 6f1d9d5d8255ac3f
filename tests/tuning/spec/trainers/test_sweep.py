"""Sweep files of W&B and trackio: taken as they are, or refused by the name of what is not supported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.config.errors import InputError
from tuning.spec.study_file import StudyFile, parse
from tuning.spec.trainers.sweep import is_sweep, study_of_sweep
from workbench.home.inputs import read_tree

SWEEP: dict[str, Any] = {
    "program": "train.py",
    "method": "grid",
    "metric": {"name": "train/step_time", "goal": "minimize"},
    "parameters": {
        "batch-size": {"values": [8, 16]},
        "optim.lr": {"value": 0.001},
        "compile": {"values": [False, True]},
    },
    "command": ["${env}", "torchrun", "--nproc-per-node=2", "${program}", "--seed", 1, "${args}"],
}


def study(**changes: Any) -> StudyFile:
    return parse(study_of_sweep(SWEEP | changes, "sweep"))


def test_a_sweep_is_a_study_of_its_command() -> None:
    assert is_sweep(SWEEP) and not is_sweep({"name": "s", "space": {}})
    file = study()
    assert file.objective == "step_seconds" and file.trials == 5 and file.sampler == "random"
    assert {knob.key: knob.choices for knob in file.knobs} == {
        "trainer.batch_size": (8, 16),
        "trainer.compile": (False, True),
    }
    assert file.config.trainer == {"batch_size": 8, "compile": False, "optim_lr": 0.001}
    assert file.command is not None
    words = file.command.trial_invocation({"batch_size": 16, "compile": True, "optim_lr": 0.001}).words
    assert words == (
        *("/usr/bin/env", "torchrun", "--nproc-per-node=2", "train.py", "--seed", "1"),
        *("--batch-size=16", "--compile=True", "--optim.lr=0.001"),
    )


@pytest.mark.parametrize(
    ("macro", "words"),
    [
        ("${args_no_hyphens}", ("batch-size=16", "compile=False", "optim.lr=0.001")),
        ("${args_no_boolean_flags}", ("--batch-size=16", "--optim.lr=0.001")),
        (
            "${args_no_equals}",
            ("--batch-size", "16", "--compile", "False", "--optim.lr", "0.001"),
        ),
        ("${args_append_hydra}", ("+batch-size=16", "+compile=False", "+optim.lr=0.001")),
        ("${args_override_hydra}", ("++batch-size=16", "++compile=False", "++optim.lr=0.001")),
        ("${args_json}", ('{"batch-size": 16, "compile": false, "optim.lr": 0.001}',)),
        ("${args_json_file}", ("{folder}/arguments.json",)),
    ],
)
def test_macros_for_values(macro: str, words: tuple[str, ...]) -> None:
    file = study(command=["${interpreter}", "${program}", macro])
    assert file.command is not None
    values = {"batch_size": 16, "compile": False, "optim_lr": 0.001}
    found = file.command.trial_invocation(values)
    assert found.words == ("python", "train.py", *words)
    if macro == "${args_json_file}":
        assert found.arguments == {"batch-size": 16, "compile": False, "optim.lr": 0.001}


def test_a_boolean_flag_stands_alone_where_it_is_true() -> None:
    file = study(command=["python", "train.py", "${args_no_boolean_flags}"])
    assert file.command is not None
    assert file.command.trial_invocation({"compile": True}).words == ("python", "train.py", "--compile")


def test_ranges_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "/data")
    parameters = {
        "lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-2},
        "width": {"min": 8, "max": 64},
    }
    command = ["python", "train.py", "--data", "${envvar:WHERE}", "--width", 16]
    file = study(parameters=parameters, method="bayes", run_cap=30, metric=None, command=command)
    knobs = {knob.key: knob for knob in file.knobs}
    assert knobs["trainer.lr"].log and not knobs["trainer.lr"].integer
    assert knobs["trainer.width"].integer and not knobs["trainer.width"].log
    assert (file.trials, file.sampler, file.objective) == (30, "auto", "step_seconds")
    assert file.config.trainer == {"lr": 1e-4, "width": 16}
    assert file.command is not None
    assert file.command.today.words[3] == "/data"
    assert file.command.with_values({"lr": 0.01, "width": 32}).words[4:] == ("--width", "32", "--lr", "0.01")


def test_a_grid_takes_ranges_of_whole_numbers() -> None:
    file = study(parameters={"a": {"min": 2, "max": 4}, "b": {"values": [1, 2]}})
    assert {knob.key: knob.choices for knob in file.knobs} == {"trainer.a": (2, 3, 4), "trainer.b": (1, 2)}
    assert file.trials == 7


def test_a_range_is_of_whole_numbers_if_both_ends_are() -> None:
    parameters = {"a": {"min": 1, "max": 20.0}, "b": {"min": 1, "max": 20}, "c": {"min": 0.5, "max": 2}}
    knobs = {knob.key: knob for knob in study(parameters=parameters, method="random").knobs}
    assert [knobs[f"trainer.{name}"].integer for name in "abc"] == [False, True, False]
    assert {type(knobs["trainer.a"].interpolate(0.3))} == {float}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"agents": 3}, "agents", "not supported"),
        ({"method": "hyper"}, "method", "grid, random, bayes"),
        ({"method": {"name": "grid"}}, "method", "grid, random, bayes"),
        (
            {"parameters": {"a": {"distribution": ["uniform"], "min": 0, "max": 1}}},
            "parameters.a.distribution",
            "uniform",
        ),
        (
            {"parameters": {"a-b": {"values": [1, 2]}, "a_b": {"values": [3, 4]}}},
            "parameters.a_b",
            "as a-b here",
        ),
        ({"parameters": {"a": {"values": [1, float("nan")]}}}, "parameters.a", "no plain value"),
        ({"metric": {"name": "val_loss", "goal": "minimize"}}, "metric.name", "step_seconds"),
        ({"metric": {"name": "step_time", "goal": "maximize"}}, "metric.goal", "minimize"),
        ({"early_terminate": {"type": "median"}}, "early_terminate", "hyperband"),
        ({"parameters": {}}, "parameters", "empty"),
        ({"parameters": {"a": {"values": [1]}}}, "parameters", "to turn some"),
        ({"parameters": {"a": {"distribution": "normal", "mu": 0}}}, "parameters.a.mu", "not supported"),
        (
            {"parameters": {"a": {"distribution": "beta", "min": 0, "max": 1}}},
            "parameters.a.distribution",
            "uniform",
        ),
        (
            {"parameters": {"a": {"parameters": {"b": {"value": 1}}}}},
            "parameters.a.parameters",
            "not supported",
        ),
        ({"parameters": {"a": {"values": [[1, 2], [3]]}}}, "parameters.a", "no plain value"),
        ({"parameters": {"a": {"min": 4, "max": 1}}}, "parameters.a.min", "not below max"),
        (
            {"parameters": {"a": {"value": 1, "values": [1, 2]}}},
            "parameters.a",
            "value, values, or min and max",
        ),
        (
            {"parameters": {"a": {"values": [1, 2], "distribution": "uniform"}}},
            "parameters.a.distribution",
            "give categorical",
        ),
        (
            {"parameters": {"a": {"min": 1.5, "max": 4, "distribution": "int_uniform"}}},
            "parameters.a",
            "whole ones",
        ),
        ({"method": "grid", "parameters": {"a": {"min": 0, "max": 1.5}}}, "method", "no end"),
        ({"method": "grid", "parameters": {"a": {"min": 1, "max": 20_000}}}, "method", "at most 10,000"),
        ({"command": ["python", "${progam}", "${args}"]}, "command", "no macro that is known"),
        ({"command": ["python", "$(whoami).py", "${args}"]}, "command", "code for a shell"),
        ({"command": ["python", "`whoami`.py", "${args}"]}, "command", "code for a shell"),
        ({"command": ["python", "${envvar:NOT_SET_ANYWHERE}"]}, "command", "NOT_SET_ANYWHERE is not set"),
        ({"command": ["bash", "-c", "python t.py ${args}"]}, "command", "stands inside another word"),
        ({"command": "python train.py"}, "command", "no list"),
        ({"program": None}, "program", "missing"),
        ({"run_cap": 0}, "run_cap", "above 0"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_name(
    changes: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        study(**changes)
    assert caught.value.field == field and words in str(caught.value)


def test_a_file_with_code_in_it_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    path = tmp_path / "sweep.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in SWEEP.items() if key != "metric"})
        + f"metric: !!python/object/apply:os.mkdir ['{witness}']\n"
    )
    with pytest.raises(InputError, match=r"has code in it \(!!python/object/apply:os.mkdir\)"):
        read_tree(path, "study")
    assert not witness.exists()
