"""Holmes and Pipette: ranks placed and layers dealt, beside every other way (``_placed_orders.py``), in the lab."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from benchmarks import _placed_orders as placed
from benchmarks import _table as table
from benchmarks.literature import System


def _placed_line(given: Namespace, measures: bool) -> list[str]:
    kept = placed.run(given.lab_rounds) if measures else json.loads(placed.KEPT.read_text())
    if measures:
        table.show(placed.NAME, placed.title(kept), placed.HEADER, placed.rows(kept), given.save)
    return _placed(kept)


def _placed(kept: dict[str, Any]) -> list[str]:
    found, most = placed.Orders(kept), 1 + placed.NEAR
    bars = {"order": found.chosen <= most, "prediction": found.within == found.count}
    said = [
        f"order chosen, hosts shuffled in 24 ways: at most {found.chosen:.2f} of the best of {found.count}, the "
        f"slowest {found.slowest:.2f}"
    ]
    if placed.is_measured(kept, "cuts"):
        bars["cut"] = (chosen := placed.cut(kept, placed.chosen_cut())) <= most
        said.append(f"cut chosen {chosen:.2f} of the best of 7, the even one {placed.cut(kept, '4 4'):.2f}")
    if placed.is_measured(kept, "overlap"):
        apart, again = (placed.overlap(kept, name).plain() for name in (placed.APART, placed.AGAIN))
        said.append(f"ZeRO 1 that waits for its gathers: {apart} of one that does not (A/A {again})")
    missing = [part for part in placed.PARTS if not placed.is_measured(kept, part)]
    said += [f"not measured yet: {', '.join(missing)}"] if missing else []
    missed = [name for name, keeps in bars.items() if not keeps]
    return [
        "Holmes and Pipette, `parallel.placement`, `schedule.stage_layers: auto`",
        f"losses of all orders within {found.apart:.1g}",
        "in `placement.md`",
        f"{found.within} of {found.count} orders within 15 %, the worst {found.worst:.0%} off; Spearman {found.rank}",
        "; ".join(said),
        "Megatron-LM at 0.72 of Holmes's speed on two clusters (read off a chart)",
        f"misses its bar of {', '.join(missed)}" if missed else "keeps the bars that were measured",
    ]


SYSTEMS = {"placed": System(placed.KEPT, _placed_line)}
