"""CPU seconds that recording adds to a step, switched on and off inside one run, with an A/A row beside it.

Steps come in threes and in random order: one recorded, two not. Recorded stands against the mean of the other
two, which stand against each other in the A/A row. A pilot tells how many threes make the 95 % interval narrower
than the bar's margin; they are then measured in a run of their own. Each rank is kept on one core.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import numpy as np

from benchmarks import _table as table
from benchmarks._ranks import Engine, EngineSteps, in_turn, on_cores
from benchmarks._ratio import Taken, cpu_seconds, ratio, rounds_needed, wall_seconds
from engine.config import parse
from engine.context import RankContext

LAYOUTS = [{"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}, {"dp": 4, "zero_stage": 3}]
KINDS = ("on", "off", "again")
MARGIN = 0.02
PILOT = 60


def measure(rank: RankContext, threes: int) -> list[Taken]:
    """Steps of kinds ``on``, ``off`` and ``again`` (off a second time) of one rank."""
    engine = Engine(rank)
    return in_turn({kind: EngineSteps(engine, recorded=kind == "on") for kind in KINDS}, threes)


def run(parallel: dict[str, int], threes: int) -> list[list[Taken]]:
    """All ranks' steps of one layout."""
    config = parse({"parallel": parallel, "batch": {"global_batch": 16, "micro_batch": 2}})
    return on_cores(config, measure, threes)


def with_mean(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The mean of the two steps that were not recorded, beside all three."""
    return found | {"not": (found["off"] + found["again"]) / 2}


def rows_of(parallel: dict[str, int], taken: list[list[Taken]]) -> list[list[str]]:
    """Recorded and A/A rows of one layout, CPU and wall."""
    name = " ".join(f"{axis}={degree}" for axis, degree in parallel.items())
    cpu, wall = with_mean(cpu_seconds(taken, KINDS)), with_mean(wall_seconds(taken, KINDS))
    rows = []
    for label, top, bottom in (("recorded / not", "on", "not"), ("A/A", "again", "off")):
        rows.append([name, label, str(len(cpu[top])), f"{1e3 * cpu[bottom].mean():.1f}"])
        rows[-1] += [ratio(cpu[top], cpu[bottom]).added(), f"{1e3 * wall[bottom].mean():.1f}"]
        rows[-1] += [ratio(wall[top], wall[bottom]).added()]
    return rows


def needed(taken: list[list[Taken]]) -> int:
    """Threes that make the interval of the CPU ratio narrower than the margin, by its width in a pilot."""
    cpu = with_mean(cpu_seconds(taken, KINDS))
    return rounds_needed(ratio(cpu["on"], cpu["not"]), len(cpu["on"]), MARGIN)


def main() -> None:
    """Measure each layout and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--pilot", type=int, default=PILOT, help="threes of the pilot")
    arguments.add_argument("--most", type=int, default=1000, help="most threes of a layout")
    given = arguments.parse_args()
    rows = []
    for parallel in LAYOUTS:
        threes = min(max(given.pilot, needed(run(parallel, given.pilot))), given.most)
        rows += rows_of(parallel, run(parallel, threes))
    header = ["layout", "row", "threes", "CPU ms per step, all ranks", "added CPU", "wall ms", "added wall"]
    table.show(
        "recording_cost", "What recording costs (4 gloo ranks, tiny decoder)", header, rows, given.save
    )


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
