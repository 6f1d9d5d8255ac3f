"""Answers of torch about GPUs that are not here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.run.devices.torch_gpus import TorchGpu, TorchGpus


def answer(count: int, **changes: Any) -> TorchGpus:
    """All is well with so many GPUs, but for the changes."""
    gpus = tuple(TorchGpu(f"GPU {number}", architecture="sm_90") for number in range(count))
    well = TorchGpus("2.13.0+cu130", "CUDA 13.0", "2.28.9", ("sm_75", "sm_90"), gpus)
    return msgspec.structs.replace(well, **changes)


def torch_can_use(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let this process believe that torch can."""
    monkeypatch.setattr("engine.run.devices.torch_gpus.ask", lambda: answer(count))
