"""The validation loss that each method of compression ends with, beside plain data parallel's.

    python -m benchmarks.communication_quality [--steps 300] [--methods sign ...] [--tiny] [--save]

Four ranks train a decoder of about 10 million parameters on the text that comes with Python, each method from the same
seed and over the same data, and with the same settings else; the links are as fast as they go, which changes nothing in
the arithmetic. Compression begins with the third step, and gradients are not clipped: a norm's bound would hold back
what error feedback brings up later. Controls have error feedback the other way round: they are meant to end worse. What
a method was trained to is kept in a file, and runs that are kept are not made again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from benchmarks._methods import METHODS, MODEL, PLAIN, RANKS
from engine.config.run_config import RunConfig, parse
from engine.session import Session

NAME = "communication_quality"
KEPT = table.RESULTS / f"{NAME}.json"
#: The issue's bar.
WITHIN = 0.02
FEEDS_NOT = {"error_feedback": False}
CONTROLS: dict[str, dict[str, Any]] = {
    f"{name}, no error feedback": METHODS[name] | FEEDS_NOT for name in ("topk 1 %", "powersgd 4", "sign")
} | {"randomk 1 %, error feedback": METHODS["randomk 1 %"] | {"error_feedback": True}}
ALL = METHODS | CONTROLS
TINY = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn_hidden": 192, "vocabulary": 256}
HEADER = (
    "method",
    "validation loss",
    "against plain",
    f"within {WITHIN:.0%}",
    "training loss at the end",
    "wire MB a step and rank",
)

Row = dict[str, Any]


def config(values: dict[str, Any], steps: int, tiny: bool) -> RunConfig:
    """Eight sequences of 64 tokens a step; the loss of 32 batches of held-out text at the end."""
    return parse(
        {
            "model": TINY if tiny else MODEL,
            "data": {"sequence_length": 64},
            "batch": {"global_batch": 2 * RANKS, "micro_batch": 2},
            "parallel": {"dp": RANKS},
            "compression": values,
            "train": {
                "steps": steps,
                "clip_norm": None,
                "validation_batches": 32,
                "timeout_seconds": 7200.0,
                "step_timeout_seconds": 300.0,
            },
            "device": "cpu",
        }
    )


def trained(session: Session, name: str, steps: int, tiny: bool) -> Row:
    """One run to its end; a loss that is no number is an answer, too."""
    outcome, summary = session.execute(config(ALL[name], steps, tiny), {}, lambda: False)
    if outcome.ending.value not in ("completed", "diverged"):
        raise SystemExit(f"{name}: {outcome.ending.value}: {outcome.reason}")
    wire = summary.wire_bytes_per_step
    return {
        "ending": outcome.ending.value,
        "validation": summary.validation_loss,
        "training": next((loss for loss in reversed(summary.losses) if loss is not None), None),
        "wire": None if wire is None else wire / 1e6,
        "steps": steps,
        "machine": table.machine(),
    }


def cells(name: str, found: Row, plain: float) -> list[str]:
    """A line of the table."""
    loss, numbers = found["validation"], (found["training"], found["wire"])
    apart = None if loss is None else loss / plain - 1
    verdict = "" if name == PLAIN else "pass" if apart is not None and apart <= WITHIN else "missed"
    return [
        name,
        found["ending"] if loss is None else f"{loss:.4f}",
        "" if apart is None else f"{100 * apart:+.2f} %",
        verdict + (" (a control)" if name in CONTROLS else ""),
        *("" if number is None else f"{number:.4f}" for number in numbers),
    ]


def main() -> None:
    """Train what is asked for and not kept yet, and print all that there is."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--methods", nargs="*", choices=ALL, default=list(ALL))
    arguments.add_argument("--tiny", action="store_true", help="a small decoder, to see that all works")
    arguments.add_argument("--kept", type=Path, default=KEPT, help="file of the runs made so far")
    given = arguments.parse_args()
    kept: dict[str, Row] = json.loads(given.kept.read_text("utf-8")) if given.kept.exists() else {}
    kept = {name: one for name, one in kept.items() if one["steps"] == given.steps}
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        for name in dict.fromkeys([PLAIN, *given.methods]):
            if name not in kept:
                kept[name] = trained(session, name, given.steps, given.tiny)
                table.keep(given.kept, kept)
                print(f"{name}: {kept[name]['validation']}", file=sys.stderr, flush=True)
    rows = [cells(name, kept[name], kept[PLAIN]["validation"]) for name in ALL if name in kept]
    title = f"Loss on held-out text after {given.steps} steps, compressed and plain, {RANKS} data ranks"
    table.show(NAME, title, HEADER, rows, given.save)


if __name__ == "__main__":
    main()
