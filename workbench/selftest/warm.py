"""Checks of warm ranks: equal trials have equal peaks, and variables act, in a second run as in the first."""

from __future__ import annotations

from typing import Any

from profilers.environment_rows import YES
from workbench.selftest.bench import Bench
from workbench.selftest.verdict import Number, Verdict, failed, judged

_TRIALS = 5
#: Of the smallest peak. A CPU rank's is its resident set, of which its libraries are the most.
_PEAK_SPREAD = {"cpu": 0.02, "cuda": 0.01}
_VARIABLES: dict[str, Any] = {
    "environment.OMP_NUM_THREADS": 1,
    "environment.MALLOC_ARENA_MAX": 2,
    "environment.MALLOC_MMAP_THRESHOLD_": 2**20,
}
_ON_GPUS: dict[str, Any] = {
    "environment.NCCL_BUFFSIZE": 2**21,
    "environment.allocator_expandable_segments": True,
}


def equal_peaks(bench: Bench) -> Verdict:
    """Five equal trials on the same ranks, as a study runs them; what one leaves behind shows in the next."""
    # Left to itself, glibc moves tensors from mappings of their own into heaps as a process grows old.
    config = bench.config(
        {"parallel.dp": 2, "profile.budget": None, "environment.MALLOC_MMAP_THRESHOLD_": 2**17}
    )
    peaks: list[int] = []
    with bench.session() as session:
        for trial in range(1, _TRIALS + 1):
            outcome, found = bench.run(session, config, f"trial-{trial}")
            if not outcome.good or not found.peak_memory_bytes:
                return failed(
                    f"trial {trial} ended {outcome.ending.value}: {outcome.reason or 'without a peak'}"
                )
            peaks.append(found.peak_memory_bytes)
    spread = max(peaks) / min(peaks) - 1
    measured: dict[str, Number] = {f"trial_{trial}_peak_bytes": peak for trial, peak in enumerate(peaks, 1)}
    measured["spread_fraction"] = spread
    most = _PEAK_SPREAD[config.device]
    wrong = []
    if spread > most:
        grown = (
            "each more than the last one: something is never freed"
            if peaks == sorted(peaks)
            else "in no order"
        )
        wrong.append(f"peaks of equal trials differ by {spread:.1%}, more than {most:.0%}, {grown}")
    return judged(
        wrong, f"peaks of {_TRIALS} equal trials are within {spread:.2%} ({bench.where(config)})", measured
    )


def variables(bench: Bench) -> Verdict:
    """Each variable's proof by the rank itself, in two runs of the same processes."""
    on_gpus = bench.why_not_cuda(2) is None
    asked = _VARIABLES | (_ON_GPUS if on_gpus else {})
    config = bench.config({"parallel.dp": 2} | asked)
    wrong: list[str] = []
    with bench.session() as session:
        for turn in (1, 2):
            outcome, found = bench.run(session, config, f"run-{turn}")
            if not outcome.good:
                return failed(f"run {turn} ended {outcome.ending.value}: {outcome.reason}")
            if len(found.environment) != len(asked):
                wrong.append(
                    f"run {turn} tells of {len(found.environment)} variables instead of {len(asked)}"
                )
            rows = [row for row in found.environment if row.proven != YES]
            wrong += [f"run {turn}: {row.name}={row.asked}: {row.proven} ({row.how})" for row in rows]
    names = ", ".join(key.removeprefix("environment.") for key in asked)
    return judged(wrong, f"{names} act in both runs ({bench.where(config)})", {"variables_count": len(asked)})
