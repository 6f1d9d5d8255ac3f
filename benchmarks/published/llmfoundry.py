"""MosaicML's published throughputs of MPT models under FSDP on A100 and H100 (llm-foundry, Apache-2.0).

Models and their attention that never writes its scores are from github.com/mosaicml/llm-foundry,
scripts/train/yamls/pretrain/mpt-*.yaml. What "MP Mode" means is from Composer's source: PURE gathers weights and
reduces gradients in 16 bits. DEFAULT reduces in fp32 in later versions; in the earliest one it gathered fp32 weights
and reduced in 16 bits. Rows of DEFAULT are taken as the later version; the table does not tell.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.published import playbook
from benchmarks.published.columns import Columns, decode_column
from tuning.predict.cluster.csv_table import DATA, read

RUNS = DATA / "llmfoundry.csv"

_ACCELERATORS = {"a100_40gb": "a100-40gb", "a100_80gb": "a100-80gb", "h100_80gb": "h100-sxm"}
_ZERO_STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
_SETTINGS = {
    "tp": 1,
    "pp": 1,
    "chunks": 1,
    "sequence_parallel": 0,
    "flash": 1,
    "dropout": 0,
    "weight_bytes": 2,
    "optimizer_bytes": 12,
    "reduce_every_micro_batch": 1,
    "devices_per_node": 8,
}


def runs(path: Path = RUNS) -> Columns:
    """All rows; none of them failed, and none tells its memory.

    Text: ``model``, ``accelerator``, ``format`` (``bf16`` or ``fp8``), ``section``. ``mfu`` and ``hfu`` are shares of
    the bf16 peak. ``iteration_seconds`` is from tokens a second, rounded least. ``parameters`` is exact.

    Raises:
        InputError: the file cannot be read, a cell is no number, or a model or accelerator is unknown.
    """
    sheet = read(path)
    models, sequence = sheet.texts("Model"), sheet.whole("SeqLen (T)")
    columns: Columns = {"model": models, "section": sheet.texts("section")}
    columns |= playbook.shape_columns("llm-foundry", models, sequence)
    columns |= {name: np.full(len(sheet), value) for name, value in _SETTINGS.items()}
    columns["accelerator"] = decode_column(sheet, "GPU", _ACCELERATORS)
    columns["format"] = decode_column(
        sheet, "Precision", {"amp_bf16": "bf16", "bf16": "bf16", "amp_fp8": "fp8"}
    )
    columns["zero_stage"] = decode_column(sheet, "Sharding Strategy", _ZERO_STAGES)
    columns["recompute"] = decode_column(sheet, "Activation Checkpointing", {"True": 2, "False": 0})
    columns["reduce_bytes"] = decode_column(sheet, "MP Mode", {"PURE": 2, "DEFAULT": 4})
    columns["gradient_bytes"] = np.full(len(sheet), 4)
    columns["devices"] = columns["dp"] = sheet.whole("# GPUs")
    columns["micro_batch"] = sheet.whole("MicroBatchSize")
    columns["micro_batches"] = sheet.whole("GradAccum")
    columns["global_batch"] = sheet.whole("GlobalBatchSize")
    columns["parameters"] = sheet.numbers("NumParams")
    columns["failed"] = np.full(len(sheet), False)
    columns["mfu"], columns["hfu"] = sheet.numbers("MFU", 0.01), sheet.numbers("HFU", 0.01)
    columns["tokens_per_second"] = sheet.numbers("Throughput (T/s)")
    columns["iteration_seconds"] = columns["global_batch"] * sequence / columns["tokens_per_second"]
    return columns
