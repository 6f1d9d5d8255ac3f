"""Short runs on NCCL with all ranks on one GPU, compared with one rank: for correctness, never for speed.

How two ranks share a GPU: ``workbench/selftest/checks/shared_gpu.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from engine.config.run_config import parse
from workbench.selftest.checks.shared_gpu import DEVICE, Losses, losses_of

SMALL: dict[str, Any] = {
    "batch": {"global_batch": 8, "micro_batch": 1},
    "data": {"sequence_length": 64},
    "train": {"steps": 3, "warmup": 1, "validation_batches": 0},
    "device": DEVICE,
}
#: The balancing loss is taken over a micro-batch of all ranks, which is another one on one rank.
EXPERTS = {"model.experts": 4, "model.balance_weight": 0.0}
#: Layout, its degrees, and what its model has beyond the tiny preset.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("1 rank, ZeRO-3", {"parallel.zero_stage": 3}, {}),
    ("2 ranks, dp=2", {"parallel.dp": 2}, {}),
    ("2 ranks, dp=2, ZeRO-3", {"parallel.dp": 2, "parallel.zero_stage": 3}, {}),
    ("2 ranks, tp=2", {"parallel.tp": 2}, {}),
    ("2 ranks, pp=2", {"parallel.pp": 2}, {}),
    ("2 ranks, cp=2", {"parallel.cp": 2}, {}),
    ("2 ranks, dp=2, ep=2", {"parallel.dp": 2, "parallel.ep": 2}, EXPERTS),
]
#: Kernels may add in another order than those of one rank.
LOSS_TOLERANCE = 1e-4


def compare(gpu: str, save: bool) -> bool:
    """Print the table of all layouts; tell whether the runs on one rank ended well."""
    references: dict[str, Losses] = {}
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as home:
        for name, degrees, extra in CASES:
            key = "1 rank, 4 experts" if extra else "1 rank"
            if key not in references:
                references[key] = losses_of(parse(SMALL).with_values(extra), Path(home))
                rows.append(told([key, spelled(references[key]), "", ""]))
            losses = losses_of(parse(SMALL).with_values(degrees | extra), Path(home))
            rows.append(told([name, spelled(losses), *difference(losses, references[key])]))
    title = (
        f"NCCL on one {gpu}: losses of a tiny decoder in fp32, for correctness only (two ranks share the GPU)"
    )
    header = ["layout", "losses", "largest difference", f"within {LOSS_TOLERANCE:g}"]
    table.show("gpu_nccl", title, header, rows, save)
    return all(isinstance(losses, list) for losses in references.values())


def difference(losses: Losses, alone: Losses) -> list[str]:
    """Largest difference to the losses of one rank, and whether it is small enough."""
    if isinstance(losses, str) or isinstance(alone, str) or not losses or len(losses) != len(alone):
        return ["", "not compared"]
    pairs = zip(losses, alone, strict=True)
    largest = max(float("inf") if a is None or b is None else abs(a - b) for a, b in pairs)
    return [f"{largest:.1e}", "yes" if largest <= LOSS_TOLERANCE else "no"]


def spelled(losses: Losses) -> str:
    """Losses in a cell, or what went wrong."""
    return (
        losses if isinstance(losses, str) else ", ".join(f"{loss:.6f}" for loss in losses if loss is not None)
    )


def told(row: list[str]) -> list[str]:
    """Print a row at once: what was found stays, whatever comes later."""
    print(" | ".join(row), flush=True)
    return row
