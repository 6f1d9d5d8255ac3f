"""Checks of warm ranks: equal trials have equal peaks, and variables act, in a second run as in the first."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from engine.run import run_folder
from profilers.model.environment import YES
from workbench.selftest.check_context import CheckContext
from workbench.selftest.results import Number, Verdict, make_failure, verdict_of

_TRIALS = 5
#: The most that the highest peak may lie above the lowest, as a share of the lowest. A CPU rank's is its resident set.
_PEAK_SPREAD = 0.01
#: Of a CPU rank at rest, from trial to trial. Without a leak it was at most 0.23 MB on these runs, 0.08 on average, and
#: 0.3 MB with larger models; a leak of 1 MiB is 1.05 MB.
LEFT_GROWTH_BYTES = 750_000
#: A rank frees what it can after its report.
_REST_SECONDS = 1.0
_VARIABLES: dict[str, Any] = {
    "environment.OMP_NUM_THREADS": 1,
    "environment.MALLOC_ARENA_MAX": 2,
    "environment.MALLOC_MMAP_THRESHOLD_": 2**20,
}
_ON_GPUS: dict[str, Any] = {
    "environment.NCCL_BUFFSIZE": 2**21,
    "environment.allocator_expandable_segments": True,
}


def equal_peaks(bench: CheckContext) -> Verdict:
    """Five equal trials on the same ranks, as a study runs them; what one leaves behind shows in the next."""
    # Left to itself, glibc moves tensors from mappings of their own into heaps as a process grows old.
    config = bench.config(
        {"parallel.dp": 2, "profile.budget": None, "environment.MALLOC_MMAP_THRESHOLD_": 2**17}
    )
    peaks: list[int] = []
    rests: list[list[int]] = []
    with bench.session() as session:
        for trial in range(1, _TRIALS + 1):
            outcome, summary = bench.run(session, config, f"trial-{trial}")
            if not outcome.good or not summary.peak_memory_bytes:
                return make_failure(
                    f"trial {trial} ended {outcome.ending.value}: {outcome.reason or 'without a peak'}"
                )
            peaks.append(summary.peak_memory_bytes)
            rests.append(resident_bytes(bench.home / summary.id))
    spread, growth = max(peaks) / min(peaks) - 1, usual_growth(rests)
    measured: dict[str, Number] = {f"trial_{trial}_peak_bytes": peak for trial, peak in enumerate(peaks, 1)}
    measured |= {"spread_fraction": spread, "left_growth_bytes": growth}
    problems = _check_peaks(peaks, spread) + (_check_growth(growth) if config.device == "cpu" else [])
    success = f"peaks of {_TRIALS} equal trials are within {spread:.2%} ({bench.describe_backend(config)})"
    return verdict_of(problems, success, measured)


def _check_peaks(peaks: list[int], spread: float) -> list[str]:
    if spread <= _PEAK_SPREAD:
        return []
    rising = peaks == sorted(peaks)
    order_text = "each more than the last one: something is never freed" if rising else "in no order"
    return [f"peaks of equal trials differ by {spread:.1%}, more than {_PEAK_SPREAD:.0%}, {order_text}"]


def _check_growth(growth: int | None) -> list[str]:
    if growth is None:
        return ["what ranks leave behind could not be read"]
    if growth <= LEFT_GROWTH_BYTES:
        return []
    return [
        f"an idle rank holds {growth / 1e6:.2f} MB more after each trial, more than "
        f"{LEFT_GROWTH_BYTES / 1e6:g} MB: something is never freed"
    ]


def resident_bytes(run: Path) -> list[int]:
    """Resident bytes of each rank of a run that is over, once it freed what it can; empty if that cannot be read."""
    pids = run_folder.RunStatus.from_folder(run).rank_pids
    time.sleep(_REST_SECONDS)
    try:
        return [psutil.Process(pid).memory_info().rss for pid in pids]
    except psutil.Error:
        return []


def usual_growth(rests: list[list[int]]) -> int | None:
    """Bytes that a rank usually holds more after a trial than after the one before, of the rank where it is the most;
    0 where none grows in every trial, None where a trial's is unknown. The median: one step up is no leak.
    """
    if not all(rests):
        return None
    growth_of_ranks = [
        [after - before for before, after in pairwise(rank)] for rank in zip(*rests, strict=True)
    ]
    return max(round(median(steps)) if min(steps) > 0 else 0 for steps in growth_of_ranks)


def variables(bench: CheckContext) -> Verdict:
    """Each variable's proof by the rank itself, in two runs of the same processes."""
    on_gpus = bench.why_not_cuda(2) is None
    wanted = _VARIABLES | (_ON_GPUS if on_gpus else {})
    config = bench.config({"parallel.dp": 2} | wanted)
    problems: list[str] = []
    with bench.session() as session:
        for turn in (1, 2):
            outcome, summary = bench.run(session, config, f"run-{turn}")
            if not outcome.good:
                return make_failure(f"run {turn} ended {outcome.ending.value}: {outcome.reason}")
            if len(summary.environment) != len(wanted):
                problems.append(
                    f"run {turn} tells of {len(summary.environment)} variables instead of {len(wanted)}"
                )
            rows = [row for row in summary.environment if row.proven != YES]
            problems += [f"run {turn}: {row.name}={row.asked}: {row.proven} ({row.how})" for row in rows]
    names = ", ".join(key.removeprefix("environment.") for key in wanted)
    return verdict_of(
        problems,
        f"{names} act in both runs ({bench.describe_backend(config)})",
        {"variables_count": len(wanted)},
    )
