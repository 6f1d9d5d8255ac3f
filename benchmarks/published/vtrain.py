"""vTrain's measured iterations on A100 nodes (MICRO 2024, arXiv 2312.12391), and NCCL all-reduces inside a node.

The settings are of the measured runs' configuration files (github.com/VIA-Research/vTrain commit f8dda8473a48,
config/validation): whole blocks recomputed, 1F1B, no buckets for gradients, 8 devices a node. Its model, in src/model
and src/config.py, is a GPT with learned positions, an MLP of two matrices, 4 x hidden wide, in fp16, dropout, scores of
attention written to memory, and a vocabulary of 50,257. Which A100 it was is not told; ``a100-80gb`` is taken. Its own
model recomputes no block of the last pipeline stage (src/predictor.py); whether the runs did is not told.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.published.columns import Columns, decode_column
from tuning.predict.cluster.csv_table import DATA, GIGA, Sheet, read

SINGLE = DATA / "vtrain_single.csv"
MULTI = DATA / "vtrain_multi.csv"
ALL_REDUCES = DATA / "vtrain_allreduce_lut.csv"

_WHOLE = {
    "devices": "gpus",
    "global_batch": "global_batch",
    "micro_batch": "micro_batch",
    "hidden": "hidden_size",
    "heads": "attention_heads",
    "layers": "layers",
    "sequence": "sequence_length",
    "tp": "tensor_parallelism",
    "dp": "data_parallelism",
    "pp": "pipeline_parallelism",
}
_SETTINGS = {
    "vocabulary": 50257,
    "mlp_matrices": 2,
    "tied": 1,
    "dropout": 1,
    "flash": 0,
    "recompute": 2,
    "sequence_parallel": 0,
    "zero_stage": 0,
    "chunks": 1,
    "weight_bytes": 2,
    "bucketed": 0,
    "devices_per_node": 8,
}


def single(path: Path = SINGLE) -> Columns:
    """One node, 2 to 8 devices: ``iteration_seconds`` of each configuration."""
    return _iterations(read(path))


def multi(path: Path = MULTI) -> Columns:
    """64 to 512 devices: ``iteration_seconds``, and ``parameters`` as the source rounds them."""
    sheet = read(path)
    return _iterations(sheet) | {"parameters": sheet.numbers("parameters_billion", GIGA)}


def _iterations(sheet: Sheet) -> Columns:
    columns: Columns = {name: sheet.whole(theirs) for name, theirs in _WHOLE.items()}
    columns |= {name: np.full(len(sheet), value) for name, value in _SETTINGS.items()}
    columns["accelerator"] = np.full(len(sheet), "a100-80gb")
    columns["kv_heads"] = columns["heads"]
    columns["ffn_hidden"] = 4 * columns["hidden"]
    columns["positions"] = columns["sequence"]
    columns["micro_batches"] = columns["global_batch"] // (columns["micro_batch"] * columns["dp"])
    columns["failed"] = np.full(len(sheet), False)
    columns["iteration_seconds"] = sheet.numbers("iteration_time_ms", 1e-3)
    tokens = columns["global_batch"] * columns["sequence"]
    columns["tokens_per_second"] = tokens / columns["iteration_seconds"]
    return columns


def all_reduces(path: Path = ALL_REDUCES) -> Columns:
    """``seconds`` of all-reduces of ``bytes`` among ``ranks`` of one node; bandwidths count 2 (n - 1) / n of it."""
    sheet = read(path)
    return {
        "accelerator": decode_column(sheet, "gpu", {"a100": "a100-80gb", "v100": "v100-32gb"}),
        "ranks": sheet.whole("n_gpus"),
        "bytes": sheet.numbers("size_mib", 2.0**20),
        "seconds": sheet.numbers("time_us", 1e-6),
        "bus_bytes_per_second": sheet.numbers("busbw_gb_s", GIGA),
        "seconds_in_place": sheet.numbers("time_us_inplace", 1e-6),
    }
