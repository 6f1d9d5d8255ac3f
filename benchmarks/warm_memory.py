"""Peak memory of equal trials on one warm pool: what the last trial leaves behind is counted in the next one's.

What is left is read from outside, of each rank's process once it rests. Rows of fresh processes are the A/A rows: how
far equal trials lie apart that cannot have left each other anything.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks import _table as table
from engine.config.run_config import parse
from engine.run import run_folder
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
#: Below the smallest tensor of these layouts that counts (64 KiB, half an activation with tp 2), and held, so that
#: glibc does not raise it. A tensor under the threshold shares a heap with everything else, whose fragmentation grows
#: over some dozen steps: at 128 KiB a tp 2 rank peaks at 418 MB in 3 steps, 436 in 12, and 464 in 40 as in 160; at
#: 16 KiB at 414 in 40 steps and 415 in 160.
HELD: dict[str, Any] = {"environment.MALLOC_MMAP_THRESHOLD_": 16 * 1024}
#: Also measured with the allocator as it is, and with new processes for each trial, which cannot touch each other.
PLAIN = ("one rank", "dp 2", "zero 3", "pp 2")
FRESH = ("one rank", "dp 2", "zero 3")
FRESH_HELD = ("dp 2", "zero 1", "zero 3", "tp 2")
#: What is measured: the layout, further settings and whether each trial has new processes, by the row's name.
ROWS: dict[str, tuple[str, dict[str, Any], bool]] = {
    **{f"{name}, mmap threshold held": (name, HELD, False) for name in LAYOUTS},
    **{name: (name, {}, False) for name in PLAIN},
    **{f"{name}, fresh processes": (name, {}, True) for name in FRESH},
    **{f"{name}, fresh, held": (name, HELD, True) for name in FRESH_HELD},
}


class Trial(NamedTuple):
    """Bytes of the rank that has the most: at its peak, and when the trial was over; None if the rank was, too."""

    peak: int
    left: int | None


def trials(home: Path, values: dict[str, Any], fresh: bool) -> list[Trial]:
    """Equal ones, one after the other."""
    found = []
    with Session(home, fresh_on_cpu=fresh) as session:
        for _ in range(TRIALS):
            outcome, summary = session.execute(parse(BASE).with_values(values), {}, lambda: False)
            assert outcome.good and summary.peak_memory_bytes is not None, outcome
            ranks = run_folder.RunStatus.from_folder(home / summary.id).rank_pids
            found.append(Trial(summary.peak_memory_bytes, None if fresh else left(ranks)))
    return found


def left(pids: list[int]) -> int:
    """Resident bytes of the largest rank; it frees what it can after its report."""
    time.sleep(1.0)
    return max(psutil.Process(pid).memory_info().rss for pid in pids)


def row(name: str, found: list[Trial]) -> list[str]:
    """One layout: MB of each trial, how far apart they lie, whether that is within the bar, and MB left."""
    peaks = [trial.peak for trial in found]
    apart = (max(peaks) - min(peaks)) / statistics.median(peaks)
    ends = ["-" if trial.left is None else f"{trial.left / 1e6:.1f}" for trial in (found[0], found[-1])]
    told = [f"{peak / 1e6:.1f}" for peak in peaks]
    return [name, *told, f"{100 * apart:.2f} %", "yes" if apart <= BAR else "no", *ends]


def main() -> None:
    """Measure all layouts and print the table."""
    save = table.parser(__doc__).parse_args().save
    rows = []
    for name, (layout, further, fresh) in ROWS.items():
        with tempfile.TemporaryDirectory() as home:
            found = trials(Path(home), LAYOUTS[layout] | further, fresh)
        rows.append(row(name, found))
        print(" ".join(rows[-1]), flush=True)
    header = ["layout", *(f"trial {number + 1}, MB" for number in range(TRIALS)), "apart"]
    header += [f"within {100 * BAR:.0f} %", "left after the first, MB", "after the last"]
    title = "Peak resident memory of five equal trials on gloo ranks, warm ones if nothing else is said"
    table.show("warm_memory", title, header, rows, save)


if __name__ == "__main__":
    main()
