"""Layered accumulation: a layer's weights gathered once for all micro-batches (``_elastic.py``), in the lab."""

from __future__ import annotations

import json
from argparse import Namespace

from benchmarks import _elastic as elastic
from benchmarks import _table as table
from benchmarks._experts import OURS, PLAIN
from benchmarks.literature import System
from engine.config.layout import accumulation


def _line(given: Namespace, measures: bool) -> list[str]:
    part = elastic.LAYERED
    kept = elastic.run(part, given.lab_rounds) if measures else json.loads(part.kept.read_text())
    if measures:
        table.show(part.name, elastic.title(part, kept), elastic.HEADER, elastic.rows(part, kept), given.save)
    told = kept["points"]["layered"]
    one, gathered = elastic.compared(told), [told["runs"][which]["gathered"] for which in (PLAIN, OURS)]
    fewer, wanted = gathered[0] / gathered[1], accumulation(elastic.points()["layered"].plain)
    exact = one.apart <= elastic.SAME_LOSS and fewer == wanted
    return [
        "layered accumulation, `schedule.kind: layered`",
        f"losses apart: {one.apart:.1e}",
        f"gathers of weights {fewer:g} times fewer bytes with {wanted} micro-batches; counted and by the calls: within "
        f"{one.bytes or 0:.2%}",
        "calls and bytes, by formula",
        f"a step {one.gain.plain()} times as fast as micro-batch by micro-batch, A/A {one.again.plain()}",
        "no figure of gathers alone",
        _verdict(one) if exact else "does not keep every bar",
    ]


def _verdict(one: elastic.Compared) -> str:
    if one.gain.low > max(1.0, one.again.high):
        return "pays over slow links"
    return "as described; the machine cannot tell that it pays"


SYSTEMS = {"layered": System(elastic.LAYERED.kept, _line)}
