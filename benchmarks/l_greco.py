"""What a plan of L-GreCo (arXiv 2210.17357) saves over one value for all layers, at which error and which loss.

Two gloo ranks train decoders on the text that comes with Python: each method with one value for each layer, as the
paper has it, and with a plan from the same default; both from the same seed and over the same data, besides a run
without compression, and one in which the layers of a bucket are compressed together: top-k then picks the largest
values of all of them. The error of the one value is the plan's budget, so that a uniform setting with as little error
as the plan's sends at least as much. "Embedding" has two large ones beside small blocks; the text has 256 kinds of
tokens, so that rows of all other tokens get no gradient at the input and a small one at the output. In "blocks" all
layers are alike.

    python -m benchmarks.l_greco --save
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from engine.config.compression import usual_value
from engine.config.run_config import RunConfig, parse
from engine.config.sections import Compression
from engine.run import run_folder
from engine.session import Session
from profilers.analysis.communication import communication_rows
from profilers.model.run_summary import RunSummary
from profilers.records.reader import RunRecords

_SMALL = {"hidden": 64, "heads": 4, "kv_heads": 4, "ffn_hidden": 192}
MODELS: dict[str, dict[str, Any]] = {
    "embedding": _SMALL | {"vocabulary": 8_192, "layers": 2},
    "blocks": _SMALL | {"vocabulary": 256, "layers": 6},
}
METHODS: dict[str, dict[str, Any]] = {
    "topk, ratio 0.02": {"method": "topk", "ratio": 0.02},
    "int4": {"method": "int4"},
    "powersgd, rank 4": {"method": "powersgd", "rank": 4},
}
PLAN_EVERY = 100
STEPS = 300
HEADER = (
    "model",
    "method",
    "one value: MB/step by formula",
    "recorded",
    "plan: MB/step by formula",
    "recorded",
    "times fewer bytes",
    "error / budget",
    "validation loss, plain",
    "one value",
    "plan",
    "plan over one value",
    "layers together",
    "planning, s each",
    "share of training",
)


@dataclass(frozen=True)
class Ran:
    """A run, and its records."""

    summary: RunSummary
    records: RunRecords

    @property
    def seconds(self) -> float:
        """Of all steps, on the first rank."""
        return float(self.records.table(0, "step").column("step_seconds").sum())

    def recorded_bytes(self, first: int) -> float:
        """Sent over the wire by a rank, a step from ``first`` on, by the calls that were recorded."""
        steps = np.arange(first, STEPS)
        tables = [self.records.table(rank, "comm") for rank in self.records.ranks()]
        rows = communication_rows(tables, steps, len(steps) * len(tables), backend="gloo")
        return sum(row.wire_bytes or 0.0 for row in rows if row.axis.startswith("dp"))


def config_of(model: dict[str, Any], compression: dict[str, Any]) -> RunConfig:
    """Two data ranks on short sequences, without clipping, which would undo error feedback; 32 validation batches.

    Every step is recorded: the bytes are counted call by call.
    """
    return parse(
        {
            "model": model,
            "compression": compression,
            "parallel": {"dp": 2},
            "batch": {"global_batch": 8, "micro_batch": 4},
            "data": {"sequence_length": 64},
            "profile": {"budget": None},
            "train": {
                "steps": STEPS,
                "clip_norm": None,
                "validation_batches": 32,
                "timeout_seconds": 3600.0,
            },
            "device": "cpu",
        }
    )


def run(session: Session, model: dict[str, Any], compression: dict[str, Any]) -> Ran:
    """One run to its end."""
    outcome, summary = session.execute(config_of(model, compression), {}, lambda: False)
    if outcome.ending.value != "completed":
        raise SystemExit(f"{compression}: {outcome.ending.value}: {outcome.reason}")
    return Ran(summary, RunRecords(session.home / summary.id / run_folder.RECORDS))


def rows_of(session: Session, name: str) -> Iterator[tuple[str, ...]]:
    """One for each method."""
    plain = run(session, MODELS[name], {"method": "none"})
    for method, values in METHODS.items():
        together = run(session, MODELS[name], values)
        uniform = run(session, MODELS[name], values | {"layers": {"*": _value(values)}})
        planned = run(session, MODELS[name], values | {"plan": "l_greco", "plan_every": PLAN_EVERY})
        yield (
            name,
            method,
            *_bytes(uniform, planned),
            *_losses(plain, uniform, planned, together),
            *_cost(planned),
        )


def _bytes(uniform: Ran, planned: Ran) -> tuple[str, ...]:
    """Of the last plan that steps followed, on both sides."""
    last = [plan for plan in planned.summary.plans if plan.step < STEPS][-1]
    assert last.bytes_uniform and last.bytes_after and last.budget and last.error is not None
    one, many = uniform.recorded_bytes(last.step), planned.recorded_bytes(last.step)
    sizes = (last.bytes_uniform, one, last.bytes_after, many)
    return (*(f"{size / 1e6:.4f}" for size in sizes), f"{one / many:.2f}", f"{last.error / last.budget:.4f}")


def _value(values: dict[str, Any]) -> float:
    value = usual_value(Compression.model_validate(values))
    assert value is not None
    return value


def _losses(*runs: Ran) -> tuple[str, ...]:
    """Of the runs without compression, with one value, with a plan, and with layers together."""
    found = [one.summary.validation_loss or math.nan for one in runs]
    plain, uniform, planned, together = (f"{loss:.4f}" for loss in found)
    return plain, uniform, planned, f"{100 * (found[2] / found[1] - 1):+.1f} %", together


def _cost(planned: Ran) -> tuple[str, str]:
    spent = [plan.seconds or 0.0 for plan in planned.summary.plans]
    return f"{np.mean(spent):.2f}", f"{sum(spent) / (sum(spent) + planned.seconds):.1%}"


def main() -> None:
    """Print the table."""
    arguments = table.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        rows = []
        for name in MODELS:
            for row in rows_of(session, name):
                print(*row, sep=" | ", file=sys.stderr, flush=True)
                rows.append(row)
    title = f"L-GreCo: a plan every {PLAN_EVERY} steps against one value for all layers, after {STEPS} steps"
    table.show("l_greco", title, HEADER, rows, arguments.save)


if __name__ == "__main__":
    main()
