"""Studies of the time to a loss turn what changes what is learned: global batch, learning rate and its warm-up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.run import run_folder
from engine.session import Session
from profilers.records.reader import RunRecords
from tests.support.studies.fake import run_study
from tuning.space.knobs import default_space, offered_space
from tuning.spec.study_file import StudyFile, parse

LEARNED = {"batch.global_batch", "train.learning_rate", "train.learning_rate_warmup"}
BASE: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn_hidden": 128},
    "data": {"sequence_length": 32},
    "batch": {"global_batch": 8, "micro_batch": 2},
    "train": {"steps": 12, "warmup": 1, "validate_every": 2, "validation_batches": 2},
    "device": "cpu",
}


def asked(space: dict[str, Any] | None, **changes: Any) -> StudyFile:
    tree = {"name": "learned", "ranks": 2, "trials": 4, "confirm_repeats": 0, "base": BASE, "seed": 1}
    given = {} if space is None else {"space": space}
    return parse(tree | given | {"objective": {"time_to_loss": 20.0}} | changes)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm


def test_trials_of_every_global_batch_see_the_same_text(session: Session, tmp_path: Path) -> None:
    """Counted from what the ranks recorded: tokens trained on, and sequences of held-out text."""
    space = {"batch.global_batch": [4, 8, 16]}
    found = run_study(asked(space, name="batches"), tmp_path / "batches", session.execute)
    assert sorted(row["config"]["batch.global_batch"] for row in found["trials"]) == [4, 8, 16]
    assert [row["outcome"] for row in found["trials"]] == ["completed"] * 3
    for row in found["trials"]:
        batch = row["config"]["batch.global_batch"]
        records = RunRecords(session.home / row["run"] / run_folder.RECORDS)
        assert len(records.table(0, "step").rows()) * batch == 12 * 8
        told = [event for event in records.events(0) if event.kind == "validation"]
        assert {event.data["batches"] * batch for event in told} == {2 * 8}
        assert [event.data["step"] * batch for event in told] == [16, 32, 48, 64, 80, 96]


def test_a_trial_has_the_rate_and_warm_up_of_its_point() -> None:
    space = asked({"train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
                   "train.learning_rate_warmup": [0, 6]}).search_space  # fmt: skip
    config = space.config(space.complete({"train.learning_rate": 3e-3, "train.learning_rate_warmup": 6}))
    assert (config.train.learning_rate, config.train.learning_rate_warmup) == (3e-3, 6)
    assert config.train.steps == 12


def test_a_batch_that_does_not_divide_the_held_out_text_is_illegal() -> None:
    space = asked({"batch.global_batch": [8, 12]}).search_space
    assert [point["batch.global_batch"] for point in space.legal_points] == [8]
    with pytest.raises(InputError, match=re.escape("must divide the 16 sequences of held-out text")):
        space.complete({"batch.global_batch": 12})


def test_only_a_study_of_the_time_to_a_loss_is_offered_them() -> None:
    config = asked({}).config
    assert set(offered_space(config, 2, in_time=True)) >= LEARNED
    assert not LEARNED & set(offered_space(config, 2))
    usual = set(default_space(config, 2, in_time=True)) - set(default_space(config, 2))
    assert usual == LEARNED - {"train.learning_rate_warmup"}
    assert {knob.key for knob in asked(None).knobs} >= usual


def test_two_makers_of_the_global_batch_are_refused() -> None:
    with pytest.raises(InputError, match="keep one of them"):
        asked({"batch.global_batch": [8], "batch.accumulation": [2]})
