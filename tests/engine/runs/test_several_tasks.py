"""Several tasks over real ranks: losses of one process, whoever has which micro-batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.model.data import open_corpus
from engine.model.workloads.task_texts import open_texts
from engine.run.run_folder import RECORDS
from engine.session import Session
from profilers.records.reader import RunRecords
from profilers.records.schema import StepSample, TaskSample
from tests.support.runs import execute, small

SIZES = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 4, "ffn_hidden": 64}


@pytest.fixture(name="config")
def fixture_config(tmp_path: Path) -> RunConfig:
    for name in ("long", "short"):
        (tmp_path / name).write_text(f"A {name} story, told again and again. " * 400)
    tasks = [
        {"name": "long", "path": str(tmp_path / "long"), "share": 4},
        {"name": "short", "path": str(tmp_path / "short")},
    ]
    return small(
        data__tasks=tasks, batch__global_batch=10, batch__micro_batch=1, train__validation_batches=2,
        train__clip_norm=0.1, **{f"model__{key}": size for key, size in SIZES.items()},
    )  # fmt: skip


def test_a_batch_has_each_task_s_windows_in_the_order_that_they_have_alone(config: RunConfig) -> None:
    texts = open_texts(config)
    alone = [open_corpus(config.data.model_copy(update={"path": task.path}), 0) for task in config.data.tasks]
    for step in range(3):
        batch = np.concatenate([alone[0].training(8 * step, 8), alone[1].training(2 * step, 2)])
        assert (texts.training(10 * step, 10) == batch).all()
        assert (texts.training(10 * step + 7, 2) == batch[7:9]).all()
    held_out = np.concatenate([alone[0].validation(8, 8), alone[1].validation(2, 2)])
    assert (texts.validation(10, 10) == held_out).all()


@pytest.mark.timeout(300)
def test_every_deal_gives_the_losses_of_one_process_in_all_and_by_task(
    config: RunConfig, tmp_path: Path
) -> None:
    deals: dict[str, dict[str, Any]] = {
        "even": {"parallel.dp": 2, "parallel.task_ranks": "even"},
        "proportional": {"parallel.dp": 2},
        "three ranks, made ahead": {"parallel.dp": 3, "data.ahead": 2},
        "even, ZeRO 1": {"parallel.dp": 2, "parallel.task_ranks": "even", "parallel.zero_stage": 1},
        "beside tp": {"parallel.dp": 2, "parallel.tp": 2, "parallel.task_ranks": "even"},
        "two at a time": {"parallel.dp": 2, "parallel.task_ranks": "even", "batch.micro_batch": 2},
    }
    with Session(tmp_path) as session:
        alone = execute(session, config)[1]
        for name, values in deals.items():
            found = execute(session, config.with_values(values))[1]
            assert found.losses == pytest.approx(alone.losses, abs=1e-5), name
            assert found.gradient_norms == pytest.approx(alone.gradient_norms, rel=1e-4), name
            assert found.validation_loss == pytest.approx(alone.validation_loss, abs=1e-5), name
            for mine, theirs in zip(found.tasks, alone.tasks, strict=True):
                assert mine.losses == pytest.approx(theirs.losses, abs=1e-5), name
    assert [row.name for row in alone.tasks] == ["long", "short"]
    mixed = [0.8 * a + 0.2 * b for a, b in zip(*(row.losses for row in alone.tasks), strict=True)]  # type: ignore[operator]
    assert mixed == pytest.approx(alone.losses, abs=1e-6)


def test_experts_with_a_balance_loss_learn_alike(config: RunConfig, tmp_path: Path) -> None:
    config = config.with_values({"model.experts": 4, "model.balance_weight": 1.0})
    with Session(tmp_path) as session:
        alone = execute(session, config)[1]
        even = {"parallel.dp": 2, "parallel.task_ranks": "even"}
        found = execute(session, config.with_values(even))[1]
    assert found.losses == pytest.approx(alone.losses, abs=1e-5)


def test_records_say_who_had_what(config: RunConfig, tmp_path: Path) -> None:
    even = config.with_values({"parallel.dp": 2, "parallel.task_ranks": "even"})
    with Session(tmp_path) as session:
        summary = execute(session, even)[1]
        records = RunRecords(tmp_path / summary.id / RECORDS)
        for rank, (task, count) in enumerate([("long", 8), ("short", 2)]):
            steps, samples = records.table(rank, "step").rows(), records.table(rank, "task").rows()
            assert len(samples) == len(steps) == config.train.steps
            for step, sample in zip(steps, samples, strict=True):
                assert isinstance(step, StepSample) and isinstance(sample, TaskSample)
                assert (sample.task, sample.micro_batches) == (task, count)
                assert step.tokens == count * config.data.sequence_length
                assert sample.loss is not None
                # A rank's loss is over the mean number of micro-batches, which is 5.
                assert step.loss == pytest.approx(sample.loss * count / 5, rel=1e-5)
    assert [(row.micro_batches, row.ranks) for row in summary.tasks] == [(8, {0: 8}), (2, {1: 2})]


def test_a_run_goes_on_with_another_deal(config: RunConfig, tmp_path: Path) -> None:
    halves = {"train.steps": 2, "checkpoint.every_steps": 2}
    with Session(tmp_path) as session:
        whole = execute(session, config.with_values({"train.steps": 4}))[1]
        even = {"parallel.dp": 2, "parallel.task_ranks": "even"}
        first = execute(session, config.with_values(halves | even))[1]
        onwards = {"train.steps": 4, "train.resume": str(tmp_path / first.id), "parallel.dp": 3}
        rest = execute(session, config.with_values(onwards))[1]
    assert first.losses + rest.losses == pytest.approx(whole.losses, abs=1e-5)


def test_a_task_whose_text_is_missing_or_short_is_named(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "tiny").write_text("short")
    for path, told in (
        (str(tmp_path / "nowhere"), "no such file"),
        (str(tmp_path / "tiny"), "holds 5 bytes"),
    ):
        tasks = [config.data.tasks[0].model_dump(), {"name": "other", "path": path}]
        wrong = config.with_values({"data.tasks": tasks})
        with pytest.raises(InputError, match=rf"data\.tasks\.1\.path=.*{told}"):
            open_texts(wrong)
    with Session(tmp_path) as session, pytest.raises(InputError, match=r"data\.tasks\.1\.path"):
        missing = [config.data.tasks[0].model_dump(), {"name": "other", "path": str(tmp_path / "nowhere")}]
        session.execute(config.with_values({"data.tasks": missing}), {}, lambda: False)
