"""What outer loops cost in time beside a run that never communicates, and what they cost in loss.

Time: a decoder of about 10 M parameters on four hosts of the lab, at one rate. ``never`` is local steps with a round
longer than the run. CO2's period is the least at which a round of such steps takes as long as an all-reduce, which is
what a step of plain data parallelism takes more; the row after it has half of that, where the wait must show. The
default rate is low, so that four hosts' packets take little of the cores on which four ranks compute.

Loss: a small decoder without a lab, first trained with an all-reduce at every step (``--warm-steps``), then on with
each method and period from that checkpoint, on the same tokens. A period at which an outer loop goes wrong belongs in
the table, so CO2's go up to half of the steps.
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
from engine.config.run_config import RunConfig, parse
from engine.run import run_folder
from engine.session import Session
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords

HOSTS = 4
WARM_UP = 2
NEVER_STEPS = 100
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
    "batch": {"global_batch": 8 * HOSTS, "micro_batch": 8},
    "parallel": {"dp": HOSTS},
    "train": {
        "learning_rate": 5e-4,
        "validation_batches": 32,
        "step_timeout_seconds": 300.0,
        "timeout_seconds": 3600.0,
    },
    "profile": {"collectives": False},
    "device": "cpu",
}
#: CO2's time per step over that of a run that never communicates.
MOST = 1.10
#: Final loss over data parallelism's, for rounds of up to so many steps.
MOST_LOSS, UP_TO = 1.02, 12
#: Values of a method, and the periods that it is tried with.
ARMS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "CO2, keep_local": ({"outer.method": "co2"}, (4, 12, 24, 48, 100, 150)),
    "CO2, keep_local, gap": ({"outer.method": "co2", "outer.gap": "tensor"}, (12,)),
    "CO2, delayed": ({"outer.method": "co2", "outer.variant": "delayed"}, (12,)),
    "CO2, paper": ({"outer.method": "co2", "outer.variant": "paper"}, (12,)),
    "local": ({"outer.method": "local"}, (12,)),
    "DiLoCo": ({"outer.method": "diloco"}, (12,)),
    "streaming DiLoCo": ({"outer.method": "streaming"}, (12,)),
}


def trained(session: Session, config: RunConfig) -> RunSummary:
    """One run; ends the benchmark if it did not end well."""
    outcome, summary = session.execute(config, {}, lambda: False)
    if not outcome.good:
        sys.exit(f"a run ended as {outcome.ending.value}: {outcome.reason}")
    return summary


def mean_step(session: Session, summary: RunSummary, skip: int = WARM_UP) -> float:
    """Wall seconds of the rank that needs most, over all steps but the first ones.

    Replicas that do not meet drift apart, and who is ahead waits at the end of a round; so each rank's steps are added
    up before ranks are compared.
    """
    records = RunRecords(session.home / summary.id / run_folder.RECORDS)
    return max(
        float(records.table(rank, "step").column("step_seconds")[skip:].mean()) for rank in records.ranks()
    )


def timed(session: Session, rate: float, rounds: int) -> list[list[str]]:
    """Rows of the time table."""
    base = parse(TIMED).with_values({"lab.hosts": HOSTS, "lab.rate_mbit": rate})

    def run(steps: int, **outer: Any) -> RunSummary:
        values = {"train.steps": steps} | {f"outer.{key}": value for key, value in outer.items()}
        return trained(session, base.with_values(values))

    def row(label: str, summary: RunSummary, period: int, bar: bool = False) -> list[str]:
        """The first round has nothing under way yet and does not count."""
        step = mean_step(session, summary, max(WARM_UP, period if summary.outer else 0))
        median = statistics.median(summary.step_samples)
        verdict = ("yes" if step <= MOST * never else "NO") if bar else ""
        sent = (summary.wire_bytes_per_step or 0) / 1e6
        times = (f"{step:.3f}", f"{step / never:.2f}", f"{median:.3f}")
        return [label, str(period or "-"), *times, verdict, f"{sent:.2f}"]

    alone = run(NEVER_STEPS, method="local", period=10_000)
    never, every = mean_step(session, alone), run(WARM_UP + 2)
    period = max(2, math.ceil((mean_step(session, every) - never) / never))
    rows = [row("never", alone, 0), row("data parallel, every step", every, 1)]
    for label, method, length in (
        ("CO2", "co2", period),
        ("CO2, half the steps", "co2", period // 2),
        ("DiLoCo", "diloco", period),
    ):
        summary = run(length * rounds + 2, method=method, period=length)
        rows.append(row(label, summary, length, bar=label == "CO2"))
    return rows


def learned(session: Session, warm: int, steps: int) -> list[list[str]]:
    """Rows of the loss table."""
    base = parse(LEARNED)
    first = trained(session, base.with_values({"train.steps": warm, "checkpoint.every_steps": warm}))
    going_on = {"train.steps": warm + steps, "train.resume": str(session.home / first.id)}
    plain = trained(session, base.with_values(going_on)).validation_loss
    assert plain is not None
    rows = [["data parallel", "1", f"{plain:.4f}", "", ""]]
    for label, (outer, periods) in ARMS.items():
        for period in periods:
            values = going_on | outer | {"outer.period": period}
            loss = trained(session, base.with_values(values)).validation_loss
            ratio = math.inf if loss is None else loss / plain
            holds = ("yes" if ratio <= MOST_LOSS else "NO") if period <= UP_TO else ""
            rows.append([label, str(period), f"{loss:.4f}", f"{100 * (ratio - 1):+.1f} %", holds])
            print(*rows[-1], file=sys.stderr, flush=True)
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
    made.add_argument("--warm-steps", type=int, default=800, help="before the loss is compared")
    made.add_argument("--steps", type=int, default=300, help="after which it is compared")
    made.add_argument("--only", choices=("time", "loss"))
    return made.parse_args()


if __name__ == "__main__":
    main()
