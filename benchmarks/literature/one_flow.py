"""OneFlow: signatures of matrices over tp (``_signatures.py``) and over dp and tp (``_mesh_signatures.py``), and
registers that bound messages between stages (``_registers.py``), all in the lab, and registers for batches that are
made ahead (``_batches_ahead.py``).
"""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import numpy as np

from benchmarks import _batches_ahead as batches
from benchmarks import _mesh_signatures as mesh
from benchmarks import _registers as registers
from benchmarks import _signatures as signatures
from benchmarks import _table as table
from benchmarks.literature import System


def _signatures_line(given: Namespace, measures: bool) -> list[str]:
    kept = signatures.run(given.lab_rounds) if measures else json.loads(signatures.KEPT.read_text())
    rows, bars = signatures.rows(kept)
    if measures:
        table.show(signatures.NAME, signatures.title(kept), signatures.HEADER, rows, given.save)
    return _signatures(bars, signatures.again_range(kept))


def _signatures(bars: dict[str, int], again: str) -> list[str]:
    every = len(signatures.POINTS)
    good = all(bars[name] == every for name in ("equal", "bytes", "not slower"))
    return [
        "OneFlow's SBP, `parallel.tp_replicated: auto`",
        f"losses within {signatures.SAME_LOSS:g}: {bars['equal']} of {every}",
        f"saved as the formula says, within a tenth of all: {bars['bytes']} of {every}",
        "its bytes alone",
        f"all split and all replicated: not over 3 % slower {bars['not slower']} of {every}, at least 5 % faster than "
        f"all split {bars['5 % faster']}, than all replicated {bars['than all']} (A/A {again})",
        "no figure of signatures alone",
        "takes the better of splitting and replicating all" if good else "does not keep every bar",
    ]


def _mesh_line(given: Namespace, measures: bool) -> list[str]:
    kept = mesh.run(given.lab_rounds) if measures else table.kept(mesh.KEPT)
    rows, bars = mesh.rows(kept)
    if measures:
        table.show(mesh.NAME, mesh.title(kept), mesh.HEADER, rows, given.save)
    every = len(mesh.POINTS)
    return [
        "OneFlow's SBP over dp and tp, `workbench predict`",
        f"losses within {mesh.SAME_LOSS:g}: {bars['equal']} of {every}; bytes equal to the calls' (tests)",
        "to the byte, but for gradients of norms (tests)",
        "its bytes alone",
        f"all that runs on as many ranks: not over 3 % slower {bars['not slower']} of {every}, at least 5 % faster "
        f"than the slowest {bars['5 % faster']} (A/A {mesh.again_range(kept)})",
        "no figure of signatures alone",
        "names the fastest" if bars["not slower"] == bars["equal"] == every else "does not keep every bar",
    ]


def _registers_line(given: Namespace, measures: bool) -> list[str]:
    kept = registers.run(given.lab_rounds) if measures else json.loads(registers.KEPT.read_text())
    if measures:
        table.show(registers.NAME, registers.title(kept), registers.HEADER, registers.rows(kept), given.save)
    bars, every = registers.bars(kept), len(registers.KINDS)
    bounds = [bound for bound in registers.KINDS.values() if bound is not None]
    free, one = (float(np.median(kept["seconds"][kind])) for kind in ("no bound", "1"))
    again = float(np.median(kept["seconds"][registers.AGAIN])) / free
    return [
        "OneFlow's registers, `schedule.registers`",
        "losses to the bit (tests)",
        f"never more held than registers: {bars['held']} of {len(bounds)}",
        f"{bars['simulated']} of {every} within 15 %",
        f"no bound, where {kept['held']['no bound']} are held: one register takes {one / free:.2f} times as long "
        f"(A/A {again:.3f})",
        "no figure of registers alone",
        "bounds memory as described" if bars["held"] == len(bounds) else "does not keep every bar",
    ]


def _batches_line(given: Namespace, measures: bool) -> list[str]:
    kept = batches.run() if measures else table.kept(batches.KEPT)
    if measures:
        table.show(batches.NAME, batches.title(kept), batches.HEADER, batches.rows(kept), given.save)
    return batches_line(kept)


def batches_line(kept: dict[str, Any]) -> list[str]:
    """Of what was measured."""
    bars, every = batches.bars(kept), len(batches.KINDS)
    times = ", ".join(f"{kind} {bars[kind]:.2f}" for kind in ("1", "2", "4"))
    good = bars["simulated"] == bars["exact"] == every and bars["4"] > 1
    return [
        "OneFlow's registers for data, `data.ahead`",
        f"losses to the bit: {bars['exact']} of {every}",
        "nothing is sent",
        f"{bars['simulated']} of {every} within 15 %",
        f"none ahead, where every fourth batch takes long: {times} times as fast (A/A {bars[batches.AGAIN]:.3f})",
        "no figure of registers alone",
        "pays where batches take as long as steps" if good else "does not keep every bar",
    ]


SYSTEMS = {
    "signatures": System(signatures.KEPT, _signatures_line),
    "mesh_signatures": System(mesh.KEPT, _mesh_line),
    "registers": System(registers.KEPT, _registers_line),
    "batches_ahead": System(batches.KEPT, _batches_line),
}
