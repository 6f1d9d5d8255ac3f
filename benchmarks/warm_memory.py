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
DP: dict[str, Any] = {"parallel.dp": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "one rank, offload, recompute": {"memory.offload": "both", "memory.recompute": "full"},
    "dp 2": DP,
    "dp 2, delay, bf16 parameters": DP
    | {"overlap.delay": 1, "precision": "bf16", "memory.parameters": "bf16"},
    "dp 2, int8 with error feedback": DP
    | {"compression.method": "int8", "compression.error_feedback": True, "compression.start_step": 0},
    "dp 2, diloco": DP | {"outer.method": "diloco", "outer.period": 1},
    "zero 1": DP | {"parallel.zero_stage": 1},
    "zero 3": DP | {"parallel.zero_stage": 3},
    "tp 2": {"parallel.tp": 2},
    "pp 2": {"parallel.pp": 2},
}
#: Also measured with new processes for each trial: how far peaks lie apart that cannot touch each other.
FRESH = ("one rank", "dp 2")


def peaks(home: Path, values: dict[str, Any], fresh: bool) -> list[int]:
    """The peak of each trial: that of the rank with the highest one."""
    found = []
    with Session(home, fresh_on_cpu=fresh) as session:
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
    todo = [(name, False) for name in LAYOUTS] + [(name, True) for name in FRESH]
    for name, fresh in todo:
        with tempfile.TemporaryDirectory() as home:
            found = peaks(Path(home), LAYOUTS[name], fresh)
        rows.append(row(name + ", fresh processes" * fresh, found))
        print(" ".join(rows[-1]), flush=True)
    header = ["layout", *(f"trial {number + 1}, MB" for number in range(TRIALS)), "apart"]
    title = "Peak resident memory of five equal trials on one warm pool of gloo ranks"
    table.show("warm_memory", title, [*header, f"within {100 * BAR:.0f} %"], rows, save)


if __name__ == "__main__":
    main()
