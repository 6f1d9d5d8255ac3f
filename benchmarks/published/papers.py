"""What could be read of Frontier (arXiv 2312.12705) and Holmes (2312.03549): launch scripts and a few results."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.published.columns import Columns, take
from tuning.predict.cluster.csv_table import Sheet, read

_LAYOUT = ("layers", "hidden", "heads", "tp", "pp")


def frontier_layouts(path: Path) -> Columns:
    """The authors' launch scripts, not results: a stand-in for the paper's best layouts, which could not be read.

    ``devices`` are GCDs, 8 a node. ``micro_batch`` and ``zero_stage`` are NaN where a script does not tell them.
    """
    sheet = read(path)
    scripts = np.char.startswith(sheet.texts("source"), "code:")
    columns: Columns = {"source": sheet.texts("source"), "model": sheet.texts("model")}
    columns |= {name: sheet.numbers(name) for name in _LAYOUT}
    columns |= {"devices": sheet.numbers("gpus"), "global_batch": sheet.numbers("global_batch")}
    columns |= {"micro_batch": sheet.numbers("microbatch"), "zero_stage": sheet.numbers("zero_stage")}
    columns |= {name: np.full(len(sheet), 2) for name in ("recompute", "mlp_matrices")}
    columns["devices_per_node"] = np.full(len(sheet), 8)
    columns["accelerator"] = np.full(len(sheet), "mi250x-gcd")
    columns["dp"] = columns["devices"] / (columns["tp"] * columns["pp"])
    return take(columns, scripts)


def frontier_results(path: Path) -> Columns:
    """What the abstract says, in percent: of peak, and of weak and strong scaling to ``devices``."""
    return _results(read(path), "source", "paper_abstract", ("model", "metric"), "gpus")


def holmes(path: Path) -> Columns:
    """``value`` of a ``metric`` in a ``case``; what is not ``verified`` was recalled: no yardstick."""
    sheet = read(path)
    names = {"case": "case", "who": "framework_or_nic", "metric": "metric", "status": "status"}
    columns = {name: sheet.texts(theirs) for name, theirs in names.items()} | {
        "value": sheet.numbers("value")
    }
    return columns | {"verified": ~np.char.startswith(columns["status"], "unverified")}


def _results(sheet: Sheet, by: str, kept: str, texts: tuple[str, ...], devices: str) -> Columns:
    columns = {name: sheet.texts(name) for name in texts} | {"value": sheet.numbers("value")}
    return take(columns | {"devices": sheet.numbers(devices)}, sheet.texts(by) == kept)
