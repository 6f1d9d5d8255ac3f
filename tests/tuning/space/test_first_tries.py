"""What is tried before a sampler knows anything: more speed where the baseline ran, less memory where it did not."""

from __future__ import annotations

from pathlib import Path

from engine.config.run_config import RunConfig
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.fake import Machine, run_study, study
from tuning.space.first_tries import first_tries, fitting_tries
from tuning.spec.study_file import parse


def sharded_only(config: RunConfig) -> RunOutcome | None:
    """All that is not sharded and recomputed is too large."""
    fits = config.parallel.zero_stage == 3 and config.memory.recompute == "full"
    return None if fits else RunOutcome(Ending.OOM, "too large")


def test_what_saves_memory_comes_first_where_the_baseline_did_not_fit(tmp_path: Path) -> None:
    found = run_study(study(trials=12), tmp_path / "first", Machine(by_config=sharded_only))
    baseline, *rows = found["trials"]
    assert baseline["outcome"] == "oom"
    assert [row["why"] for row in rows[:3]] == [
        "to fit first: the smallest micro-batch", "to fit first: the most sharding", "to fit first: recomputation",
    ]  # fmt: skip
    assert [row["outcome"] for row in rows[:3]] == ["oom", "oom", "completed"]
    assert not any(row["why"] for row in rows[3:] if row["source"] == "sampler")


def test_a_baseline_that_ran_is_followed_by_larger_micro_batches(tmp_path: Path) -> None:
    found = run_study(study(trials=6), tmp_path / "first", Machine())
    assert found["trials"][1]["why"] == "the largest micro-batch that divides"


def test_at_last_the_model_is_split_as_far_as_it_goes() -> None:
    space = study().search_space
    point, why = fitting_tries(space, 40)[3]
    assert why == "to fit first: the model split"
    assert point["parallel.tp"] * point["parallel.pp"] == 4
    assert point["batch.micro_batch"] == 1


def test_a_baseline_outside_of_the_space_is_left_for_the_nearest_in_it() -> None:
    """The yardstick takes one micro-batch a step; the space has five at least."""
    turned = {"batch.accumulation": [5, 10], "ranks": [2, 4], "parallel.tp": [1, 2], "parallel.pp": [1, 2]}
    space = study(space=turned, ranks=4).search_space
    assert space.why_outside(space.baseline[0])
    points = [point for point, _ in fitting_tries(space, 40)]
    assert points and not any(space.why_outside(point) or space.problem(point) for point in points)
    assert {point["batch.accumulation"] for point in points} == {5}
    assert (points[0]["ranks"], points[0]["parallel.tp"], points[0]["parallel.pp"]) == (4, 2, 2)
    assert [point for point, _ in first_tries(space, 40)]


def test_of_a_command_one_thing_changes_at_a_time() -> None:
    """Hugging Face's Trainer, which recomputes today."""
    command = (
        "torchrun --nproc-per-node 2 train.py --do_train --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 8 --gradient_checkpointing true"
    )
    space = parse({"name": "s", "trainer": {"command": command}}).search_space
    today = space.baseline[0]
    changes = [
        {key: value for key, value in point.items() if value != today[key]}
        for point, _ in first_tries(space, 12)
    ]
    assert changes == [{"trainer.recompute": False}, {"trainer.micro_batch": 8}, {"trainer.micro_batch": 4}]
    assert first_tries(space, 4)[0][1] == "without recomputation, all else as it is"
