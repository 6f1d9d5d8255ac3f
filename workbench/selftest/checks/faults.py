"""Checks of bad endings: a rank without memory, a killed one, a stopped one; each told right, and the next run good."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.run_config import RunConfig
from engine.footprint.footprint import footprints
from engine.run import progress, run_folder
from engine.run.outcome import Ending, RunOutcome
from engine.session import Session
from profilers.gpu import detection
from workbench.selftest.check_context import STEP_PATIENCE_SECONDS, CheckContext
from workbench.selftest.results import Number, Verdict, not_possible, verdict_of

#: The rank that is harmed.
_VICTIM = 1
_STEP = 3
_LOOK_SECONDS = 0.02
_START_SECONDS = 90.0
_HANG_PATIENCE_SECONDS = 5.0
_LONG: dict[str, Any] = {"train.steps": 100_000, "parallel.dp": 2}
#: Nearly all layers on the second of two stages, so that only this one runs out.
_UNEVEN: dict[str, Any] = {"parallel.pp": 2, "batch.micro_batch": 1, "batch.global_batch": 2}
_CPU_LIMIT_GIB = 0.75
_MOST_SEQUENCES = 2**20


@dataclass(slots=True)
class _FaultResult:
    """A run to which something was done, and the seconds from then to its ending; None if nothing was done."""

    outcome: RunOutcome
    folder: Path
    seconds: float | None


def out_of_memory(bench: CheckContext) -> Verdict:
    """The second of two stages does not fit; the first one does."""
    on_cpu = bench.why_not_cuda(2) is not None
    config = _too_large_for_a_cpu_rank(bench) if on_cpu else _too_large_for_a_gpu(bench)
    if config is None:
        return not_possible(
            "no size was found at which one rank of two runs out of memory and the other does not"
        )
    with bench.session() as session:
        started = time.monotonic()
        outcome, _ = bench.run(session, config, "out-of-memory")
        seconds = time.monotonic() - started
        problems = _check_ending(outcome, Ending.OOM, _VICTIM)
        if seconds > STEP_PATIENCE_SECONDS:
            problems.append(f"it took {seconds:.0f} s to be noticed, which is as long as a hang")
        problems += _next_run(bench, session)
    success = f"rank {_VICTIM} of pp=2 ran out of memory in its phase {outcome.phase}, and was named"
    return verdict_of(
        problems, f"{success} ({bench.describe_backend(config)})", {"to_ending_seconds": seconds}
    )


def killed_rank(bench: CheckContext) -> Verdict:
    """SIGKILL from outside."""
    with bench.session() as session:
        config = bench.config(_LONG)
        fault = _harm(bench, session, config, "killed-rank", signal.SIGKILL)
        problems = _check_ending(fault.outcome, Ending.CRASHED, _VICTIM)
        if not fault.outcome.killed_from_outside:
            problems.append("it does not say that the signal came from outside")
        problems += _next_run(bench, session)
    success = f"rank {_VICTIM} of dp=2 was named with its signal ({bench.describe_backend(config)})"
    return verdict_of(problems, success, {"to_ending_seconds": fault.seconds})


def hung_rank(bench: CheckContext) -> Verdict:
    """SIGSTOP: the others wait in a collective, which has to be named."""
    with bench.session() as session:
        patience = {"train.step_timeout_seconds": _HANG_PATIENCE_SECONDS}
        config = bench.config(_LONG | patience)
        fault = _harm(bench, session, config, "hung-rank", signal.SIGSTOP)
        problems = _check_ending(fault.outcome, Ending.HANG, _VICTIM)
        dumps = len(list((fault.folder / run_folder.FLIGHT).glob("rank-*.json")))
        if not dumps:
            problems.append("no rank left a dump of its last collectives")
        elif "; " not in fault.outcome.reason:
            problems.append(f"the collective that the others wait in is not named: {fault.outcome.reason}")
        problems += _next_run(bench, session)
    measured: dict[str, Number] = {"to_ending_seconds": fault.seconds, "dumps_count": dumps}
    return verdict_of(problems, f"{fault.outcome.reason} ({bench.describe_backend(config)})", measured)


def _harm(
    bench: CheckContext, session: Session, config: RunConfig, label: str, number: signal.Signals
) -> _FaultResult:
    """Run, and send the victim's process a signal once every rank has taken a few steps."""
    written: list[Path] = []
    kill_times: list[float] = []

    def follow(folder: Path) -> None:
        written.append(folder)
        threading.Thread(target=_kill_rank, args=(folder, number, kill_times), daemon=True).start()

    def late() -> bool:
        return not kill_times and time.monotonic() - started > _START_SECONDS

    started = time.monotonic()
    outcome, _ = bench.run(session, config, label, late, follow)
    return _FaultResult(outcome, written[0], time.monotonic() - kill_times[0] if kill_times else None)


def _kill_rank(folder: Path, number: signal.Signals, kill_times: list[float]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        ranks = progress.read(folder)
        if len(ranks) > 1 and min(rank.step for rank in ranks) >= _STEP:
            kill_times.append(time.monotonic())
            os.kill(ranks[_VICTIM].pid, number)
            return
        time.sleep(_LOOK_SECONDS)


def _check_ending(outcome: RunOutcome, ending: Ending, rank: int) -> list[str]:
    """What is wrong with an ending."""
    if outcome.ending is not ending:
        return [f"ended {outcome.ending.value} instead of {ending.value}: {outcome.reason}"]
    return [] if outcome.rank == rank else [f"rank {outcome.rank} was named instead of rank {rank}"]


def _next_run(bench: CheckContext, session: Session) -> list[str]:
    """What is wrong with a small run on the same session."""
    outcome, _ = bench.run(session, bench.config({"parallel.dp": 2}), "afterwards")
    return [] if outcome.good else [f"the run after it ended {outcome.ending.value}: {outcome.reason}"]


def _too_large_for_a_cpu_rank(bench: CheckContext) -> RunConfig:
    """Parameters alone take more than a rank may have; the first stage has one layer of twelve."""
    values = {"model.preset": "small", "schedule.stage_layers": [1, 11], "memory.limit_gib": _CPU_LIMIT_GIB}
    return bench.config(_UNEVEN | values)


def _too_large_for_a_gpu(bench: CheckContext) -> RunConfig | None:
    """Micro-batches that grow until one stage needs half as much again as a GPU has; None if the other does too."""
    total = detection.open_library().limits(0).memory_total_bytes or 0
    values = {"model.preset": "1b", "schedule.stage_layers": [1, 15], "data.sequence_length": 1024}
    sequences = 1
    while total and sequences < _MOST_SEQUENCES:
        sizes = {"batch.micro_batch": sequences, "batch.global_batch": 2 * sequences}
        config = bench.config(_UNEVEN | values | sizes)
        first, second = (footprint.total_bytes for footprint in footprints(config))
        if second > 1.5 * total:
            return config if first < 0.7 * total else None
        sequences *= 2
    return None
