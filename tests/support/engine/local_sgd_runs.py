"""Outer loops in tests: small runs of them, and what their records say."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.comm.context import RankContext, build_groups
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.parallel.data.replica import Piece, extent_of
from engine.parallel.local_sgd.outer_optimizer import outer_loop
from engine.parallel.local_sgd.replica_comm import Link
from engine.parallel.local_sgd.rounds import LoopInput, OuterLoop, settings_of
from engine.run import run_folder
from engine.run.commands import StopControl
from engine.session import Session
from profilers.analysis.events import OuterAverage, outer_averages
from profilers.collectives.recorder import CollectiveRecorder
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.steps.clock import clock_for
from profilers.steps.timer import StepTimer
from tests.support.runs import execute, small

SHORT: dict[str, Any] = {
    "parallel__dp": 2,
    "train__warmup": 2,
    "train__validation_batches": 1,
    "outer__period": 3,
}


def run(session: Session, **values: Any) -> RunSummary:
    """A run of two replicas that ended well; ``outer__method`` chooses the loop."""
    outcome, summary = execute(session, small(**SHORT | values))
    assert outcome.good, outcome
    return summary


def folder_of(session: Session, summary: RunSummary) -> Path:
    """Where a run's records lie."""
    return session.home / summary.id


def averages(session: Session, summary: RunSummary, rank: int = 0) -> list[OuterAverage]:
    """Every average that a rank of a run took over."""
    return outer_averages(RunRecords(folder_of(session, summary) / run_folder.RECORDS), rank)


def context_of(rank: int, config: RunConfig, folder: Path) -> RankContext:
    """A rank of a run as its parts know it, in the default group."""
    layout, device = layout_of(config), torch.device("cpu")
    made = build_groups(layout, rank, device, timedelta(seconds=30))
    timer = StepTimer(clock_for("cpu"))
    recorder, writer = CollectiveRecorder(timer, made.axes), RecordWriter(folder, f"rank-{rank}")
    return RankContext(rank, config, layout, device, made, timer, recorder, writer, StopControl(None, rank))


def pieces_of(weights: dict[str, nn.Parameter]) -> list[Piece]:
    """Whole parameters as an optimizer sees them."""
    return [
        Piece(
            name,
            weight,
            lambda weight=weight: weight.grad,
            True,
            False,
            1,
            extent_of(tuple(weight.shape), {}),
        )
        for name, weight in weights.items()
    ]


def loop_of(rank: RankContext, weights: dict[str, nn.Parameter]) -> OuterLoop:
    """The outer loop that a configuration asks for, over some weights."""
    assert rank.groups.outer is not None
    link = Link(rank.groups.outer, rank.device, rank.timer)
    pieces = pieces_of(weights)
    return outer_loop(
        LoopInput(rank, link, settings_of(rank.config), pieces, [1.0] * len(pieces), lambda: None)
    )
