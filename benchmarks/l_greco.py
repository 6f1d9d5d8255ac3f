"""What a plan of L-GreCo (arXiv 2210.17357) saves over one value for all layers, at which error and which loss.

Two gloo ranks train decoders on the text that comes with Python: each method with one value for each layer, as the
paper has it, and with plans from the same default, whose budget is the loss of the one value, or its error as in the
paper; all from the same seed and over the same data, besides a run without compression, and for top-k one in which the
layers of a bucket are compressed together: that is what a plan without layers falls back to. What seeds do is in the
columns of losses, one number for each. "Embedding" has two large ones beside small blocks; the text has 256 kinds of
tokens, so that rows of all other tokens get no gradient at the input and a small one at the output. In "blocks" all
layers are alike.

    python -m benchmarks.l_greco --save --runs runs.jsonl

``--runs`` keeps what was measured: a second call goes on from there.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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
PLAIN: dict[str, Any] = {"method": "none"}
BUDGETS = ("loss", "error")
#: They pick the largest values of all layers of a bucket, unless layers have values of their own.
METHODS_THAT_PICK = {"topk"}
PLAN_EVERY = 100
STEPS = 300
HEADER = (
    "model",
    "method",
    "budget",
    "one value: MB/step by formula",
    "recorded",
    "plan: MB/step by formula",
    "recorded",
    "times fewer bytes",
    "errors, times",
    "lost of what counts: one value, plan",
    "validation loss, plain",
    "layers together",
    "one value",
    "plan",
    "plan over one value",
    "planning, s each",
)


@dataclass(frozen=True)
class Ran:
    """Numbers of a run: its loss on held-out text; under a plan those of the last one that steps followed, bytes sent
    in a step from ``first`` on as they were recorded, and the mean time that a plan took.
    """

    loss: float
    recorded: float
    uniform: float = math.nan
    planned: float = math.nan
    errors: float = math.nan
    lost_uniform: float = math.nan
    lost: float = math.nan
    seconds: float = math.nan


def config_of(model: dict[str, Any], compression: dict[str, Any], seed: int = 0) -> RunConfig:
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
                "seed": seed,
                "clip_norm": None,
                "validation_batches": 32,
                "timeout_seconds": 3600.0,
            },
            "device": "cpu",
        }
    )


def run(session: Session, model: dict[str, Any], compression: dict[str, Any], seed: int) -> Ran:
    """One run to its end."""
    outcome, summary = session.execute(config_of(model, compression, seed), {}, lambda: False)
    if outcome.ending.value != "completed":
        raise SystemExit(f"{compression}: {outcome.ending.value}: {outcome.reason}")
    records, loss = RunRecords(session.home / summary.id / run_folder.RECORDS), summary.validation_loss
    followed = [plan for plan in summary.plans if plan.step < STEPS]
    sent = _recorded(records, followed[-1].step if followed else STEPS - PLAN_EVERY)
    if not followed:
        return Ran(loss or math.nan, sent)
    last, spent = followed[-1], [plan.seconds or 0.0 for plan in followed]
    numbers = (
        last.bytes_uniform,
        last.bytes_after,
        last.error,
        last.error_uniform,
        last.effect_uniform,
        last.effect,
    )
    uniform, planned, error, error_uniform, lost_uniform, lost = (one or 0.0 for one in numbers)
    return Ran(
        loss or math.nan,
        sent,
        uniform,
        planned,
        error / error_uniform,
        lost_uniform,
        lost,
        float(np.mean(spent)),
    )


def _recorded(records: RunRecords, first: int) -> float:
    """Sent over the wire by a rank, a step from ``first`` on, by the calls that were recorded."""
    steps = np.arange(first, STEPS)
    tables = [records.table(rank, "comm") for rank in records.ranks()]
    rows = communication_rows(tables, steps, len(steps) * len(tables), backend="gloo")
    return sum(row.wire_bytes or 0.0 for row in rows if row.axis.startswith("dp"))


class Runs:
    """What was measured, by model, compression and seed; kept in a file of one line a run."""

    def __init__(self, session: Session, kept: Path | None) -> None:
        self._session, self._kept, self._known = session, kept, dict[str, Ran]()
        lines = kept.read_text().splitlines() if kept is not None and kept.exists() else []
        for key, numbers in (json.loads(line) for line in lines):
            self._known[key] = Ran(**numbers)

    def of(self, model: str, compression: dict[str, Any], seed: int) -> Ran:
        """Measured now, unless it is known."""
        key = json.dumps([model, compression, seed])
        if key not in self._known:
            self._known[key] = run(self._session, MODELS[model], compression, seed)
            print(key, self._known[key], file=sys.stderr, flush=True)
            if self._kept is not None:
                with self._kept.open("a") as file:
                    file.write(json.dumps([key, asdict(self._known[key])]) + "\n")
        return self._known[key]


def one_value(values: dict[str, Any]) -> dict[str, Any]:
    """The same for each layer, on its own."""
    value = usual_value(Compression.model_validate(values))
    assert value is not None
    return values | {"layers": {"*": value}}


def rows_of(runs: Runs, budgets: Sequence[str], all_seeds: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """One for each model, method and budget; that of the paper with the first seed alone."""
    for budget in budgets:
        seeds = all_seeds if budget == "loss" else all_seeds[:1]
        asked = {"plan": "l_greco", "plan_every": PLAN_EVERY, "plan_budget": budget}
        for model in MODELS:
            for method, values in METHODS.items():
                plain = [runs.of(model, PLAIN, seed) for seed in seeds]
                uniform = [runs.of(model, one_value(values), seed) for seed in seeds]
                planned = [runs.of(model, values | asked, seed) for seed in seeds]
                picks = METHODS_THAT_PICK.intersection(values.values())
                together = [runs.of(model, values, seed) for seed in seeds] if picks else uniform
                losses = _losses(plain, uniform, planned, together)
                yield (model, method, budget, *_bytes(uniform, planned), *losses)


def _bytes(uniform: Sequence[Ran], planned: Sequence[Ran]) -> tuple[str, ...]:
    """Means over seeds, of the last plan that steps followed; what it saves by formula for each seed."""
    sizes = (
        np.mean([one.uniform for one in planned]),
        np.mean([one.recorded for one in uniform]),
        np.mean([one.planned for one in planned]),
        np.mean([one.recorded for one in planned]),
    )
    lost = (np.mean([one.lost_uniform for one in planned]), np.mean([one.lost for one in planned]))
    return (
        *(f"{size / 1e6:.4f}" for size in sizes),
        ", ".join(f"{one.uniform / one.planned:.2f}" for one in planned),
        f"{np.mean([one.errors for one in planned]):.3f}",
        ", ".join(f"{share:.1%}" for share in lost),
    )


def _losses(
    plain: Sequence[Ran], uniform: Sequence[Ran], planned: Sequence[Ran], together: Sequence[Ran]
) -> tuple[str, ...]:
    """For each seed; the differences as well, and their mean."""
    all_ = (plain, together, uniform, planned)
    columns = [", ".join(f"{one.loss:.4f}" for one in column) for column in all_]
    over = [100 * (b.loss / a.loss - 1) for a, b in zip(uniform, planned, strict=True)]
    each = ", ".join(f"{one:+.1f}" for one in over)
    return *columns, f"{np.mean(over):+.1f} % ({each})", f"{np.mean([one.seconds for one in planned]):.2f}"


def main() -> None:
    """Print the table."""
    parser = table.parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS), choices=BUDGETS)
    parser.add_argument("--runs", type=Path, help="file of what was measured, to go on from")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        rows = list(rows_of(Runs(session, arguments.runs), arguments.budgets, arguments.seeds))
    seeds = ", ".join(map(str, arguments.seeds))
    title = f"L-GreCo: plans every {PLAN_EVERY} steps against one value, after {STEPS} steps, seeds {seeds}"
    table.show("l_greco", title, HEADER, rows, arguments.save)


if __name__ == "__main__":
    main()
