"""CPU seconds that recording adds to a step, switched on and off inside one run, with an A/A row beside it.

Steps come in threes and in random order: one recorded, two not. Recorded stands against the mean of the other
two, which stand against each other in the A/A row. A pilot tells how many threes make the 95 % interval narrower
than the bar's margin; they are then measured in a run of their own. Each rank is kept on one core.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks import _table as table
from engine import groups, loop, rundir
from engine.config import RunConfig, parse
from engine.context import RankContext
from engine.control import StopControl
from engine.launch.pool import PRELOAD
from engine.layout import layout_of
from engine.parallel.apply import build_stages
from engine.parallel.optimizer import LocalOptimizer
from engine.progress import Progress
from engine.steplog import StepLog
from engine.worker import group_timeout
from engine.workloads.data import open_corpus
from profilers.clock import CpuClock
from profilers.collectives import CollectiveRecorder
from profilers.step_timer import StepTimer
from profilers.writer import RecordWriter

RANKS = 4
LAYOUTS = [{"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}, {"dp": 4, "zero_stage": 3}]
KINDS = ("on", "off", "again")
MARGIN = 0.02
PILOT = 60
#: The interval's width varies from run to run.
RESERVE = 1.6


class Silent:
    """Stands in for the step log in a step that is not recorded."""

    def before(self, step: int) -> None:
        """Nothing."""

    def after(self, *_: Any) -> None:
        """Nothing."""


class SilentTimer(StepTimer):
    """A timer that can be told to mark nothing."""

    quiet = False

    def _change(self, code: int) -> Any:
        return None if self.quiet else super()._change(code)

    def end(self) -> Any:
        """The step's marks; empty in a quiet step."""
        return None if self.quiet else super().end()


def rank_main(rank: int, port: int, folder: Path, threes: int, results: Connection) -> None:
    """One rank: warm up, then steps on and off; sends (order, CPU seconds, wall seconds) of every step."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    config = parse_config(folder)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=group_timeout(config))
    results.send(measure(context(rank, config, folder), threes))
    dist.destroy_process_group()


def parse_config(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    return parse(rundir.read_json(folder / rundir.CONFIG))


def context(rank: int, config: RunConfig, folder: Path) -> RankContext:
    """A rank with all its instruments, as a worker makes it."""
    layout, progress = layout_of(config), Progress(folder)
    made = groups.build(layout, rank, torch.device("cpu"), group_timeout(config))
    timer = SilentTimer(CpuClock(), progress.reporter(rank))
    recorder = CollectiveRecorder(timer, made.axes)
    writer = RecordWriter(folder / rundir.RECORDS, f"rank-{rank}")
    control = StopControl(progress, rank)
    return RankContext(
        rank, config, layout, torch.device("cpu"), made, timer, recorder, writer, control, progress
    )


def measure(rank: RankContext, threes: int) -> list[tuple[str, float, float]]:
    """Steps of kinds ``on``, ``off`` and ``again`` (off a second time) in an order all ranks share."""
    stages, corpus = build_stages(rank), open_corpus(rank.config.data, 0)
    optimizer = LocalOptimizer(list(stages.stages.values()), rank.groups, rank.config.train)
    order, shuffle = [*KINDS] * 3, random.Random(0)
    for _ in range(threes):
        order += shuffle.sample(KINDS, 3)
    log, taken = StepLog(rank), []
    for step, kind in enumerate(order):
        switch(rank, kind == "on")
        dist.barrier()
        cpu, wall = time.process_time(), time.perf_counter()
        chosen: Any = log if kind == "on" else Silent()
        loop.one_step(rank, stages, optimizer, corpus, chosen, step)
        taken.append((kind, time.process_time() - cpu, time.perf_counter() - wall))
    return taken[9:]


def switch(rank: RankContext, on: bool) -> None:
    """Put the recorder's kernels in or take them out, outside the measured part of a step."""
    rank.timer.quiet = not on  # type: ignore[attr-defined]
    (rank.recorder.start if on else rank.recorder.stop)()


def run(parallel: dict[str, int], threes: int) -> list[list[tuple[str, float, float]]]:
    """All ranks' steps of one layout."""
    base = {"parallel": parallel, "batch": {"global_batch": 16, "micro_batch": 2}}
    config, methods = parse(base), multiprocessing.get_context("forkserver")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as home:
        folder = rundir.create(Path(home), config, {})
        Progress(folder, RANKS).close()
        pipes = [methods.Pipe(duplex=False) for _ in range(RANKS)]
        ranks = [
            methods.Process(target=rank_main, args=(rank, store.port, folder, threes, pipes[rank][1]))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        taken = [reader.recv() for reader, _ in pipes]
        for process in ranks:
            process.join()
    return taken


def totals(taken: list[list[tuple[str, float, float]]], column: int) -> dict[str, np.ndarray]:
    """Per kind of step: CPU seconds summed over ranks (column 1) or the longest wall time (column 2)."""
    found = {}
    for kind in KINDS:
        values = np.array([[step[column] for step in rank if step[0] == kind] for rank in taken])
        found[kind] = values.sum(axis=0) if column == 1 else values.max(axis=0)
    return found | {"not": (found["off"] + found["again"]) / 2}


def ratio(top: np.ndarray, bottom: np.ndarray) -> tuple[float, float, float]:
    """Ratio of means with a 95 % bootstrap interval over pairs."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(top), (4000, len(top)))
    ratios = top[drawn].mean(axis=1) / bottom[drawn].mean(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(top.mean() / bottom.mean()), float(low), float(high)


def rows_of(parallel: dict[str, int], taken: list[list[tuple[str, float, float]]]) -> list[list[str]]:
    """Recorded and A/A rows of one layout, CPU and wall."""
    name = " ".join(f"{axis}={degree}" for axis, degree in parallel.items())
    cpu, wall = totals(taken, 1), totals(taken, 2)
    rows = []
    for label, top, bottom in (("recorded / not", "on", "not"), ("A/A", "again", "off")):
        rows.append([name, label, str(len(cpu[top])), f"{1e3 * cpu[bottom].mean():.1f}"])
        rows[-1] += [percent(ratio(cpu[top], cpu[bottom])), f"{1e3 * wall[bottom].mean():.1f}"]
        rows[-1] += [percent(ratio(wall[top], wall[bottom]))]
    return rows


def percent(values: tuple[float, float, float]) -> str:
    """A ratio as added percent with its interval."""
    middle, low, high = (100 * (value - 1) for value in values)
    return f"{middle:+.2f} % ({low:+.2f} to {high:+.2f})"


def needed(taken: list[list[tuple[str, float, float]]]) -> int:
    """Threes that make the interval of the CPU ratio narrower than the margin, by its width in a pilot."""
    cpu = totals(taken, 1)
    _, low, high = ratio(cpu["on"], cpu["not"])
    return math.ceil(PILOT * (RESERVE * (high - low) / MARGIN) ** 2)


def main() -> None:
    """Measure each layout and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--most", type=int, default=1000, help="most threes of a layout")
    given = arguments.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    rows = []
    for parallel in LAYOUTS:
        threes = min(max(PILOT, needed(run(parallel, PILOT))), given.most)
        rows += rows_of(parallel, run(parallel, threes))
    header = ["layout", "row", "threes", "CPU ms per step, all ranks", "added CPU", "wall ms", "added wall"]
    table.show(
        "recording_cost", "What recording costs (4 gloo ranks, tiny decoder)", header, rows, given.save
    )


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
