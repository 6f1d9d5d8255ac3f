"""SE-MoE: an embedding in columns and experts' rows in two stages (``_experts.py``), in the lab, and its experts on
host and disk, with slots for some of them (``_expert_slots.py``).
"""

from __future__ import annotations

import json
from argparse import Namespace

from benchmarks import _expert_slots as slots
from benchmarks import _experts as experts
from benchmarks import _table as table
from benchmarks.literature import System


def _experts_lines(given: Namespace, measures: bool) -> list[str]:
    kept = experts.run(given.lab_rounds) if measures else json.loads(experts.KEPT.read_text())
    rows, bars = experts.rows(kept)
    if measures:
        table.show(experts.NAME, experts.title(kept), experts.HEADER, rows, given.save)
    return _se_moe(bars)


def _se_moe(bars: dict[str, float]) -> list[str]:
    bytes_ = max(bars["columns bytes"], bars["islands bytes"])
    good = bars["columns apart"] == bars["islands apart"] == 0 and bytes_ <= experts.SAME_BYTES
    return [
        "SE-MoE, `parallel.embedding: columns`, `parallel.ep_island`",
        f"losses apart: {bars['columns apart']:.1e} and {bars['islands apart']:.1e}",
        f"counted and by the calls: within {bytes_:.2%}; messages between islands {bars['islands messages']:.1f} times "
        "fewer",
        "its bytes alone",
        f"columns: a step {bars['columns gain']:.2f} times as fast, the embedding's own messages "
        f"{bars['columns own gain']:.1f} times; two stages: a step {bars['islands gain']:.2f} times as fast",
        "15.81 to 8.63 GB and 1.14 times the speed; 10.3 % end to end",
        "columns pay with many words" if good and bars["columns gain"] > 1 else "does not keep every bar",
    ]


def _slots_line(given: Namespace, measures: bool) -> list[str]:
    kept = slots.run() if measures else json.loads(slots.KEPT.read_text())
    rows, bars = slots.rows(kept)
    if measures:
        table.show(slots.NAME, slots.title(kept), slots.HEADER, rows, given.save)
    every = len(slots.SLOTS)
    return [
        "SE-MoE's experts on host and disk, `memory.expert_slots`",
        f"losses within {slots.SAME_LOSS:g}: {bars['equal']} of {every}",
        "so many experts as there are slots",
        "not modelled",
        f"hits of a recorded trace: as many as by recency {bars['hits']} of {every}, more {bars['better']}",
        "no figure of the cache alone",
        "frequency with the order of layers beats recency"
        if bars["better"] == every
        else "does not keep every bar",
    ]


SYSTEMS = {"experts": System(experts.KEPT, _experts_lines), "slots": System(slots.KEPT, _slots_line)}
