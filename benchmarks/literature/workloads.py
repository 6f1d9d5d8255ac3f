"""MASHA, OREPA, synthetic intermediate labels and a stand-in for CaRL: workloads (``_workloads.py``)."""

from __future__ import annotations

import json
from argparse import Namespace
from functools import partial

from benchmarks import _table as table
from benchmarks import _workloads as workloads
from benchmarks.literature import System


def _workload_line(name: str, given: Namespace, measures: bool) -> list[str]:
    kept = workloads.run(name) if measures else json.loads(workloads.KEPT[name].read_text())
    if measures:
        rows = workloads.rows(name, kept)
        table.show(f"systems_{name}", workloads.TITLES[name], workloads.HEADER, rows, given.save)
    return workloads.LINES[name](kept)


SYSTEMS = {name: System(workloads.KEPT[name], partial(_workload_line, name)) for name in workloads.LINES}
