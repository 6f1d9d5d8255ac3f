"""Runs that save, and runs that go on from there: the same numbers, whatever happened in between."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import checkpoint_folder
from engine.config.errors import InputError
from engine.run import progress, run_folder
from engine.run.outcome import Ending
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from tests.support.runs import execute, small

STEPS = 5
#: Small enough that a run spends most of its time saving.
THIN: dict[str, Any] = {
    "model__layers": 2,
    "model__hidden": 32,
    "model__heads": 2,
    "model__kv_heads": 2,
    "model__ffn_hidden": 40,
    "data__sequence_length": 32,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"parallel__dp": 2},
    "zero1": {"parallel__dp": 2, "parallel__zero_stage": 1},
    "zero3": {"parallel__dp": 2, "parallel__zero_stage": 3},
    "tp2": {"parallel__tp": 2},
    "pp2": {"parallel__pp": 2},
    "bf16": {"parallel__dp": 2, "memory__parameters": "bf16", "precision": "bf16"},
    "offload": {"parallel__dp": 2, "parallel__zero_stage": 1, "memory__offload": "both"},
}


def losses_of(session: Session, **values: Any) -> RunSummary:
    """A good run's summary."""
    outcome, summary = execute(session, small(**THIN | values))
    assert outcome.good, outcome
    return summary


def folder_of(session: Session, summary: RunSummary) -> Path:
    return session.home / summary.id


def names_in(run: Path) -> list[str]:
    return sorted(
        path.name for path in (run / checkpoint_folder.CHECKPOINTS).iterdir() if path.name != ".lock"
    )


@pytest.fixture(scope="module")
def uninterrupted(session: Session) -> list[float | None]:
    """Losses of one process."""
    return losses_of(session, train__steps=STEPS).losses


@pytest.mark.drawn(3)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_resumed_run_has_the_losses_of_one_that_never_stopped(
    session: Session, layout: dict[str, Any]
) -> None:
    """In the middle of the warm-up, whose rate is of the step of the run."""
    layout = layout | {"train__learning_rate_warmup": STEPS}
    straight = losses_of(session, train__steps=STEPS, **layout)
    saving = losses_of(session, train__steps=3, checkpoint__every_steps=2, **layout)
    assert saving.losses == straight.losses[:3]
    resumed = losses_of(session, train__steps=STEPS, train__resume=str(folder_of(session, saving)), **layout)
    assert resumed.losses == straight.losses[3:]
    assert resumed.gradient_norms == straight.gradient_norms[3:]
    assert resumed.validation_loss == straight.validation_loss
    assert (resumed.first_step, resumed.measured_steps) == (3, 1)
    assert resumed.resumed is not None
    assert (resumed.resumed.run, resumed.resumed.step, resumed.resumed.changed) == (saving.id, 3, {})


def test_a_run_goes_on_in_another_layout(session: Session, uninterrupted: list[float | None]) -> None:
    saving = losses_of(session, train__steps=2, checkpoint__every_steps=2, **LAYOUTS["zero1"])
    for name in ("tp2", "pp2", "zero3"):
        config = {"train__resume": str(folder_of(session, saving)), "train__steps": STEPS}
        resumed = losses_of(session, **config, **LAYOUTS[name])
        assert resumed.losses == pytest.approx(uninterrupted[2:], abs=1e-5, rel=0)


def test_what_changed_since_the_save_is_on_record(session: Session) -> None:
    saving = losses_of(session, train__steps=2, checkpoint__every_steps=2)
    changed = {"train__seed": 3, "train__learning_rate": 0.01}
    resumed = losses_of(session, train__steps=3, train__resume=str(folder_of(session, saving)), **changed)
    assert resumed.resumed is not None
    assert resumed.resumed.changed == {"train.seed": [0, 3], "train.learning_rate": [0.001, 0.01]}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_only_the_newest_checkpoints_are_kept(session: Session, asynchronous: bool) -> None:
    summary = losses_of(
        session, train__steps=7, checkpoint__every_steps=2, checkpoint__asynchronous=asynchronous,
        parallel__dp=2,
    )  # fmt: skip
    run = folder_of(session, summary)
    assert names_in(run) == ["last", "step-000006", "step-000007"]
    assert checkpoint_folder.last_of(run) == run / checkpoint_folder.CHECKPOINTS / "step-000007"
    rows = summary.checkpoints
    assert [(row.step, row.problem) for row in rows] == [(2, None), (4, None), (6, None), (7, None)]
    assert {row.asynchronous for row in rows} == {asynchronous}
    for row in rows:
        assert row.bytes is not None
        assert row.bytes > 12 * summary.parameters
        assert 0 < row.paused_seconds <= row.seconds
        assert (row.paused_seconds == row.seconds) is not asynchronous


