"""Systems of the literature as this project has them, each beside its plainer rival: exactness, bytes, time, verdict.

KARMA: plans of activations for 20 budgets (``_out_of_core.py``). SBP of OneFlow: signatures of matrices over tp
(``_signatures.py``), SkipPipe: stages left out, planned and not (``_partial_pipeline.py``), OneFlow's registers:
bounded messages between stages (``_registers.py``), and SE-MoE: an embedding in columns and experts' rows in two
stages (``_experts.py``), all in the lab; and
its experts on host and disk, with slots for some of them (``_expert_slots.py``). Holmes and Pipette: ranks placed and
layers dealt, beside every other way (``_placed_orders.py``), in the lab. MASHA, OREPA, synthetic intermediate labels
and a stand-in for CaRL: workloads (``_workloads.py``).

What has been measured is kept in ``results``, so the benchmark goes on where it was stopped; ``--fresh`` begins anew,
``--only`` measures one system and takes the others as they are kept.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from contextlib import suppress
from functools import partial as given_first
from typing import Any

import numpy as np

from benchmarks import _expert_slots as slots
from benchmarks import _experts as experts
from benchmarks import _out_of_core as out_of_core
from benchmarks import _partial_pipeline as partial
from benchmarks import _placed_orders as placed
from benchmarks import _registers as registers
from benchmarks import _signatures as signatures
from benchmarks import _table as table
from benchmarks import _workloads as workloads

HEADER = ["system", "exact", "bytes", "predicted", "beside its rival", "the paper", "verdict"]


def main() -> None:
    """Measure what is missing, and print the tables."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=16, help="steps of each plan of KARMA")
    arguments.add_argument("--lab-rounds", type=int, default=8, help="runs of each setting in the lab")
    arguments.add_argument("--fresh", action="store_true", help="forget what was measured before")
    arguments.add_argument("--only", choices=SYSTEMS, help="measure this one alone")
    given = arguments.parse_args()
    if given.fresh:
        for name in [given.only] if given.only else SYSTEMS:
            KEPT[name].unlink(missing_ok=True)
    lines = []
    for name, system in SYSTEMS.items():
        if given.only in (None, name) or KEPT[name].exists():
            lines.append(system(given, given.only in (None, name)))
    table.show("systems", "Systems of the literature, beside their rivals", HEADER, lines, given.save)


def _karma_line(given: Namespace, measures: bool) -> list[str]:
    kept = out_of_core.run(given.rounds) if measures else json.loads(out_of_core.KEPT.read_text())
    rows, bars = out_of_core.rows(kept)
    rows.append(out_of_core.again_row(kept))
    if measures:
        table.show(out_of_core.NAME, out_of_core.title(kept, bars), out_of_core.HEADER, rows, given.save)
    return _karma(bars)


def _signatures_line(given: Namespace, measures: bool) -> list[str]:
    kept = signatures.run(given.lab_rounds) if measures else json.loads(signatures.KEPT.read_text())
    rows, bars = signatures.rows(kept)
    if measures:
        table.show(signatures.NAME, signatures.title(kept), signatures.HEADER, rows, given.save)
    return _signatures(bars)


def _signatures(bars: dict[str, int]) -> list[str]:
    every = len(signatures.POINTS)
    good = all(bars[name] == every for name in ("equal", "bytes", "not slower"))
    return [
        "OneFlow's SBP, `parallel.tp_replicated: auto`",
        f"losses within {signatures.SAME_LOSS:g}: {bars['equal']} of {every}",
        f"saved as the formula says, within a tenth of all: {bars['bytes']} of {every}",
        "its bytes alone",
        f"all split and all replicated: not over 3 % slower {bars['not slower']} of {every}, at least 5 % faster than "
        f"all split {bars['5 % faster']}",
        "no figure of signatures alone",
        "pays with long sequences" if good else "does not keep every bar",
    ]


