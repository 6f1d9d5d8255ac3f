"""A run with a planted straggler, whose collectives meet as real ones do: none ends before all are there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from profilers.records.schema import CommSample, SpanSample
from tests.support.samples import step_sample
from tests.support.workbench.synthetic import FakeRun, RunFolder

#: When it began, and what a step, its longest forward aside, and its all-reduce take.
START, BETWEEN, REDUCING = 1_780_000_000.0, 0.5, 0.004
#: Steps whose phases are kept as spans.
KEPT = 8

Slow = Callable[[int, int], float]


def write_skewed(
    home: Path,
    slow: Slow,
    ranks: int = 4,
    steps: int = 40,
    ranks_per_host: int = 0,
    study: str | None = None,
    trial: int | None = None,
    *,
    goes_on: bool = False,
) -> str:
    """Ranks whose forward takes 50 ms, give or take 0.1, and ``slow(rank, step)`` more, then meet in one all-reduce.

    Returns the run's id. With ``ranks_per_host`` ranks tell their hosts: node-0, node-1 ... One that ``goes_on`` has
    ended its last step just now.
    """
    values = {"parallel.dp": ranks, "batch.global_batch": ranks, "batch.micro_batch": 1}
    began = time.time() - steps * BETWEEN if goes_on else START
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(began)) if goes_on else "20260801-120000"
    wanted, ending = (10 * steps, None) if goes_on else (steps, "completed")
    run = FakeRun(f"{stamp}-{ranks:04x}", values, BETWEEN, wanted, ending, started_unix=began)
    run.study, run.trial = study, trial
    folder = RunFolder(home, run)
    if ranks_per_host:
        for rank, writer in enumerate(folder.ranks):
            writer.event("environment", host=f"node-{rank // ranks_per_host}")
    drawn = random.Random(0)
    for step in range(steps):
        forwards = [0.05 + abs(drawn.gauss(0, 0.0001)) + slow(rank, step) for rank in range(ranks)]
        _write_step(folder, began, step, forwards)
    if not goes_on:
        folder.end()
    return run.id


def _write_step(folder: RunFolder, began: float, step: int, forwards: list[float]) -> None:
    begin, ended = began + step * BETWEEN, max(forwards) + REDUCING
    for rank, (writer, forward) in enumerate(zip(folder.ranks, forwards, strict=True)):
        waited = ended - forward
        phases = {"forward": forward, "communication_exposed": waited}
        writer.write(step_sample(step, start_unix=begin, measured=step >= 4, loss=2.0, **phases))
        if len(forwards) > 1:
            writer.write(
                CommSample(
                    step,
                    "all_reduce",
                    "dp",
                    "float32",
                    len(forwards),
                    4_000_000,
                    begin + forward,
                    waited,
                    waited,
                )
            )
        if step % KEPT == 0:
            writer.write(SpanSample(step, "forward", begin, forward))
            writer.write(SpanSample(step, "communication_exposed", begin + forward, waited))
        folder.progress.enter_state(rank, step + 1, "forward")
