"""What profiling adds to a step, always on as in training: the ranks' records, and the sampler beside them.

Steps come in fours and in random order: one recorded in detail (times, phases, collectives, memory), one as a whole,
and two not at all. Each of the first two stands against the mean of the two that are not, which stand against each
other in the A/A row. Training records one step in so many in detail that it stays within ``profile.budget``; how many
it would choose here is part of the row ``always on``, which is the mean of both kinds in that proportion. A pilot
tells how many fours make its 95 % interval narrower than half the bar; they are then measured in a run of their own.
Each rank is kept on one core. The sampler (host, ranks' processes, 10 Hz) runs beside all of it; its row is the
processor time of its thread over that of the ranks, and its interval is that over seconds. The bar is for what is
always on and the sampler together; the wait sampler (two looks a second) is in neither. What is recorded does not grow
with the sequences in a micro-batch: ``--sequences 2`` takes steps of half the work, in a table of its own.
A foreign job is two ranks of plain DDP, recorded as under ``workbench run``; its steps take about 100 ms. With
``--axes job`` it is measured alone, into a table of its own.
torch.profiler comes afterwards, in threes of its own on the same ranks: it leaves caches and allocators in such a
state that the others would pay for it.
"""

from __future__ import annotations

import math
import sys
import tempfile
import threading
import time
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import _table as table
from benchmarks._job import ROWS, Job, JobSteps
from benchmarks._ranks import Engine, EngineSteps, TorchProfiled, in_turn, on_cores
from benchmarks._ratio import Ratio, Taken, both, cpu_seconds, ratio, rounds_needed, wall_seconds
from engine.comm.context import RankContext
from engine.config.run_config import parse
from profilers.records.writer import RecordWriter
from profilers.system.sampler import Sampler

