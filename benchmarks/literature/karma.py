"""KARMA: plans of activations for 20 budgets (``_out_of_core.py``)."""

from __future__ import annotations

import json
from argparse import Namespace

from benchmarks import _out_of_core as out_of_core
from benchmarks import _table as table
from benchmarks.literature import System


def _karma_line(given: Namespace, measures: bool) -> list[str]:
    kept = out_of_core.run(given.rounds) if measures else json.loads(out_of_core.KEPT.read_text())
    rows, bars = out_of_core.rows(kept)
    rows += [out_of_core.again_row(kept), *out_of_core.uniform_rows(kept)]
    if measures:
        table.show(out_of_core.NAME, out_of_core.title(kept, bars), out_of_core.HEADER, rows, given.save)
    return _karma(rows, bars, out_of_core.again_value(kept))


def _range(rows: list[list[str]]) -> str:
    """The least and the most of the gains that are told as such."""
    gains = [float(row[-2].split()[0]) for row in rows if row[-1] == "faster"]
    return f" (by {min(gains):.3f} to {max(gains):.3f} times)" if gains else ""


def _karma(rows: list[list[str]], bars: dict[str, int], again: str) -> list[str]:
    every = out_of_core.BUDGETS
    keeps = {name: count == every for name, count in bars.items()}
    good = all(keeps[name] for name in ("within", "equal", "predicted", "not slower"))
    return [
        "KARMA, `memory.budget_gib`",
        f"loss and gradients to the bit: {bars['equal']} of {every}",
        f"never over the budget: {bars['within']} of {every}",
        f"{bars['predicted']} of {every} within 10 %",
        f"best uniform setting that fits, copies paced: at least 5 % faster {bars['5 % faster']} of {every}"
        f"{_range(rows)}; slower beyond its interval {every - bars['not slower']} (A/A {again})",
        "1.52 times the speed of other out-of-core methods (mean of six models)",
        "pays" if good and bars["5 % faster"] >= every / 2 else "does not keep every bar",
    ]


SYSTEMS = {"karma": System(out_of_core.KEPT, _karma_line)}
