"""A run with a time has as many steps as fit, and a learning rate that goes as if it had known how many."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.config.validation.rules import check
from engine.parallel.data.optimizer import learning_rate
from engine.run import progress, run_folder
from engine.run.commands import StopControl
from engine.run.outcome import Ending
from engine.run.progress import Progress
from engine.session import Session
from profilers.records.reader import Event, RunRecords
from tests.support.engine.own_models import HERE
from tests.support.engine.plain_loop import plain_losses
from tests.support.runs import execute, small

SECONDS = 4.0
VALUES: dict[str, Any] = {
    "model__workload": "vision",
    "train__seconds": SECONDS,
    "train__learning_rate_schedule": "one_cycle",
    "train__optimizer": "sgd",
    "train__learning_rate": 0.1,
    "train__validate_every": 20,
}


def events(folder: Path, *kinds: str) -> list[Event]:
    return [event for event in RunRecords(folder / "records").events(0) if event.kind in kinds]


def taken(folder: Path) -> tuple[float, Event]:
    """Seconds by the clock of the records, which is not the one that plans: from where rank 0 builds to the last loss
    on held-out samples; and that loss.
    """
    records = RunRecords(folder / "records")
    losses = [one for rank in records.ranks() for one in records.events(rank) if one.kind == "validation"]
    last = max(losses, key=lambda one: one.time_unix)
    began = next(e for e in events(folder, "built"))
    return last.time_unix - (began.time_unix - began.data["seconds"]), last


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"parallel__dp": 2, "parallel__zero_stage": 3},
        {"parallel__pp": 2},
        {"parallel__dp": 2, "outer__method": "diloco", "outer__period": 4},
        {"parallel__dp": 2, "overlap__delay": 1},
        {"checkpoint__every_steps": 10},
    ],
    ids=str,
)
def test_it_ends_as_its_time_does(session: Session, layout: dict[str, Any]) -> None:
    folders: list[Path] = []
    outcome, summary = execute(session, small(**VALUES, **layout), on_start=folders.append)
    assert outcome.good, outcome
    (told,) = events(folders[0], "time_budget")
    steps = len(summary.losses)
    assert told.data["steps"] == steps > 1  # what is over before the first step has two
    took, last = taken(folders[0])
    assert last.data["step"] == steps
    assert took == pytest.approx(told.data["took"], abs=0.2)
    config = run_folder.last_config(folders[0])
    assert config is not None and config.train.steps == steps
    period = layout.get("outer__period", 1)
    assert steps % period == 0
    # What one step more would have taken, as they were at the end, or one less; twice, since machines are busy.
    late = 2 * period * max(summary.step_samples[-20:]) + 2 * last.data["seconds"]
    late += 2 * max((one.data["paused_seconds"] for one in events(folders[0], "checkpoint")), default=0.0)
    assert abs(took - SECONDS) < max(0.5, late)


#: Seconds of a step and of a held-out loss, which ranks sleep away; a loss and a save are due after so many steps.
STEP, LOSS, LOSS_EVERY, SAVE_EVERY = 0.4, 1.2, 5, 3
#: Seconds beside them: what is between steps, and what records do not tell.
SLACK = 0.2


def test_it_ends_within_a_step_of_its_time(session: Session) -> None:
    """Losses and saves on the way and at its end are within it. Its length is announced some steps before it ends: what
    a busy machine takes from then on beyond the pace, which is a mean, the last loss and the saves is allowed beside
    ``SLACK``, as the records have it.
    """
    folders: list[Path] = []
    config = small(
        model__workload=f"{HERE}:paced", model__options={"seconds": STEP, "held_out": LOSS}, parallel__dp=2,
        train__seconds=12.0, train__validate_every=LOSS_EVERY, checkpoint__every_steps=SAVE_EVERY,
    )  # fmt: skip
    outcome, summary = execute(session, config, on_start=folders.append)
    assert outcome.good, outcome
    steps, saves = len(summary.losses), events(folders[0], "checkpoint")
    took, last = taken(folders[0])
    assert last.data["step"] == steps > LOSS_EVERY and len(saves) == -(-steps // SAVE_EVERY)
    beyond = [sample - STEP for sample in summary.step_samples]
    pauses = [one.data["paused_seconds"] for one in saves]
    busy = sum(beyond[-4:]) + 4 * fmean(beyond) + last.data["seconds"] - LOSS
    busy += sum(abs(after - before) for before, after in pairwise(pauses))
    # One step more would not have fit, with the loss and the save that are due before it.
    more = STEP + LOSS * (steps % LOSS_EVERY == 0) + max(pauses) * (steps % SAVE_EVERY == 0)
    assert -more - SLACK - busy < took - config.train.seconds < SLACK + busy, (steps, busy, pauses, beyond)


def test_a_cold_second_step_does_not_end_a_run_early(session: Session) -> None:
    """By it alone no further step would fit."""
    cold = {"seconds": 0.1, "first": 2.5}
    micro_batch = small().batch.global_batch
    config = small(
        model__workload=f"{HERE}:cold", model__options=cold, batch__micro_batch=micro_batch, train__seconds=12.0,
        train__validation_batches=0,
    )  # fmt: skip
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert summary.budget_used_seconds is not None and summary.budget_used_seconds > 11.0


def test_a_time_that_is_over_at_once_ends_as_soon_as_all_ranks_can_know(session: Session) -> None:
    """Building takes longer: two steps, where one that asks for a pace first has four."""
    folders: list[Path] = []
    config = small(**VALUES | {"train__seconds": 0.001}, parallel__dp=2)
    outcome, summary = execute(session, config, on_start=folders.append)
    assert outcome.good, outcome
    (told,) = events(folders[0], "time_budget")
    assert told.data["steps"] == len(summary.losses) == 2


def test_a_run_that_is_stopped_tells_what_it_used_of_its_time(session: Session) -> None:
    folders: list[Path] = []
    config = small(**VALUES | {"train__seconds": 50.0})

    def has_steps() -> bool:
        return any(rank.step >= 3 for rank in progress.read(folders[0]))

    outcome, summary = execute(session, config, has_steps, folders.append)
    assert outcome.ending is Ending.STOPPED
    assert summary.budget_seconds == 50.0
    assert summary.budget_stopped
    first = events(folders[0], "built")[0]
    (told,) = events(folders[0], "time_budget")
    took = told.time_unix - (first.time_unix - first.data["seconds"])
    assert summary.budget_used_seconds == pytest.approx(took, abs=1.0)
    assert took < 50.0
    assert run_folder.last_config(folders[0]) is None, "it has not all the steps that were planned"


def test_its_learning_rate_is_that_of_the_lengths_it_told(session: Session) -> None:
    folders: list[Path] = []
    config = small(**VALUES, parallel__dp=2, parallel__zero_stage=3)
    outcome, summary = execute(session, config, on_start=folders.append)
    assert outcome.good, outcome
    told = [(event.data["step"], event.data["steps"]) for event in events(folders[0], "length")]
    assert told[0][0] > 2 and [first for first, _ in told] == sorted(first for first, _ in told)

    def at(step: int) -> RunConfig:
        known = [steps for first, steps in told if first <= step]
        return config.with_values({"train.steps": known[-1] if known else 1_000_000})

    whole = config.with_values({"train.steps": len(summary.losses), "train.seconds": None})
    assert summary.losses == pytest.approx(plain_losses(whole, at), abs=1e-5, rel=0)


def test_a_rate_that_rises_longer_than_the_time_only_rises_and_may_be_trained_again(session: Session) -> None:
    folders: list[Path] = []
    rate = {"train__learning_rate_schedule": "cosine", "train__learning_rate_warmup": 100_000}
    config = small(**VALUES | rate | {"train__seconds": 1.0, "train__steps": 24})
    outcome, summary = execute(session, config, on_start=folders.append)
    assert outcome.good, outcome
    after = run_folder.last_config(folders[0])
    assert after is not None and after.train.steps == len(summary.losses)
    check(after)
    steps = range(after.train.steps)
    wanted = [after.train.learning_rate * (step + 1) / 100_000 for step in steps]
    assert [learning_rate(after, step) for step in steps] == pytest.approx(wanted)


def test_a_run_that_goes_on_has_a_time_of_its_own(session: Session) -> None:
    folders: list[Path] = []
    plain = VALUES | {"train__seconds": None}
    first = small(**plain | {"train__steps": 8}, checkpoint__every_steps=8)
    outcome, _ = execute(session, first, on_start=folders.append)
    assert outcome.good, outcome
    rest = VALUES | {"train__seconds": 3.0, "train__steps": 5, "train__resume": str(folders[0])}
    outcome, summary = execute(session, small(**rest), on_start=folders.append)
    assert outcome.good, outcome
    assert summary.first_step == 8 and summary.losses
    used, warm_up = summary.budget_used_seconds, small().train.warmup
    assert used is not None and used > 1.5, "it ended early, by the steps or the time of the run before it"
    assert summary.measured_from_step is None or summary.measured_from_step >= 8 + warm_up


def test_all_ranks_take_over_a_length_at_the_same_step(tmp_path: Path) -> None:
    page = Progress(tmp_path, 2)
    first, second = StopControl(page, 0), StopControl(page, 1)
    assert first.planned_steps(3) is None
    first.plan(3, 100)
    assert [first.planned_steps(step) for step in (3, 4, 5)] == [None, None, 100]
    first.plan(5, 50)  # rank 1 may not be there yet
    assert [second.planned_steps(step) for step in (4, 5)] == [None, 100]
    first.plan(6, 50)
    assert [first.planned_steps(step) for step in (8, 9)] == [50, 50]
    assert [second.planned_steps(step) for step in (8,)] == [50]
    first.plan(9, 2)  # fewer than are done: the run is over where all know it
    assert (first.planned_steps(11), second.planned_steps(11)) == (11, 11)


def test_a_length_that_comes_late_is_whole_rounds_all_the_same(tmp_path: Path) -> None:
    control = StopControl(Progress(tmp_path, 2), 0)
    control.widen(8)
    control.plan(5, 8, period=4)  # before step 15 not all ranks know it
    assert control.planned_steps(15) == 16


def test_a_stop_is_the_last_word(tmp_path: Path) -> None:
    page = Progress(tmp_path, 2)
    control = StopControl(page, 0)
    control.plan(3, 100)
    page.request_stop()
    assert not any(control.should_stop(step) for step in (4, 5))  # ranks may not know the length yet
    assert not control.should_stop(6)
    control.plan(7, 50)
    assert control.planned_steps(8) is None
    assert control.should_stop(8)
