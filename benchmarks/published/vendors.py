"""Throughputs that vendors report of their own software: NVIDIA NeMo on Hopper and Blackwell, OneFlow's LiBai.

They tell no recomputation and no overlap, so they rank and bound; they are no ground truth for one term.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.columns import Columns
from tuning.predict.cluster.csv_table import Sheet, read

_BRIDGE = {
    "devices": "#-GPUs",
    "global_batch": "GBS",
    "micro_batch": "MBS",
    "sequence": "Sequence Length",
    "tp": "TP",
    "pp": "PP",
    "cp": "CP",
    "chunks": "VP",
    "ep": "EP",
    "tokens_per_second_per_device": "Tokens / sec / GPU",
    "model_teraflops_per_device": "Model TFLOP / sec / GPU",
}
_LIBAI = ("layers", "dp", "tp", "pp", "micro_batch", "global_batch", "nodes")
#: Hidden, heads, sequence: header of the file.
_LIBAI_MODELS = {"BERT": (1024, 16, 512), "GPT-2": (1024, 16, 1024)}


def megatron_bridge(path: Path) -> Columns:
    """NeMo releases. NaN where a cell is empty, "n/a", or holds two values for two formats, as "2 (4)".

    Text: ``model``, ``system``, ``format``, ``release``, ``mode``; a table's heading tells what a row leaves out.
    """
    sheet = read(path)
    columns: Columns = {"release": sheet.texts("release"), "mode": sheet.texts("mode")}
    columns["model"] = _told(sheet, "Model", "Model: ")
    columns["system"] = _told(sheet, "System", "System: ")
    columns["format"] = sheet.texts("Precision")
    return columns | {name: _single(sheet, theirs) for name, theirs in _BRIDGE.items()}


def _told(sheet: Sheet, name: str, prefix: str) -> NDArray[np.str_]:
    rows = zip(sheet.texts(name), sheet.texts("heading"), strict=True)
    pairs = [(str(cell), str(heading)) for cell, heading in rows]
    return np.array(
        [cell or (head.removeprefix(prefix) if head.startswith(prefix) else "") for cell, head in pairs]
    )


def _single(sheet: Sheet, name: str) -> NDArray[np.float64]:
    return np.array([_number(str(cell)) for cell in sheet.texts(name)], dtype=np.float64)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def nemo_launcher(path: Path) -> Columns:
    """NeMo on DGX H100 in fp8; ``cp`` is NaN where the source has none."""
    sheet = read(path)
    columns: Columns = {"model": sheet.texts("model"), "mode": sheet.texts("mode")}
    columns["accelerator"] = np.full(len(sheet), "h100-sxm")
    names = {
        "devices": "gpus",
        "global_batch": "gbs",
        "micro_batch": "mbs",
        "sequence": "seq_len",
        "tp": "tp",
        "pp": "pp",
    }
    columns |= {name: sheet.whole(theirs) for name, theirs in names.items()}
    columns["cp"] = sheet.numbers("cp")
    columns["tokens_per_second_per_device"] = sheet.numbers("tokens_per_s_per_gpu")
    return columns | {"model_teraflops_per_device": sheet.numbers("model_tflops_per_gpu")}


def libai(path: Path) -> Columns:
    """LiBai beside Megatron-LM on the same layouts, seconds of an iteration each; which GPU it was is not told."""
    sheet = read(path)
    columns: Columns = {"section": sheet.texts("section"), "model": sheet.texts("model")}
    columns |= {name: sheet.whole(name) for name in _LIBAI}
    columns["devices"] = sheet.whole("gpus")
    columns["recompute"] = 2 * sheet.whole("act_ckpt")
    sizes = np.array([_LIBAI_MODELS[str(name)] for name in columns["model"]])
    columns |= {"hidden": sizes[:, 0], "heads": sizes[:, 1], "sequence": sizes[:, 2]}
    for framework in ("libai", "megatron"):
        columns[f"{framework}_iteration_seconds"] = columns["global_batch"] / sheet.numbers(
            f"{framework}_samples_s"
        )
    return columns
