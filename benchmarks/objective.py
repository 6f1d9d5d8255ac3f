"""Is the speed that a run is told with the speed that a stop-watch shows over the same whole rounds?

Outer loops of every kind on two hosts of the lab, at two rates and five periods. The stop-watch is another process than
the ranks: it looks a thousand times a second at which step each rank is in, and knows nothing of records. Told and
watched may differ by 3 %. Beside them stands the rate by the median step, which is what used to be told, and what the
run's first verdict says; local steps with a period of 4 at 20 Mbit/s must be called exposed on the axis ``outer``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from benchmarks._stop_watch import StopWatch
from engine.config.layout import least_steps
from engine.config.run_config import RunConfig, parse
from engine.session import Session
from profilers.model.run_summary import RunSummary

MOST = 0.03
METHODS = ("local", "diloco", "streaming", "co2")
PERIODS, RATES = (2, 3, 4, 10, 20), (20.0, 100.0)
BASE: dict[str, Any] = {
    "model": {"preset": "tiny"},
    "data": {"sequence_length": 64},
    "batch": {"global_batch": 4, "micro_batch": 2},
    "parallel": {"dp": 2},
    "train": {"validation_batches": 0, "warmup": 3},
    "lab": {"hosts": 2},
    "device": "cpu",
}


def measured(session: Session, config: RunConfig) -> tuple[RunSummary, StopWatch]:
    """One run under a stop-watch; ends the benchmark if it did not end well."""
    watch = StopWatch()
    outcome, summary = session.execute(config, {}, lambda: False, watch.begin)
    watch.end()
    if not outcome.good:
        sys.exit(f"a run ended as {outcome.ending.value}: {outcome.reason}")
    return summary, watch


def row(session: Session, method: str, period: int, rate: float, rounds: int) -> tuple[list[str], bool]:
    """A line of the table, and whether told and watched agree."""
    values = {"outer.method": method, "outer.period": period, "lab.rate_mbit": rate}
    if method == "streaming":  # a fragment arrives before the next one is sent
        values["outer.overlap"] = min(1, period // 2 - 1)
    config = parse(BASE).with_values(values)
    config = config.with_values({"train.steps": least_steps(config, rounds) + 1})
    summary, watch = measured(session, config)
    first = summary.measured_from_step or 0
    steps = len(summary.round_samples) * summary.round_steps
    watched = summary.tokens_per_step * steps / watch.seconds(first, first + steps)
    told, median = summary.tokens_per_second or 0.0, statistics.median(summary.step_samples)
    right = abs(told / watched - 1) <= MOST
    outer = summary.exposed_seconds_by_axis.get("outer", 0.0)
    mean = summary.step_seconds.mean if summary.step_seconds else None
    verdict = summary.verdicts[0]
    return [
        method,
        str(period),
        f"{rate:g}",
        f"{told:,.0f}",
        f"{watched:,.0f}",
        f"{told / watched:.4f}",
        "yes" if right else "NO",
        f"{summary.tokens_per_step / median:,.0f}",
        f"{outer / mean:.0%}" if mean else "-",
        f"{verdict.name}{f' ({verdict.axis})' if verdict.axis else ''}",
    ], right


def main() -> None:
    """Print the table; exit code 1 if a row is off."""
    parser = table.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="whole rounds that a run measures")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--periods", nargs="+", type=int, default=PERIODS)
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    asked = parser.parse_args()
    rows, wrong = list[list[str]](), 0
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        for rate in asked.rates:
            for method in asked.methods:
                for period in asked.periods:
                    line, right = row(session, method, period, rate, asked.rounds)
                    rows.append(line)
                    wrong += not right
                    print(*line, file=sys.stderr, flush=True)
    header = ("method", "period", "Mbit/s", "told tokens/s", "stop-watch", "told / watched", "within 3 %",
              "by the median step", "exposed on outer", "first verdict")  # fmt: skip
    title = f"Told and watched: {len(rows) - wrong} of {len(rows)} runs within {100 * MOST:.0f} %"
    table.show("objective", title, header, rows, asked.save)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