LAYOUTS = [{"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}, {"dp": 4, "zero_stage": 3}]
#: Of 128 tokens, in a micro-batch.
SEQUENCES = 4
KINDS = ("detail", "whole", "off", "again")
BESIDE_TORCH = ("torch", "off", "again")
BAR = 0.01
PILOT = 60
#: What a step of the foreign job takes, and the fours by which its batch is chosen for that, twice.
JOB_SECONDS, CALIBRATED, CALIBRATIONS = 0.1, 20, 2
#: Threes with torch.profiler: it adds so much that few tell.
TORCH_ROUNDS = 30


class Measured(NamedTuple):
    """Steps of all ranks, those beside torch.profiler, and the sampler's processor seconds in each second of all.

    Training would record one step in ``every`` in detail on the rank that records most.
    """

    taken: list[list[Taken]]
    torch: list[list[Taken]]
    every: int
    sampler: np.ndarray


class Watched:
    """A sampler beside the ranks, and another thread that notes its processor time once a second."""

    def __init__(self, folder: Path) -> None:
        self._writer = RecordWriter(folder, "launcher")
        self._sampler = Sampler(self._writer, 0.1)
        self._done = threading.Event()
        self._notes: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._note, daemon=True)

    def begin(self, pids: list[int]) -> None:
        """The ranks are there."""
        self._sampler.watch(pids)
        self._sampler.start()
        self._thread.start()

    def end(self) -> np.ndarray:
        """Processor seconds per second, second by second."""
        self._done.set()
        self._thread.join()
        self._sampler.stop()
        self._writer.close()
        at, used = np.array(self._notes).T
        return np.asarray(np.diff(used) / np.diff(at))

    def _note(self) -> None:
        while not self._done.wait(1.0):
            self._notes.append((time.perf_counter(), self._sampler.cpu_seconds))


def measure(rank: RankContext, rounds: int, torch_rounds: int) -> tuple[list[Taken], list[Taken], int]:
    """Steps of each kind of one rank, and which of them it would record in detail."""
    engine = Engine(rank)
    kinds = {
        kind: EngineSteps(engine, recorded=kind in ("detail", "whole"), detailed=kind == "detail")
        for kind in KINDS
    }
    taken = in_turn(kinds, rounds)
    kinds["torch"] = TorchProfiled(engine)
    return taken, in_turn({kind: kinds[kind] for kind in BESIDE_TORCH}, torch_rounds), engine.choice.every


def measure_job(rank: RankContext, folder: Path, rounds: int, rows: int) -> tuple[list[Taken], int]:
    """Steps of a job that is not ours."""
    job = Job(folder, rows)
    kinds = {
        kind: JobSteps(job, recorded=kind in ("detail", "whole"), detailed=kind == "detail") for kind in KINDS
    }
    return in_turn(kinds, rounds), job.choice.every


def run_job(rounds: int, rows: int) -> Measured:
    """Two ranks of it with batches of so many rows; without torch.profiler."""
    with tempfile.TemporaryDirectory() as sampled, tempfile.TemporaryDirectory() as folder:
        watched = Watched(Path(sampled))
        answers = on_cores(
            parse({"parallel": {"dp": 2}}), measure_job, Path(folder), rounds, rows, watch=watched.begin
        )
        taken, every = ([answer[i] for answer in answers] for i in range(2))
        return Measured(taken, [], min(every), watched.end())


def rows_for(step_seconds: float) -> int:
    """Of a batch, so that the job's step takes about so long on this machine."""
    rows = ROWS
    for _ in range(CALIBRATIONS):
        taken = seconds_of(run_job(CALIBRATED, rows).taken, KINDS)
        rows = math.ceil(rows * step_seconds / float(np.median(taken.wall["not"])))
    return rows


def run(parallel: dict[str, int], size: int, rounds: int, torch_rounds: int = 0) -> Measured:
    """One layout and size of its micro-batches."""
    config = parse({"parallel": parallel, "batch": {"global_batch": 8 * size, "micro_batch": size}})
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(Path(folder))
        answers = on_cores(config, measure, rounds, torch_rounds, watch=watched.begin)
        taken, torch, every = ([answer[i] for answer in answers] for i in range(3))
        return Measured(taken, torch, min(every), watched.end())


class Seconds(NamedTuple):
    """Processor and wall seconds of steps by kind; ``not`` is the mean of the two that were not recorded."""

    cpu: dict[str, np.ndarray]
    wall: dict[str, np.ndarray]

    def ratios(self, top: str, bottom: str) -> list[Ratio]:
        """Of processor and wall seconds."""
        return [ratio(found[top], found[bottom]) for found in self]


def seconds_of(taken: list[list[Taken]], kinds: tuple[str, ...], every: int = 1) -> Seconds:
    """All steps."""
    found = Seconds(cpu_seconds(taken, kinds), wall_seconds(taken, kinds))
    for by_kind in found:
        by_kind["not"] = (by_kind["off"] + by_kind["again"]) / 2
        if "whole" in by_kind:
            by_kind["on"] = by_kind["whole"] + (by_kind["detail"] - by_kind["whole"]) / every
    return found


def rows_of(parallel: dict[str, int], measured: Measured) -> list[list[str]]:
    """A layout's rows."""
    name = " ".join(f"{axis}={degree}" for axis, degree in parallel.items()) or "a foreign job"
    ours = seconds_of(measured.taken, KINDS, measured.every)
    theirs = seconds_of(measured.torch, BESIDE_TORCH) if measured.torch else None
    sampler = sampler_ratio(measured, ours)
    cpu, wall = ours.ratios("on", "not")
    return [
        [name, *row("in detail / not", ours, ours.ratios("detail", "not"))],
        [name, *row("as a whole / not", ours, ours.ratios("whole", "not"))],
        [name, *row(f"always on: 1 step in {measured.every} in detail", ours, [cpu, wall])],
        [name, *row("sampler, 10 Hz", ours, [sampler])],
        [name, *row("together", ours, [both(cpu, sampler), wall], barred=True)],
        [name, *row("A/A", ours, ours.ratios("again", "off"))],
        *(
            []
            if theirs is None
            else [[name, *row("torch.profiler / not", theirs, theirs.ratios("torch", "not"))]]
        ),
    ]


def row(label: str, seconds: Seconds, added: list[Ratio], barred: bool = False) -> list[str]:
    """What a step takes unrecorded (median), and what is added to it: processor, then wall seconds."""
    cells = [label, str(len(seconds.cpu["not"]))]
    for found, ratio_of in zip_longest(seconds, added):
        cells.append(f"{1e3 * np.median(found['not']):.1f}")
        cells.append("" if ratio_of is None else ratio_of.added())
        cells.append(ratio_of.verdict(1 + BAR) if barred else "")
    return cells


def sampler_ratio(measured: Measured, seconds: Seconds) -> Ratio:
    """What the sampler adds to a step."""
    added = measured.sampler * seconds.wall["not"].mean() / seconds.cpu["not"].mean()
    return ratio(1 + added, np.ones(len(added)))


def needed(measured: Measured) -> int:
    """Fours that make the interval of the CPU ratio narrower than half the bar, by its width in a pilot."""
    cpu, _ = seconds_of(measured.taken, KINDS, measured.every).ratios("on", "not")
    return rounds_needed(cpu, len(measured.taken[0]) // len(KINDS), BAR / 2)


def main() -> None:
    """Measure each layout and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--pilot", type=int, default=PILOT, help="fours of the pilot")
    arguments.add_argument("--most", type=int, default=600, help="most fours of a layout")
    arguments.add_argument("--sequences", type=int, default=SEQUENCES, help="in a micro-batch")
    arguments.add_argument("--axes", nargs="*", default=[], help="only layouts with one of them, or `job`")
    given = arguments.parse_args()
    rows = []
    size = given.sequences
    for parallel in (one for one in LAYOUTS if not given.axes or set(given.axes) & set(one)):
        rounds = min(max(given.pilot, needed(run(parallel, size, given.pilot))), given.most)
        print(f"{parallel}: {rounds} fours ...", file=sys.stderr)
        rows += rows_of(parallel, run(parallel, size, rounds, TORCH_ROUNDS))
    if not given.axes or "job" in given.axes:
        batch = rows_for(JOB_SECONDS)
        rounds = min(max(given.pilot, needed(run_job(given.pilot, batch))), given.most)
        print(f"a foreign job, batches of {batch:,} rows: {rounds} fours ...", file=sys.stderr)
        rows += rows_of({}, run_job(rounds, batch))
    header = [
        *("layout", "row", "rounds", "CPU ms per step, all ranks", "added CPU", f"at most {BAR:.0%}"),
        *("wall ms per step", "added wall", f"at most {BAR:.0%}"),
    ]
    title = f"What profiling costs (4 gloo ranks, tiny decoder, micro-batches of {size} sequences)"
    name = "profiling_cost" if size == SEQUENCES else f"profiling_cost_{size}_sequences"
    if given.axes == ["job"]:
        name, title = "profiling_cost_job", "What recording a foreign job costs (2 gloo ranks, plain DDP)"
    table.show(name, title, header, rows, given.save)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
