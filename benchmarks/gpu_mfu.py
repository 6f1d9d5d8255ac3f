"""Utilization of one GPU by a decoder of 1.1 B parameters (sequence 4,096, bf16): eager, compiled per block, and
compiled with full recomputation. Then NCCL with one rank and with two ranks on that GPU, for correctness only.

MFU counts by the 72-convention (arXiv 2104.04473), HFU counts recomputation as well (arXiv 2205.05198). Each run has
processes of its own. Without a GPU nothing runs. ``--part mfu`` and ``--part nccl`` do one half each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import _nccl, _table
from engine.config.errors import WorkbenchError
from engine.config.run_config import parse
from engine.footprint.flops import parameters, workload_of
from engine.run.outcome import Ending, RunOutcome
from engine.session import Session
from profilers.gpu.nvml import Nvml
from profilers.model.run_summary import RunSummary

BAR = 0.5
WARMUP = 6
DEVICE = "cuda"
#: Heads of 128 units suit attention kernels; text as bytes fills only a part of the vocabulary.
DECODER: dict[str, Any] = {
    "model": {"preset": "1b", "heads": 16, "kv_heads": 8},
    "data": {"sequence_length": 4096},
    "batch": {"global_batch": 16, "micro_batch": 8},
    "precision": "bf16",
    "device": DEVICE,
    "train": {
        "warmup": WARMUP,
        "learning_rate": 1e-4,
        "validation_batches": 0,
        "timeout_seconds": 1800.0,
        "step_timeout_seconds": 600.0,
    },
}
ROWS: dict[str, dict[str, Any]] = {
    "eager": {},
    "compiled": {"compile": True},
    "compiled, full recomputation": {"compile": True, "memory.recompute": "full"},
}
HEADER = [
    *("run", "micro-batch", "MFU (72-convention)", "HFU", "tokens/s", "step s", "model TFLOP/s"),
    *("peak GiB", "loss"),
]
#: Tried from the largest on until one fits into the GPU's memory.
MICRO_BATCHES = (8, 4, 2, 1)


def utilization(gpu: str, steps: int, save: bool) -> bool:
    """Measure all rows and print them; tell whether all ended well."""
    rows: list[list[str]] = []
    found: dict[str, tuple[RunOutcome, RunSummary]] = {}
    for name, values in ROWS.items():
        outcome, summary, micro_batch = measure(name, values, steps)
        rows.append(cells(name, outcome, summary, micro_batch))
        say(" | ".join(rows[-1]))
        found[name] = outcome, summary
    size = parameters(workload_of(parse(DECODER))) / 1e9
    title = (
        f"One {gpu} and a decoder of {size:.2f} B parameters: sequence 4,096, bf16, {steps} measured steps"
    )
    _table.show("gpu_mfu", title, HEADER, rows, save)
    conclude(found["compiled"][1])
    return all(outcome.good for outcome, _ in found.values())


def measure(name: str, values: dict[str, Any], steps: int) -> tuple[RunOutcome, RunSummary, int]:
    """Outcome and summary at the largest micro-batch that fits."""
    for micro_batch in MICRO_BATCHES:
        asked = values | {"batch.micro_batch": micro_batch, "train.steps": WARMUP + steps}
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
            config = parse(DECODER).with_values(asked)
            outcome, summary = session.execute(config, {"purpose": "benchmark"}, lambda: False)
        took = f"after {time.monotonic() - began:.0f} s"
        say(
            f"{name}, micro-batch {micro_batch}: {outcome.ending} {took} {outcome.reason}",
            *outcome.last_lines,
        )
        if not too_large(outcome):
            break
    return outcome, summary, micro_batch


def too_large(outcome: RunOutcome) -> bool:
    """Whether memory was short; cuBLAS and cuDNN have words of their own for it."""
    return outcome.ending is Ending.OOM or "ALLOC_FAILED" in outcome.reason


def cells(name: str, outcome: RunOutcome, summary: RunSummary, micro_batch: int) -> list[str]:
    """A row of the table; a run that ended badly has only its ending."""
    step = summary.step_seconds
    if not outcome.good or step is None:
        return [name, str(micro_batch), f"{outcome.ending}: {outcome.reason}".replace("|", "/"), *[""] * 6]
    losses = [loss for loss in summary.losses if loss is not None]
    slowest_first = [step.median, step.high or step.median, step.low or step.median]
    rates = [summary.tokens_per_step / seconds for seconds in slowest_first]
    return [
        name,
        str(micro_batch),
        share(summary.mfu, slowest_first),
        share(summary.hfu, slowest_first),
        f"{rates[0]:,.0f} ({rates[1]:,.0f} to {rates[2]:,.0f})",
        f"{step.median:.3f}",
        f"{(summary.model_flops_per_second or 0.0) / 1e12:,.1f}",
        f"{(summary.peak_memory_bytes or 0) / 2**30:.1f}",
        f"{losses[0]:.2f} -> {losses[-1]:.2f}",
    ]


def share(median: float | None, seconds: list[float]) -> str:
    """A utilization at the median step, and at the ends of the median's 95 % interval."""
    if median is None:
        return "not known"
    middle, low, high = (100 * median * seconds[0] / each for each in seconds)
    return f"{middle:.1f} % ({low:.1f} to {high:.1f})"


def conclude(compiled: RunSummary) -> None:
    """What the percentages count, of which peak, and whether the bar is met."""
    say(f"Counted: {compiled.mfu_convention}.")
    if compiled.mfu is None or compiled.peak_flops is None:
        say(f"No MFU: {compiled.mfu_reason}.")
        return
    say(f"Peak: {compiled.peak_flops / 1e12:,.1f} TFLOP/s, {compiled.peak_source}.")
    verdict = "met" if compiled.mfu >= BAR else "not met"
    say(f"Bar, at least {BAR:.0%} compiled: {verdict} ({compiled.mfu:.1%}).")


def say(*lines: str) -> None:
    """Print at once: what was measured stays, whatever comes later."""
    for line in lines:
        print(line, flush=True)


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    made = _table.parser(__doc__)
    made.add_argument("--part", choices=("all", "mfu", "nccl"), default="all")
    made.add_argument("--steps", type=int, default=15, help="measured steps of each run")
    return made.parse_args()


def main() -> int:
    """Run what was asked for; 1 if something that has to end well did not."""
    given = arguments()
    if not torch.cuda.is_available():
        say("skipped: torch finds no GPU on this machine")
        return 0
    gpu, good = Nvml().name(0) or "GPU", True
    try:
        if given.part != "nccl":
            good &= utilization(gpu, given.steps, given.save)
        if given.part != "mfu":
            good &= _nccl.compare(gpu, given.save)
    except WorkbenchError as error:
        say(f"error: {error}")
        return 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
