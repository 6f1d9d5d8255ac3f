"""What NCCL tells about itself: its version, and its choices where its log is on. In torch's build for ROCm it is RCCL,
which torch calls "nccl" too.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from profilers.collectives.nccl_log import choices
from profilers.records.writer import RecordWriter

#: A run has few sizes of messages; more are a list that nobody reads.
_NOTED = 12


def facts() -> dict[str, str]:
    """The version of NCCL, or of RCCL and the ROCm that torch is built for; nothing under another backend."""
    if dist.get_backend() != "nccl":
        return {}
    version = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {"nccl": version} if torch.version.hip is None else {"rccl": version, "rocm": torch.version.hip}


def note_choices(log: Path, writer: RecordWriter) -> None:
    """Algorithm and protocol of each operation and size, from a rank's log; only with ``NCCL_DEBUG`` set."""
    if dist.get_backend() != "nccl" or not os.environ.get("NCCL_DEBUG"):
        return
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            found = choices(lines)
    except OSError:
        return
    for choice in found[:_NOTED]:
        writer.event("note", text=f"NCCL {choice}")
