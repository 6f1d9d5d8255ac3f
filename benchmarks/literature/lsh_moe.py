"""LSH-MoE: expert tokens that are alike travel as one (``_bucketed.py``), beside int8."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from benchmarks import _bucketed as bucketed
from benchmarks import _table as table
from benchmarks.literature import System


def _line(given: Namespace, measures: bool) -> list[str]:
    kept = bucketed.run(bucketed.Size()) if measures else json.loads(bucketed.KEPT.read_text("utf-8"))
    if measures:
        table.show(bucketed.NAME, bucketed.title(kept), bucketed.HEADER, bucketed.rows(kept), given.save)
    return line(kept)


def line(kept: dict[str, Any]) -> list[str]:
    """Of what was measured."""
    kinds = (bucketed.LSH, bucketed.ALONE, bucketed.BOTH, bucketed.BOTH_ALONE)
    near = max(abs(bucketed.share(kept, kind) / bucketed.RATE - 1) for kind in kinds)
    keeps = {kind: bucketed.keeps(kept, kind) for kind in kinds}
    told = "; ".join(f"{kind} {bucketed.told_loss(kept, kind)}" for kind in kinds)
    beside = (
        f"loss at {bucketed.RATE:.0%} of the bytes: {told}; int8 alone, at {bucketed.share(kept, bucketed.INT8):.0%}, "
        f"{bucketed.told_loss(kept, bucketed.INT8)}"
    )
    if "lab" in kept:
        times = [
            (kind, bucketed.gain(kept, kind).plain())
            for kind in (bucketed.LSH, bucketed.BOTH_ALONE, bucketed.INT8)
        ]
        beside += "; a step at 100 Mbit/s: " + ", ".join(
            f"{kind} {gained} times as fast" for kind, gained in times
        )
    return [
        "LSH-MoE, `compression.experts: lsh`",
        "buckets of one token: to the bit (tests)",
        f"within {near:.1%} of the rate",
        "a rank's own rows; what comes from others is not modelled",
        beside,
        "1.28 to 2.2 times as fast at 11.7 to 20 % of the bytes",
        _verdict(keeps),
    ]


def _verdict(keeps: dict[str, bool | None]) -> str:
    good = [kind for kind, kept in keeps.items() if kept]
    open_ = [kind for kind, kept in keeps.items() if kept is None]
    if good:
        return f"keeps its bar: {'; '.join(good)}"
    return (
        f"not told from so few seeds, so int8 wins: {'; '.join(open_)}"
        if open_
        else "misses its bar: int8 wins"
    )


SYSTEMS = {"bucketed": System(bucketed.KEPT, _line)}
