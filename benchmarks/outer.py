"""What outer loops cost in time beside a run that never communicates, and what they cost in loss.

Time: a decoder of about 10 M parameters on four hosts of the lab, at one rate. ``never`` is local steps with a round
longer than the run. CO2's period is the least at which a round of such steps takes as long as its all-reduce, by the
formula of ``profilers/wire.py`` and the rate; the row after it has half of that, where the wait must show.

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
TIMED: dict[str, Any] = {
    "model": {"preset": "mini"},
    "data": {"sequence_length": 64},
    "batch": {"global_batch": HOSTS, "micro_batch": 1},
    "parallel": {"dp": HOSTS},
    "train": {"validation_batches": 0, "warmup": 2, "step_timeout_seconds": 300.0, "timeout_seconds": 3600.0},
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


def mean_step(summary: RunSummary) -> float:
    """Seconds: the steps that end a round are longer than the others, so a median would leave them out."""
    return statistics.fmean(summary.step_samples)


def timed(session: Session, rate: float, rounds: int) -> list[list[str]]:
    """Rows of the time table."""
    base = parse(TIMED).with_values({"lab.hosts": HOSTS, "lab.rate_mbit": rate})

    def run(steps: int, **outer: Any) -> RunSummary:
        values = {"train.steps": steps} | {f"outer.{key}": value for key, value in outer.items()}
        return trained(session, base.with_values(values))

    never = run(12, method="local", period=10_000)
    step = mean_step(never)
    all_reduce = 2 * (HOSTS - 1) / HOSTS * 4 * never.parameters * 8 / (rate * 1e6)
    period = max(2, math.ceil(all_reduce / step))
    half = max(1, period // 2)
    rows = [row("never", never, 0, step), row("data parallel, every step", run(8), 1, step)]
    for label, length in (("CO2", period), ("CO2, half the steps", half)):
        summary = run(length * rounds + 2, method="co2", period=length)
        rows.append(row(label, summary, length, step, bar=length == period))
    rows.append(row("DiLoCo", run(period * rounds + 2, method="diloco", period=period), period, step))
    return rows


def row(label: str, summary: RunSummary, period: int, never: float, bar: bool = False) -> list[str]:
    """Time per step and what a round waits for its average."""
    step = mean_step(summary)
    waited = 0.0 if summary.outer is None or not period else summary.outer.wait_seconds / (period * step)
    verdict = ("yes" if step <= MOST * never else "NO") if bar else ""
    cells = [
        label,
        str(period or "-"),
        f"{step:.3f}",
        f"{step / never:.2f}",
        f"{100 * waited:.1f} %",
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
    texts = []
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        if arguments.only != "loss":
            rows = timed(session, arguments.rate_mbit, arguments.rounds)
            title = f"Time per step of outer loops: 4 hosts, links of {arguments.rate_mbit:g} Mbit/s"
            header = (
                "run",
                "steps a round",
                "s a step",
                "over never",
                "waited, of a round",
                "bar 1.10",
                "MB a step",
            )
            texts.append(table.show("outer", title, header, rows, False))
        if arguments.only != "time":
            rows = learned(session, arguments.warm_steps, arguments.steps)
            title = f"Held-out loss after {arguments.warm_steps} common and {arguments.steps} further steps"
            header = ("run", "steps a round", "loss", "over data parallel", "within 2 %")
            texts.append(table.show("outer", title, header, rows, False))
    if arguments.save:
        (table.RESULTS / "outer.md").write_text("\n".join(texts), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    made = table.parser(__doc__)
    made.add_argument("--rate-mbit", type=float, default=100.0, help="of every host's link")
    made.add_argument("--rounds", type=int, default=4, help="that are timed")
    made.add_argument("--warm-steps", type=int, default=300, help="before the loss is compared")
    made.add_argument("--steps", type=int, default=300, help="after which it is compared")
    made.add_argument("--only", choices=("time", "loss"))
    return made.parse_args()


if __name__ == "__main__":
    main()
