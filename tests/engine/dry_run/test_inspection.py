"""What is wrong with a person's model is told in one line before anything starts."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from engine.config.errors import InputError
from engine.config.presets import facts_of
from engine.config.validation import rules
from engine.dry_run.inspection import inspect_workload
from engine.run.processes import is_running
from engine.session import Session
from tests.support.engine.own_models import HERE
from tests.support.runs import execute, small

WRONG = {
    "raises": "its factory raises FileNotFoundError: no images; called with ()",
    "leaves": "its factory ends the program (3)",
    "dies": "could not be looked at: its process ended with exit code 9",
    "wrong_thing": "its factory returns Linear; it has to return an engine.model.workload.Workload",
    "no_blocks": "lists no blocks",
    "no_module": "last is built as int; its function has to return an nn.Module",
    "shared": "blocks.0.weight and blocks.1.weight are one parameter",
    "normalised": "blocks.0 averages over a micro-batch",
    "frozen": "last.weight takes no gradient",
    "halved": "last.weight is float16; build it in float32",
    "ragged": "its batches.training(0, 2) raises ValueError: inputs of 2 samples are of shape [3, 12]",
    "many_losses": "; it has to be one number, the mean over samples",
    "plain_loss": "its loss returns float; it has to return a tensor",
    "unnamed_weights": "its weights are list; they have to be tensors by parameter name",
    "number_weights": "weights of last.bias are float; they have to be a tensor",
    "other_weights": "its weights have blocks.9.up.weight, and no part has such a parameter",
    "absent": "has no absent; functions and classes of its own: ",
    "HERE": "HERE is str, not a function",
}


@pytest.mark.parametrize(("factory", "remedy"), WRONG.items(), ids=WRONG)
def test_a_factory_that_does_not_work(factory: str, remedy: str) -> None:
    config = small(model__workload=f"{HERE}:{factory}")
    with pytest.raises(InputError) as told:
        inspect_workload(config)
    assert told.value.field == "model.workload" and told.value.value == f"{HERE}:{factory}"
    assert remedy in told.value.remedy and "\n" not in str(told.value)
    assert facts_of(config.model) is None


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"rows": 5}, "weights of last.weight are [1, 5], and the model's are [1, 6]"),
        ({"leave_out": True}, "its weights have no last.bias; give all of them or none"),
        (
            {"columns": 5},
            "its factory raises TypeError: weighted() got an unexpected keyword argument 'columns'",
        ),
    ],
)
def test_weights_and_options_that_do_not_fit(options: dict[str, int], remedy: str) -> None:
    with pytest.raises(InputError, match=r"model\.workload=") as told:
        inspect_workload(small(model__workload=f"{HERE}:weighted", model__options=options))
    assert remedy in told.value.remedy


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("nowhere.at_all:factory", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("absent.py:factory", "no such file"),
        ("{file}:factory", "cannot be imported: SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_loaded(spec: str, remedy: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def factory(:\n", encoding="utf-8")
    with pytest.raises(InputError) as told:
        inspect_workload(small(model__workload=spec.format(file=file)))
    assert remedy in str(told.value)


def test_a_factory_that_never_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.dry_run.child.SLOW_SECONDS", 0.5)
    noted, said = tmp_path / "pid", list[str]()
    config = small(model__workload=f"{HERE}:endless", model__options={"noted": str(noted)})
    with pytest.raises(InputError) as told:
        inspect_workload(config, 3.0, said.append)
    assert told.value.field == "model.workload"
    assert "gives no answer within 3 s; it is at " in told.value.remedy
    assert re.search(
        r"own_models\.py:\d+ in endless; a larger train\.step_timeout_seconds", told.value.remedy
    )
    assert len(said) == 1 and said[0].startswith(f"model.workload='{HERE}:endless'")
    started = int(noted.read_text())
    until = time.monotonic() + 5.0
    while is_running(started):
        assert time.monotonic() < until, "what the factory started goes on"
        time.sleep(0.05)


def test_rules_know_what_was_found(session: Session) -> None:
    options = {"width": 48}  # another model than in other tests
    deep = small(model__workload=f"{HERE}:shrinking", model__options=options, parallel__pp=5)
    assert not list(rules.problems(deep)), "nobody knows yet how many blocks there are"
    found = inspect_workload(deep)
    assert found is not None and found.blocks == 4
    (problem,) = rules.problems(deep)
    assert (problem.field, problem.remedy) == ("parallel.pp", "5 stages for layers=4; nearest legal: 4")
    outcome, _ = execute(session, deep)
    assert outcome.ending.value == "illegal"


def test_a_pipeline_needs_shapes(session: Session) -> None:
    outcome, _ = execute(session, small(model__workload=f"{HERE}:no_meta", parallel__pp=2))
    assert outcome.ending.value == "illegal"
    assert "parallel.pp=2: what blocks.0 gives is not known" in str(outcome.reason)


def test_the_decoder_needs_no_look() -> None:
    assert inspect_workload(small()) is None
