"""Tables of searches of several objectives: scores by budget and sampler, and what one sampler is ahead of another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Kept = dict[str, dict[str, float]]
#: Searches of a cell of a table, and all others.
GROUPS = ("recorded", "simulated and made up")
SCORES = [
    "problems",
    "budget",
    "sampler",
    "searches",
    "score, median (95 %)",
    "worst",
    "failed, %",
    "processor ms a proposal",
]
AHEAD = ["problems", "budget", "pairs", "median (95 %)", "mean", "ahead, tied, behind"]
_RESAMPLES = 10_000
#: Two scores that differ by less are tied.
TIED = 0.001


def key(problem: str, method: str, seed: int, budget: int) -> str:
    """What a search is kept by."""
    return f"{problem} | {method} | {seed} | {budget}"


def scores(kept: Kept, methods: Sequence[str]) -> list[list[str]]:
    """A row for each group of problems, budget and method."""
    rows = []
    for group in GROUPS:
        for budget in _budgets(kept, group):
            for method in methods:
                found = [row for name, row in kept.items() if _is_of(name, group, budget, method)]
                if found:
                    rows.append([group, f"{budget:,}", method, *_of(found)])
    return rows


def ahead(kept: Kept, one: str, other: str) -> list[list[str]]:
    """How far the scores of one method are above those of another, by pairs of the same problem and seed."""
    rows = []
    for group in GROUPS:
        for budget in _budgets(kept, group):
            found = differences(kept, group, budget, one, other)
            if len(found):
                wins, losses = int((found > TIED).sum()), int((found < -TIED).sum())
                counts = f"{wins}, {len(found) - wins - losses}, {losses}"
                rows.append(
                    [
                        group,
                        f"{budget:,}",
                        f"{len(found)}",
                        _median(found, "+"),
                        f"{found.mean():+.3f}",
                        counts,
                    ]
                )
    return rows


def differences(kept: Kept, group: str, budget: int, one: str, other: str) -> NDArray[np.float64]:
    """Of pairs that both were searched."""
    names = [name for name in kept if _is_of(name, group, budget, one)]
    pairs = [(name, name.replace(f"| {one} |", f"| {other} |")) for name in names]
    return np.array([kept[name]["score"] - kept[pair]["score"] for name, pair in pairs if pair in kept])


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Of the median, 95 %, by resampling."""
    drawn = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def _of(found: list[dict[str, float]]) -> list[str]:
    score = np.array([row["score"] for row in found])
    failed, seconds = (np.array([row[name] for row in found]) for name in ("failed", "seconds"))
    return [
        f"{len(found)}",
        _median(score, ""),
        f"{score.min():.3f}",
        f"{100 * failed.mean():.0f}",
        f"{1e3 * np.median(seconds):.1f}",
    ]


def _median(values: NDArray[np.float64], sign: str) -> str:
    low, high = interval(values)
    return f"{np.median(values):{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})"


def _budgets(kept: Kept, group: str) -> list[int]:
    return sorted({int(name.split(" | ")[3]) for name in kept if _group(name) == group})


def _is_of(name: str, group: str, budget: int, method: str) -> bool:
    _, known, _, at = name.split(" | ")
    return _group(name) == group and int(at) == budget and known == method


def _group(name: str) -> str:
    return GROUPS[0] if name.startswith(GROUPS[0]) else GROUPS[1]
