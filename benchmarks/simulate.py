"""How long a simulated step takes by events: up to 3,072 ranks, on one core.

Layouts of the largest preset on nodes of eight devices: with tp 8 a place of the pipeline is a node whose ranks act in
lockstep, with tp 1 it is a device. Everything that the configuration sends is played, by its formulas. Work and links
have round numbers, and work jitters, so that no two replicas are alike. ``step`` is the time to make the program from
the configuration, ``play`` the events; micro-seconds are those of ``play``.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from benchmarks import _table as table
from engine.config.run_config import RunConfig, parse
from engine.schedules.actions import Costs
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link
from tuning.predict.simulation.event_loop import simulate
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.simulate import step_of

WORK = Costs(10e-3, 20e-3, 10e-3, 10e-3)
DEVICE = Accelerator("a device", {}, 0, 0.0)
DEVICES = 8


class Case(NamedTuple):
    """Degrees, micro-batches of a pipeline, and what else is set."""

    tp: int
    pp: int
    dp: int
    micro_batches: int
    kind: str = "1f1b"
    zero_stage: int = 0

    @property
    def config(self) -> RunConfig:
        """A configuration of the largest preset."""
        batch = {"micro_batch": 1, "global_batch": self.dp * self.micro_batches}
        parallel = {name: getattr(self, name) for name in ("tp", "pp", "dp", "zero_stage")}
        schedule = {"kind": self.kind, "chunks": 2 if self.kind in ("interleaved", "zb_v") else 1}
        tree = {"model": {"preset": "1t"}, "data": {"sequence_length": 2048}, "precision": "bf16"}
        return parse({**tree, "batch": batch, "parallel": parallel, "schedule": schedule})


CASES = (
    Case(8, 64, 6, 170),
    Case(8, 64, 6, 85),
    Case(1, 64, 12, 170),
    Case(1, 64, 24, 170),
    Case(1, 64, 48, 85),
    Case(1, 64, 48, 170),
    Case(8, 64, 6, 170, "interleaved"),
    Case(8, 64, 6, 170, "zb_v"),
    Case(8, 64, 6, 170, "1f1b", 1),
    Case(8, 16, 24, 42, "1f1b", 3),
)


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    options = table.parser(__doc__).parse_args(arguments)
    header = [
        "layout",
        "ranks",
        "micro-batches",
        "actions",
        "step",
        "play",
        "micro-seconds an action",
        "bubble",
    ]
    title = "A step by events: seconds on one core"
    table.show("simulate", title, header, [row(case) for case in CASES], options.save)


def row(case: Case) -> list[str]:
    """One layout."""
    ranks = case.tp * case.pp * case.dp
    link, network = Link(2e-6, 300e9), Link(5e-6, 25e9)
    cluster = Cluster("nodes of eight", (Group(ranks // DEVICES, DEVICES, DEVICE, link, network, "wire"),))
    began = time.perf_counter()
    config = case.config
    step = step_of(config, [WORK] * (case.pp * config.schedule.chunks), 1e-2)
    made = time.perf_counter()
    done = simulate(step, Machine(cluster, jitter=0.02))
    played = time.perf_counter() - made
    actions = case.dp * sum(map(len, step.plan.actions))
    layout = f"tp {case.tp} pp {case.pp} dp {case.dp} zero {case.zero_stage} {case.kind}"
    numbers = [
        f"{ranks:,}",
        f"{case.micro_batches:,}",
        f"{actions:,}",
        f"{made - began:.2f}",
        f"{played:.2f}",
    ]
    return [layout, *numbers, f"{1e6 * played / actions:.1f}", f"{done.bubble_fraction:.1%}"]


if __name__ == "__main__":
    main()
