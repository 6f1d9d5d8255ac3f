"""The Ultra-Scale Playbook's trials on H100 nodes, failed ones included, and its scaling.

What every run had in common is from the script that made them and from its base configuration
(github.com/huggingface/nanotron commit e24d2483a4e5, scripts/scaling_benchmarks.py and commit 67c5ebb6,
examples/config_tiny_llama_bench.yaml): bf16 weights with fp32 copies, gradients kept and reduced in fp32, fused AdamW,
tensor parallelism by reduce-scatter (sequence parallelism) with asynchronous communication, 1F1B, no recomputation,
buckets of 25 MB.

The shapes behind the names of models are in ``data/models.csv``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.columns import GIBI, Columns, take
from engine.config.errors import InputError
from tuning.predict.cluster.csv_table import DATA, GIGA, Sheet, read

#: What a family's models have in common with none of another's.
_FIGURES = (
    "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary", "sequence", "mlp_matrices", "tied",
)  # fmt: skip


@functools.cache
def _sheet() -> Sheet:
    return read(DATA / "models.csv")


def shape_columns(family: str, models: NDArray[Any], sequence: NDArray[Any] | None = None) -> Columns:
    """Sizes of each model, a row for each name; ``sequence`` where the family has many.

    ``positions`` are as many as the sequence is long, or none.

    Raises:
        InputError: the family has no such model.
    """
    table = {row["model"]: row for row in _sheet().rows if row["family"] == family}
    for name in models:
        if name not in table:
            raise InputError("model", str(name), f"{family} has {', '.join(table)}")
    rows = [table[name] for name in models]
    found = {name: np.array([float(row[name] or "nan") for row in rows]) for name in _FIGURES}
    if sequence is not None:
        found["sequence"] = sequence.astype(np.float64)
    return found | {"positions": np.array([float(row["positions"]) for row in rows]) * found["sequence"]}


TRIALS = DATA / "ultrascale_playbook_benchmarks.csv"
BANDWIDTHS = DATA / "ultrascale_comm_bandwidth.csv"

_SETTINGS = {
    "sequence_parallel": 1,
    "flash": 1,
    "recompute": 0,
    "chunks": 1,
    "weight_bytes": 2,
    "gradient_bytes": 4,
    "optimizer_bytes": 12,
    "reduce_bytes": 4,
    "bucketed": 1,
    "gathers": 6,
    "scattered_boundary": 1,
    "tensor_beside": 1,
    "devices_per_node": 8,
}
_WHOLE = {
    "nodes": "nodes",
    "micro_batch": "mbs",
    "micro_batches": "grad_acc",
    "global_batch": "gbs",
    "dp": "dp",
    "tp": "tp",
    "pp": "pp",
    "zero_stage": "zero_stage",
}
#: What nanotron divides FLOP/s by; see ``data/models.csv``.
_PEAK_FLOPS = 989e12


def trials(path: Path = TRIALS, *, inconsistent: bool = False) -> Columns:
    """All trials but those that the source contradicts itself about (batch is not what its factors give).

    Text: ``model``, ``accelerator``, ``status``. ``failed`` trials crashed or ran out of memory, the source does
    not tell which; their ``iteration_seconds``, ``tokens_per_second``, ``mfu`` (a share) and ``memory_bytes`` (peak
    of the fullest device that was logged; the source writes GB and its logger divides by 2**30) are NaN.
    ``reported_flops_per_token``
    is what ``mfu`` says of the model that ran: five finished trials of 80B had 8 heads of keys and values, not 64.

    Raises:
        InputError: the file cannot be read, or a cell is no number.
    """
    sheet = read(path)
    models = sheet.texts("model")
    columns: Columns = {"model": models, "accelerator": np.full(len(sheet), "h100-sxm")}
    columns |= shape_columns("playbook", models)
    columns |= {name: sheet.whole(theirs) for name, theirs in _WHOLE.items()}
    columns |= {name: np.full(len(sheet), value) for name, value in _SETTINGS.items()}
    columns["devices"] = columns["nodes"] * columns["devices_per_node"]
    columns["status"] = sheet.texts("status")
    columns["failed"] = columns["status"] != "ok"
    columns["mfu"] = sheet.numbers("mfu_pct", 0.01)
    columns["tokens_per_second"] = sheet.numbers("tok_s")
    columns["tokens_per_second_per_device"] = sheet.numbers("tok_s_gpu")
    columns["iteration_seconds"] = (
        columns["global_batch"] * columns["sequence"] / columns["tokens_per_second"]
    )
    columns["memory_bytes"] = sheet.numbers("gpu_memory_gb", GIBI)
    columns["reported_flops_per_token"] = (
        columns["mfu"] * _PEAK_FLOPS / columns["tokens_per_second_per_device"]
    )
    kept = np.full(len(sheet), True) if inconsistent else sheet.whole("gbs_consistent") == 1
    return take(columns, kept)


def bandwidths(path: Path = BANDWIDTHS) -> Columns:
    """``bytes_per_second`` of a ``collective`` of 256 MB over ``nodes`` with ``devices`` in all."""
    sheet = read(path)
    operations = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter"}
    return {
        "collective": np.array([operations.get(str(name), str(name)) for name in sheet.texts("collective")]),
        "nodes": sheet.whole("nodes"),
        "devices": sheet.whole("gpus"),
        "bytes_per_second": sheet.numbers("bandwidth_gb_s", GIGA),
    }


def scaling(path: Path) -> Columns:
    """Tokens a second of one model as one ``axis`` grows to ``degree``; the source does not name the model."""
    sheet = read(path)
    return {
        "axis": sheet.texts("axis"),
        "degree": sheet.whole("degree"),
        "tokens_per_second_per_device": sheet.numbers("tok_s_gpu"),
        "largest_micro_batch": sheet.numbers("max_batch"),
        "memory_bytes": sheet.numbers("memory_gb", GIBI),
    }
