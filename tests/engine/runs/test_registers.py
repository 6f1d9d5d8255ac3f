"""Pipelines whose stages hold few messages: losses to the bit as without a bound, and never more held than said."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from unittest import mock

import pytest

from engine.config.run_config import RunConfig
from engine.parallel.build import build_stages
from engine.parallel.pipeline_messages import PipelineMessages
from engine.rank.loop import micro_batches
from engine.schedules.actions import Action, Work
from engine.session import Session
from tests.support.engine.local_sgd_runs import context_of
from tests.support.ranks import on_ranks
from tests.support.runs import execute, small

#: Of the slow stage, for each forward.
SLOW_SECONDS, MICRO_BATCHES = 0.1, 8


@pytest.mark.parametrize(
    ("kind", "chunks", "registers"),
    [("gpipe", 1, 1), ("1f1b", 1, 2), ("zb_v", 2, 1), ("breadth_first", 2, 4)],
)
def test_a_bound_changes_no_number_and_holds(kind: str, chunks: int, registers: int, tmp_path: Path) -> None:
    config = small(parallel__pp=2, schedule__kind=kind, schedule__chunks=chunks, model__layers=4)
    config = config.with_values({"train.validation_batches": 2})
    with Session(tmp_path) as session:
        free, bound = (
            execute(session, config.with_values({"schedule.registers": some}))[1]
            for some in (None, registers)
        )
    assert bound.losses == free.losses and bound.validation_loss == free.validation_loss
    row, plain = bound.pipeline, free.pipeline
    assert row is not None and plain is not None
    assert row.registers == registers and row.most_held is not None and row.register_seconds is not None
    assert 1 <= row.most_held <= registers and plain.registers is plain.most_held is None


def test_a_resumed_run_tells_what_its_own_steps_waited(tmp_path: Path) -> None:
    """Not divided by the steps of the run before, and nothing of what held-out losses waited."""
    config = small(parallel__pp=2, schedule__kind="gpipe", schedule__registers=1, model__layers=8)
    config = config.with_values({"schedule.stage_layers": [1, 7], "data.sequence_length": 256})
    with Session(tmp_path) as session:
        whole = config.with_values({"train.steps": 30, "checkpoint.every_steps": 30})
        first = execute(session, whole)[1]
        more = {"train.steps": 33, "train.resume": str(tmp_path / first.id), "train.validation_batches": 12}
        again = execute(session, config.with_values(more))[1]
    assert first.pipeline is not None and again.pipeline is not None and len(again.losses) == 3
    waited = first.pipeline.register_seconds, again.pipeline.register_seconds
    assert waited[0] and waited[1]
    shares = [seconds / fmean(run.step_samples) for seconds, run in zip(waited, (first, again), strict=True)]
    assert 0.3 < shares[1] / shares[0] < 3.3


class Told(NamedTuple):
    """What a rank's counter says that it held of one way, and when it gave its results and had used up others', which
    are forwards; by a clock that all ranks of a host share.
    """

    most_held: int
    gave: list[float]
    used: list[float]


def with_slow_reader(rank: int, config: RunConfig, bounds: Sequence[int | None], folder: str) -> list[Told]:
    """A step for each bound; the second stage takes its time over every forward."""
    context, found = context_of(rank, config, Path(folder)), []
    for bound in bounds:
        own = replace(context, config=config.with_values({"schedule.registers": bound}))
        stages = build_stages(own)
        (replica,) = stages.stages.values()
        replica.forward = _slow(replica.forward) if rank else replica.forward
        batches = micro_batches(own, *stages.samples().training(0, MICRO_BATCHES))
        gave, used = list[float](), list[float]()
        context.timer.begin(0)
        with _noted("give", gave), _noted("end", used):
            stages.run(batches)
        context.timer.end()
        found.append(Told(stages.most_held, gave, used))
    return found


def _slow(work: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*arguments: Any) -> Any:
        time.sleep(SLOW_SECONDS)
        return work(*arguments)

    return slow


def _noted(name: str, moments: list[float]) -> Any:
    """Note when this is called for a forward."""
    method = getattr(PipelineMessages, name)

    def noted(messages: PipelineMessages, action: Action, *more: Any) -> None:
        if action.work is Work.FORWARD:
            moments.append(time.monotonic())
        method(messages, action, *more)

    return mock.patch.object(PipelineMessages, name, noted)


def piled_up(gave: list[float], used: list[float]) -> int:
    """The most messages that were sent and not used up."""
    return max(number - sum(moment <= now for moment in used) for number, now in enumerate(gave, 1))


def test_messages_pile_up_before_a_slow_stage_unless_there_is_a_bound(tmp_path: Path) -> None:
    """By the counter and by a clock."""
    config = small(parallel__pp=2, schedule__kind="gpipe", batch__global_batch=MICRO_BATCHES)
    bounds = None, 1, 2, 4
    sender, reader = on_ranks(2, with_slow_reader, config, bounds, str(tmp_path))
    for bound, mine, its in zip(bounds, sender, reader, strict=True):
        piled, held = piled_up(mine.gave, its.used), max(mine.most_held, its.most_held)
        assert piled <= mine.most_held, bound
        if bound is None:
            assert piled > 2 and held > 2
        else:
            assert max(piled, held) <= bound
    assert [one.most_held for one in sender[1:]] == [1, 2, 4], "it is fast, and takes all that there are"


def test_a_schedule_that_needs_few_holds_few_without_a_bound(tmp_path: Path) -> None:
    """What comes back tells what was used up, though gloo does not say that it has left."""
    config = small(parallel__pp=2, schedule__kind="1f1b", batch__global_batch=MICRO_BATCHES)
    for (told,) in on_ranks(2, with_slow_reader, config, (None,), str(tmp_path)):
        assert told.most_held == 2
