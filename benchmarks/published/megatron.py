"""Megatron-LM's published tables: arXiv 2104.04473 (SC21), arXiv 2205.05198 (MLSys 2023), and its README.

All are GPTs with learned positions, an MLP of two matrices, 4 x hidden wide, a vocabulary of 51,200, fp16, dropout,
tied embeddings, on nodes of 8 devices. A sequence has 2,048 tokens but for the README's H100 rows: 4,096 (unverified
for each row, says the file).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.published.columns import GIBI, Columns, decode_column
from tuning.predict.cluster.csv_table import Sheet, read

_SETTINGS = {
    "vocabulary": 51200,
    "sequence": 2048,
    "positions": 2048,
    "mlp_matrices": 2,
    "tied": 1,
    "dropout": 1,
    "flash": 0,
    "zero_stage": 0,
    "weight_bytes": 2,
    "gradient_bytes": 4,
    "optimizer_bytes": 12,
    "devices_per_node": 8,
}


def weak_scaling(path: Path) -> Columns:
    """Table 1 of arXiv 2104.04473: whole blocks recomputed, interleaved schedule, scatter and gather.

    ``flops_per_second_per_device`` counts recomputation (equation 3); ``iteration_seconds`` is what it implies. The
    table gives neither ``micro_batch`` nor ``chunks``: there are no such columns, and whoever needs them has to say so.
    """
    sheet = read(path)
    columns = _gpt(sheet) | {"accelerator": np.full(len(sheet), "a100-80gb")}
    columns |= {"dp": sheet.whole("dp_derived"), "tp": sheet.whole("tp"), "pp": sheet.whole("pp")}
    columns |= {"recompute": np.full(len(sheet), 2), "sequence_parallel": np.full(len(sheet), 0)}
    columns["heads"] = columns["kv_heads"] = sheet.whole("heads")
    columns["scattered_boundary"] = np.full(len(sheet), 1)
    columns["model"] = np.array([f"{size}B" for size in sheet.texts("params_b")])
    columns["flops_per_second_per_device"] = sheet.numbers("tflops_per_gpu", 1e12)
    columns["flops"] = sheet.numbers("flops_per_iter_eq3")
    columns["iteration_seconds"] = sheet.numbers("implied_iter_time_s")
    columns["failed"] = np.full(len(sheet), False)
    return columns


def recomputation(path: Path) -> Columns:
    """Tables 3 and 5 of arXiv 2205.05198: each model twice, dp 1.

    ``variant`` ``full``: whole blocks recomputed, no sequence parallelism; ``present``: selective, with it.
    """
    sheet = read(path)
    both = [_recomputed(sheet, "full", 2, 0), _recomputed(sheet, "present", 1, 1)]
    return {name: np.concatenate([half[name] for half in both]) for name in both[0]}


def _recomputed(sheet: Sheet, variant: str, recompute: int, sequence_parallel: int) -> Columns:
    same = {
        "accelerator": "a100-80gb",
        "variant": variant,
        "recompute": recompute,
        "sequence_parallel": sequence_parallel,
        "dp": 1,
        "failed": False,
    }
    columns = _gpt(sheet) | {name: np.full(len(sheet), value) for name, value in same.items()}
    names = {"heads": "heads", "kv_heads": "heads", "tp": "tp", "pp": "pp", "micro_batch": "microbatch"}
    columns |= {name: sheet.whole(theirs) for name, theirs in names.items()}
    columns["chunks"] = sheet.whole("interleave")
    columns["micro_batches"] = columns["global_batch"] // columns["micro_batch"]
    columns["model"] = sheet.texts("model")
    columns["iteration_seconds"] = sheet.numbers(f"iter_s_{variant}")
    return columns


def readme(path: Path) -> Columns:
    """The README's tables of 2021 (A100) and 2024 (H100). Degrees are NaN where only their product is given, and
    ``flash`` where it is not told.

    ``counts_recomputation`` tells which FLOP/s they are; ``table`` which table; there are no seconds.
    """
    sheet = read(path)
    columns = _gpt(sheet) | {"table": sheet.texts("table"), "model": sheet.texts("model")}
    columns["accelerator"] = decode_column(sheet, "gpu", {"A100-80GB": "a100-80gb", "H100": "h100-sxm"})
    columns |= {name: sheet.numbers(name) for name in ("heads", "tp", "pp")}
    columns["model_parallel"] = sheet.whole("model_parallel")
    columns["sequence"] = np.where(columns["accelerator"] == "h100-sxm", 4096, 2048)
    columns["positions"] = columns["sequence"]
    columns["flash"] = np.where(columns["accelerator"] == "h100-sxm", np.nan, 0)
    columns["flops_per_second_per_device"] = sheet.numbers("tflops_per_gpu", 1e12)
    columns["counts_recomputation"] = np.char.startswith(sheet.texts("pct_kind"), "HFU")
    return columns


def memory(path: Path) -> Columns:
    """Figure 1 of arXiv 2205.05198, bytes on a device; these look like a formula's values, says the file."""
    sheet = read(path)
    names = {"state": "par_opt", "activations": "act_none", "selective_activations": "act_seqsel"}
    found = {f"{name}_bytes": sheet.numbers(f"{theirs}_gib", GIBI) for name, theirs in names.items()}
    return {"model": sheet.texts("model"), **found}


def activation_shares(path: Path) -> Columns:
    """Figure 7 of arXiv 2205.05198: activations as a share of those with tensor parallelism alone."""
    sheet = read(path)
    names = {"none": "none", "sequence_parallel": "seq", "selective": "sel", "both": "seqsel", "full": "full"}
    return {"model": sheet.texts("model")} | {
        name: sheet.numbers(theirs, 0.01) for name, theirs in names.items()
    }


def _gpt(sheet: Sheet) -> Columns:
    columns: Columns = {name: np.full(len(sheet), value) for name, value in _SETTINGS.items()}
    columns |= {name: sheet.whole(name) for name in ("hidden", "layers", "global_batch")}
    return columns | {"devices": sheet.whole("gpus"), "ffn_hidden": 4 * columns["hidden"]}