def _partial_line(given: Namespace, measures: bool) -> list[str]:
    kept = partial.run(partial.Size(given.rounds)) if measures else json.loads(partial.KEPT.read_text())
    if measures:
        table.show(partial.NAME, partial.title(kept), partial.HEADER, partial.rows(kept), given.save)
    return _skip_pipe(partial.bars(kept))


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


def _registers_line(given: Namespace, measures: bool) -> list[str]:
    kept = registers.run(given.lab_rounds) if measures else json.loads(registers.KEPT.read_text())
    if measures:
        table.show(registers.NAME, registers.title(kept), registers.HEADER, registers.rows(kept), given.save)
    bars, every = registers.bars(kept), len(registers.KINDS)
    free, one = (float(np.median(kept["seconds"][kind])) for kind in ("no bound", "1"))
    return [
        "OneFlow's registers, `schedule.registers`",
        "losses to the bit (tests)",
        f"never more held than registers: {bars['held']} of {every}",
        f"{bars['simulated']} of {every} within 15 %",
        f"no bound: one register takes {one / free:.2f} times as long",
        "no figure of registers alone",
        "bounds memory as described; two are enough for 1F1B",
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


def _karma(bars: dict[str, int]) -> list[str]:
    every = out_of_core.BUDGETS
    keeps = {name: count == every for name, count in bars.items()}
    good = all(keeps[name] for name in ("within", "equal", "predicted", "not slower"))
    return [
        "KARMA, `memory.budget_gib`",
        f"loss and gradients to the bit: {bars['equal']} of {every}",
        f"never over the budget: {bars['within']} of {every}",
        f"{bars['predicted']} of {every} within 10 %",
        f"best uniform setting that fits: not slower {bars['not slower']}, at least 5 % faster {bars['5 % faster']}",
        "1.52 times the speed of other out-of-core methods (mean of six models)",
        "pays" if good and bars["5 % faster"] >= every / 2 else "does not keep every bar",
    ]


def _skip_pipe(bars: partial.Bars) -> list[str]:
    good, cheap = bars.simulated == bars.kinds, bars.at_seconds <= 0
    return [
        "SkipPipe, `schedule.skip_share`",
        "gradients of a plain model that leaves out the same blocks: to 1e-6, on 2 and 3 stages",
        f"messages of paths alone: counted / by formula {bars.least_bytes:.3f} to {bars.most_bytes:.3f}",
        f"{bars.simulated} of {bars.kinds} within 15 %",
        f"unplanned: {bars.planned.plain()} times as fast; that, which computes less, {bars.less_work.plain()} times "
        f"the full pipeline; loss over the full one's: {bars.at_tokens:+.1%} at equal tokens, {bars.at_seconds:+.1%} "
        f"at equal seconds; {bars.early:+.1%} more with stages left out",
        "up to 55 % shorter iterations; perplexity 7 % worse with half of the model at inference",
        "as described; learns "
        + ("more" if good and cheap else "less")
        + " in the same time; no model with fewer layers beside it"
        if good
        else "does not keep every bar",
    ]


def _workload_line(name: str, given: Namespace, measures: bool) -> list[str]:
    kept = workloads.run(name) if measures else json.loads(workloads.KEPT[name].read_text())
    if measures:
        rows = workloads.rows(name, kept)
        table.show(f"systems_{name}", workloads.TITLES[name], workloads.HEADER, rows, given.save)
    return workloads.LINES[name](kept)


SYSTEMS = {
    "karma": _karma_line,
    "signatures": _signatures_line,
    "registers": _registers_line,
    "partial": _partial_line,
    "experts": _experts_lines,
    "slots": _slots_line,
    **{name: given_first(_workload_line, name) for name in workloads.LINES},
    "placed": _placed_line,
}
KEPT = {
    "karma": out_of_core.KEPT,
    "signatures": signatures.KEPT,
    "partial": partial.KEPT,
    "registers": registers.KEPT,
    "experts": experts.KEPT,
    "slots": slots.KEPT,
    **workloads.KEPT,
    "placed": placed.KEPT,
}

if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
