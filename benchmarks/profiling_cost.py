"""What profiling adds to a step, always on as in training: the ranks' records, and the sampler beside them.

Steps come in fours and in random order: one recorded (steps, collectives, memory), two not, and one under
torch.profiler instead. Recorded stands against the mean of the two that are not, which stand against each other in the
A/A row. A pilot tells how many fours make the 95 % interval narrower than half the bar; they are then measured in a run
of their own. Each rank is kept on one core. The sampler (host, ranks' processes, 10 Hz) runs beside all of it; its row
is the processor time of its thread over that of the ranks, and its interval is that over seconds.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import _table as table
from benchmarks._ranks import Engine, EngineSteps, TorchProfiled, in_turn, on_cores
from benchmarks._ratio import Ratio, Taken, cpu_seconds, ratio, rounds_needed, wall_seconds
from engine.config import parse
from engine.context import RankContext
from profilers.sampler import Sampler
from profilers.writer import RecordWriter

LAYOUTS = [{"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}, {"dp": 4, "zero_stage": 3}]
KINDS = ("on", "off", "again", "torch")
BAR = 0.01
PILOT = 60


class Measured(NamedTuple):
    """Steps of all ranks, and the processor seconds that the sampler took in each second beside them."""

    taken: list[list[Taken]]
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


def measure(rank: RankContext, fours: int) -> list[Taken]:
    """Steps of each kind of one rank."""
    engine = Engine(rank)
    kinds = {kind: EngineSteps(engine, recorded=kind == "on") for kind in KINDS}
    return in_turn(kinds | {"torch": TorchProfiled(engine)}, fours)


def run(parallel: dict[str, int], fours: int) -> Measured:
    """One layout."""
    config = parse({"parallel": parallel, "batch": {"global_batch": 16, "micro_batch": 2}})
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(Path(folder))
        taken = on_cores(config, measure, fours, watch=watched.begin)
        return Measured(taken, watched.end())


def with_mean(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The mean of the two steps that were not recorded, beside the others."""
    return found | {"not": (found["off"] + found["again"]) / 2}


def rows_of(parallel: dict[str, int], measured: Measured) -> list[list[str]]:
    """A layout's rows, CPU and wall."""
    name = " ".join(f"{axis}={degree}" for axis, degree in parallel.items())
    cpu = with_mean(cpu_seconds(measured.taken, KINDS))
    wall = with_mean(wall_seconds(measured.taken, KINDS))
    rows = []
    for label, top, bottom in (
        ("recorded / not", "on", "not"),
        ("A/A", "again", "off"),
        ("torch.profiler / not", "torch", "not"),
    ):
        found = ratio(cpu[top], cpu[bottom])
        rows.append([name, label, str(len(cpu[top])), f"{1e3 * cpu[bottom].mean():.1f}", found.added()])
        rows[-1] += [verdict(found) if top == "on" else "", f"{1e3 * wall[bottom].mean():.1f}"]
        rows[-1] += [ratio(wall[top], wall[bottom]).added()]
    return [
        *rows[:1],
        sampler_row(name, measured, float(cpu["not"].mean()), float(wall["not"].mean())),
        *rows[1:],
    ]


def sampler_row(name: str, measured: Measured, cpu: float, wall: float) -> list[str]:
    """What the sampler adds to a step of so many processor and wall seconds."""
    added = measured.sampler * wall / cpu
    found = ratio(1 + added, np.ones(len(added)))
    return [name, "sampler, 10 Hz", f"{len(added)} s", f"{1e3 * cpu:.1f}", found.added(), "", "", ""]


def verdict(found: Ratio) -> str:
    """The bar, and whether it is kept."""
    return f"at most {BAR:.0%}: {found.verdict(1 + BAR)}"


def needed(measured: Measured) -> int:
    """Fours that make the interval of the CPU ratio narrower than half the bar, by its width in a pilot."""
    cpu = with_mean(cpu_seconds(measured.taken, KINDS))
    return rounds_needed(ratio(cpu["on"], cpu["not"]), len(cpu["on"]), BAR / 2)


def main() -> None:
    """Measure each layout and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--pilot", type=int, default=PILOT, help="fours of the pilot")
    arguments.add_argument("--most", type=int, default=600, help="most fours of a layout")
    given = arguments.parse_args()
    rows = []
    for parallel in LAYOUTS:
        fours = min(max(given.pilot, needed(run(parallel, given.pilot))), given.most)
        print(f"{parallel}: {fours} fours ...", file=sys.stderr)
        rows += rows_of(parallel, run(parallel, fours))
    header = [
        "layout",
        "row",
        "fours",
        "CPU ms per step, all ranks",
        "added CPU",
        "bar",
        "wall ms",
        "added wall",
    ]
    title = "What profiling costs (4 gloo ranks, tiny decoder)"
    table.show("profiling_cost", title, header, rows, given.save)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
