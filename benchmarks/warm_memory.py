"""Peak memory of equal trials on one warm pool: what the last trial leaves behind is counted in the next one's."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from engine.config import parse
from engine.session import Session

TRIALS = 5
#: The most that the highest and the lowest peak may lie apart, of their median.
BAR = 0.01
#: 13 million parameters: 208 MB of weights, gradients and optimizer state beside about as much of torch itself.
BASE: dict[str, Any] = {
    "model": {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn_hidden": 1408},
    "data": {"sequence_length": 64},
    "batch": {"global_batch": 4, "micro_batch": 1},
    "train": {"steps": 3, "warmup": 1, "validation_batches": 0},
    "device": "cpu",
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "one rank, offload, recompute": {"memory.offload": "both", "memory.recompute": "full"},
    "dp 2": {"parallel.dp": 2},
    "dp 2, bf16 parameters": {"parallel.dp": 2, "precision": "bf16", "memory.parameters": "bf16"},
    "dp 2, delay": {"parallel.dp": 2, "overlap.delay": 1},
    "dp 2, int8 with error feedback": {
        "parallel.dp": 2,
        "compression.method": "int8",
        "compression.error_feedback": True,
    },
    "dp 2, powersgd": {"parallel.dp": 2, "compression.method": "powersgd"},
    "dp 2, diloco": {"parallel.dp": 2, "outer.method": "diloco", "outer.period": 1},
    "dp 2, co2": {"parallel.dp": 2, "outer.method": "co2", "outer.period": 1},
    "zero 1": {"parallel.dp": 2, "parallel.zero_stage": 1},
    "zero 2": {"parallel.dp": 2, "parallel.zero_stage": 2},
    "zero 3": {"parallel.dp": 2, "parallel.zero_stage": 3},
    "tp 2": {"parallel.tp": 2},
    "cp 2": {"parallel.cp": 2},
    "pp 2": {"parallel.pp": 2},
    "ep 2": {"parallel.dp": 2, "parallel.ep": 2, "model.experts": 4, "model.expert_ffn_hidden": 352},
}


def peaks(home: Path, values: dict[str, Any]) -> list[int]:
    """The peak of each trial: that of the rank with the highest one."""
    found = []
    with Session(home) as session:
        for _ in range(TRIALS):
            outcome, summary = session.execute(parse(BASE).with_values(values), {}, lambda: False)
            assert outcome.good and summary.peak_memory_bytes is not None, outcome
            found.append(summary.peak_memory_bytes)
    return found


def row(name: str, found: list[int]) -> list[str]:
    """One layout: MB of each trial, how far apart they lie, and whether that is within the bar."""
    apart = (max(found) - min(found)) / statistics.median(found)
    told = [f"{peak / 1e6:.1f}" for peak in found]
    return [name, *told, f"{100 * apart:.2f} %", "yes" if apart <= BAR else "no"]


def main() -> None:
    """Measure all layouts and print the table."""
    save = table.parser(__doc__).parse_args().save
    rows = []
    for name, values in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as home:
            rows.append(row(name, peaks(Path(home), values)))
        print(" ".join(rows[-1]), flush=True)
    header = ["layout", *(f"trial {number + 1}, MB" for number in range(TRIALS)), "apart"]
    title = "Peak resident memory of five equal trials on one warm pool of gloo ranks"
    table.show("warm_memory", title, [*header, f"within {100 * BAR:.0f} %"], rows, save)


if __name__ == "__main__":
    main()
