"""What outer loops cost in time beside a run that never communicates, and what they cost in loss.

Time: a decoder of about 10 M parameters on four hosts of the lab, at one rate. ``never`` is local steps with a round
longer than the run. CO2's first period is the least at which a round of such steps takes as long as an all-reduce that
nothing runs beside: what a step of plain data parallelism takes more. Beside training, on cores that are all busy, it
takes longer; the next row has the period at which a round takes as long as it was recorded there, and that is what the
bar is for. The last one has half the steps, where the wait must show. The default rate is low, so that four hosts'
packets take little of the cores on which four ranks compute.

Loss: a small decoder without a lab, first trained with an all-reduce at every step (``--warm-steps``), then on with
each method and period from that checkpoint, on the same tokens. A period at which an outer loop goes wrong belongs in
the table, so periods go up to a quarter of the steps.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from engine.config import RunConfig, parse
from engine.session import Session
from profilers.run_summary import RunSummary

HOSTS = 4
WARM_UP = 2
TIMED: dict[str, Any] = {
    "model": {"preset": "mini"},
    "data": {"sequence_length": 64},
    "batch": {"global_batch": HOSTS, "micro_batch": 1},
    "parallel": {"dp": HOSTS},
    "train": {
        "validation_batches": 0,
        "warmup": WARM_UP,
        "step_timeout_seconds": 300.0,
        "timeout_seconds": 3600.0,
    },
    "device": "cpu",
}
LEARNED: dict[str, Any] = {
    "data": {"sequence_length": 64},
    "batch": {"global_batch": 2 * HOSTS, "micro_batch": 2},
    "parallel": {"dp": HOSTS},
    "train": {"validation_batches": 32, "step_timeout_seconds": 300.0, "timeout_seconds": 3600.0},
    "profile": {"collectives": False},
    "device": "cpu",
}
#: CO2's time per step over that of a run that never communicates.
MOST = 1.10
#: Final loss over data parallelism's, for rounds of up to so many steps.
MOST_LOSS, UP_TO = 1.02, 12
ARMS: dict[str, dict[str, Any]] = {
    "local": {"outer.method": "local"},
    "DiLoCo": {"outer.method": "diloco"},
    "streaming DiLoCo": {"outer.method": "streaming"},
    "CO2, keep_local": {"outer.method": "co2"},
    "CO2, delayed": {"outer.method": "co2", "outer.variant": "delayed"},
    "CO2, paper": {"outer.method": "co2", "outer.variant": "paper"},
    "CO2, keep_local, gap": {"outer.method": "co2", "outer.gap": "tensor"},
}


def trained(session: Session, config: RunConfig) -> RunSummary:
    """One run; ends the benchmark if it did not end well."""
    outcome, summary = session.execute(config, {}, lambda: False)
    if not outcome.good:
        sys.exit(f"a run ended as {outcome.ending.value}: {outcome.reason}")
    return summary


def mean_step(summary: RunSummary, period: int = 0) -> float:
    """Seconds: the steps that end a round are longer than the others, so a median would leave them out. The first round
    has nothing under way yet and does not count.
    """
    return statistics.fmean(summary.step_samples[max(0, period - WARM_UP) :])


def timed(session: Session, rate: float, rounds: int) -> list[list[str]]:
    """Rows of the time table."""
    base = parse(TIMED).with_values({"lab.hosts": HOSTS, "lab.rate_mbit": rate})

    def run(steps: int, **outer: Any) -> RunSummary:
        values = {"train.steps": steps} | {f"outer.{key}": value for key, value in outer.items()}
        return trained(session, base.with_values(values))

    never = run(12, method="local", period=10_000)
    step = mean_step(never)
    every = run(4)
    period = max(2, math.ceil((mean_step(every) - step) / step))
    rows = [row("never", never, 0, step), row("data parallel, every step", every, 1, step)]
    alone = run(period * rounds + 2, method="co2", period=period)
    rows.append(row("CO2, all-reduce alone", alone, period, step))
    period = max(period, math.ceil(beside_training(alone) / step))
    for label, length in (("CO2, all-reduce beside training", period), ("CO2, half the steps", period // 2)):
        summary = run(length * rounds + 2, method="co2", period=length)
        rows.append(row(label, summary, length, step, bar=length == period))
    rows.append(row("DiLoCo", run(period * rounds + 2, method="diloco", period=period), period, step))
    return rows


def beside_training(summary: RunSummary) -> float:
    """Seconds that the all-reduce between replicas took from its begin to its end, while steps went on."""
    return max(
        one.seconds / one.calls for one in summary.communication if one.axis == "outer" and one.seconds
    )


def row(label: str, summary: RunSummary, period: int, never: float, bar: bool = False) -> list[str]:
    """Time per step; where the mean is above the median, the steps that end a round wait."""
    step = mean_step(summary, period if summary.outer else 0)
    verdict = ("yes" if step <= MOST * never else "NO") if bar else ""
    cells = [
        label,
        str(period or "-"),
        f"{step:.3f}",
        f"{step / never:.2f}",
        f"{statistics.median(summary.step_samples):.3f}",
        verdict,
    ]
    return [*cells, f"{(summary.wire_bytes_per_step or 0) / 1e6:.2f}"]


def learned(session: Session, warm: int, steps: int) -> list[list[str]]:
    """Rows of the loss table."""
    base = parse(LEARNED)
    first = trained(session, base.with_values({"train.steps": warm, "checkpoint.every_steps": warm}))
    going_on = {"train.steps": warm + steps, "train.resume": str(session.home / first.id)}
    plain = trained(session, base.with_values(going_on)).validation_loss
    assert plain is not None
    rows = [["data parallel", "1", f"{plain:.4f}", "", ""]]
    periods = [period for period in (2, 4, 12, 24, 48, 96) if period <= max(steps // 4, 12)]
    for label, outer in ARMS.items():
        for period in periods:
            values = going_on | outer | {"outer.period": period}
            loss = trained(session, base.with_values(values)).validation_loss
            ratio = math.inf if loss is None else loss / plain
            holds = ("yes" if ratio <= MOST_LOSS else "NO") if period <= UP_TO else ""
            rows.append([label, str(period), f"{loss:.4f}", f"{100 * (ratio - 1):+.1f} %", holds])
    return rows


def main() -> None:
    """Both tables."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        if arguments.only != "loss":
            rows = timed(session, arguments.rate_mbit, arguments.rounds)
            title = f"Time per step of outer loops: 4 hosts, links of {arguments.rate_mbit:g} Mbit/s"
            header = (
                "run",
                "steps a round",
                "mean s a step",
                "over never",
                "median s a step",
                "bar 1.10",
                "MB a step",
            )
            table.show("outer_time", title, header, rows, arguments.save)
        if arguments.only != "time":
            rows = learned(session, arguments.warm_steps, arguments.steps)
            title = f"Held-out loss after {arguments.warm_steps} common and {arguments.steps} further steps"
            header = ("run", "steps a round", "loss", "over data parallel", "within 2 %")
            table.show("outer_loss", title, header, rows, arguments.save)


def _arguments() -> argparse.Namespace:
    made = table.parser(__doc__)
    made.add_argument("--rate-mbit", type=float, default=20.0, help="of every host's link")
    made.add_argument("--rounds", type=int, default=2, help="that are timed")
    made.add_argument("--warm-steps", type=int, default=300, help="before the loss is compared")
    made.add_argument("--steps", type=int, default=300, help="after which it is compared")
    made.add_argument("--only", choices=("time", "loss"))
    return made.parse_args()


if __name__ == "__main__":
    main()
