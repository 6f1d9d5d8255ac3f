"""Records of steps, collectives, memory, GPUs and hosts: taken, written, read and summed up."""

from __future__ import annotations

import importlib
from typing import Any


def recording(tokens: int | None = None) -> Any:
    """``with profilers.recording() as recorded:`` around a training loop under ``workbench run`` or ``workbench tune``,
    and ``recorded.step()`` where each step ends.

    ``tokens`` are those of a step on all ranks. Returns :class:`profilers.rank.step_api.StepRecording`; under neither
    it does nothing.
    """
    return importlib.import_module("profilers.rank.step_api").StepRecording(tokens)