def test_collectives_of_a_save_in_the_background_are_no_part_of_a_step(session: Session) -> None:
    layout = {"parallel__dp": 2, "train__steps": 6}
    plain = losses_of(session, **layout)
    saving = losses_of(session, **layout, checkpoint__every_steps=1, checkpoint__asynchronous=True)
    rows = [(row.axis, row.operation, row.calls) for row in saving.communication]
    assert rows == [(row.axis, row.operation, row.calls) for row in plain.communication]
    assert saving.losses == plain.losses


def test_a_stopped_run_saves_where_it_stopped(session: Session, uninterrupted: list[float | None]) -> None:
    asked = threading.Event()
    config = small(**THIN, train__steps=100_000, checkpoint__every_steps=50_000)
    outcome, summary = execute(session, config, asked.is_set, when(lambda run: step_of(run) >= 1, asked.set))
    assert outcome.ending is Ending.STOPPED
    assert [row.step for row in summary.checkpoints] == [len(summary.losses)]
    straight = losses_of(session, train__steps=len(summary.losses) + 2)
    resumed = losses_of(
        session,
        train__steps=len(summary.losses) + 2,
        train__resume=str(folder_of(session, summary)),
    )
    assert summary.losses + resumed.losses == straight.losses
    assert straight.losses[:STEPS] == uninterrupted[: len(straight.losses)]


def when(
    seen: Callable[[Path], bool], act: Callable[[], object], seconds: float = 0.0
) -> Callable[[Path], None]:
    """An ``on_start`` that acts so long after something was seen in the run's folder."""

    def wait_and_act(folder: Path) -> None:
        deadline = time.monotonic() + 60
        while not seen(folder):
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)
        time.sleep(seconds)
        act()

    return lambda folder: threading.Thread(target=wait_and_act, args=(folder,), daemon=True).start()


def step_of(run: Path) -> int:
    return min((rank.step for rank in progress.read(run)), default=-1)


def test_a_checkpoint_whose_contents_changed_is_not_used(session: Session) -> None:
    saving = losses_of(session, train__steps=2, checkpoint__every_steps=1, parallel__dp=2)
    checkpoint = checkpoint_folder.last_of(folder_of(session, saving))
    assert checkpoint is not None
    config = small(**THIN, parallel__tp=2, train__steps=3, train__resume=str(checkpoint))
    with flipped(checkpoint / "__1_0.distcp"):
        outcome, _ = execute(session, config)
        assert outcome.ending is Ending.CRASHED
        assert f"{checkpoint} is damaged (__1_0.distcp is not what was saved)" in outcome.reason
        assert outcome.reason.endswith(f"resume from {checkpoint.with_name('step-000001')}")
    with (
        flipped(checkpoint / checkpoint_folder.METADATA),
        pytest.raises(InputError, match=r"damaged \(.metadata is not"),
    ):
        execute(session, config)
    outcome, _ = execute(session, config)
    assert outcome.good, outcome


@contextlib.contextmanager
def flipped(path: Path) -> Iterator[None]:
    """One bit in the middle of a file is the other one."""
    good = path.read_bytes()
    middle = len(good) // 2
    path.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    yield
    path.write_bytes(good)


def test_records_of_ranks_go_on_counting(session: Session) -> None:
    saving = losses_of(session, train__steps=2, checkpoint__every_steps=2, parallel__dp=2)
    resumed = losses_of(session, train__steps=4, train__resume=str(folder_of(session, saving)))
    records = RunRecords(folder_of(session, resumed) / run_folder.RECORDS)
    assert records.table(0, "step").column("step").tolist() == [2, 3]


@pytest.mark.gpu
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_gpu_and_the_cpu_go_on_from_each_other(session: Session, asynchronous: bool) -> None:
    saving = {"train__steps": 3, "checkpoint__every_steps": 1, "checkpoint__asynchronous": asynchronous}
    reference = losses_of(session, train__steps=STEPS)
    for here, there in (("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")):
        saved = losses_of(session, device=here, **saving)
        resumed = losses_of(
            session, device=there, train__steps=STEPS, train__resume=str(folder_of(session, saved))
        )
        assert resumed.losses == pytest.approx(reference.losses[3:], abs=1e-4, rel=0)
