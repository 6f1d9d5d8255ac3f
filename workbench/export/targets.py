"""Which exports there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.config.errors import InputError
from workbench.export import torchrun
from workbench.export.bundle import Bundle
from workbench.home.runs import RunView

TARGETS: dict[str, Callable[[Path, RunView], Bundle]] = {"torchrun": torchrun.render}
PLANNED = ("megatron", "deepspeed", "torchtitan", "accelerate", "automodel", "slurm")


def target(name: str) -> Callable[[Path, RunView], Bundle]:
    """What renders an export.

    Raises:
        InputError: there is no such target, or it is not built yet.
    """
    if name in TARGETS:
        return TARGETS[name]
    known = ", ".join(TARGETS)
    reason = "not built yet" if name in PLANNED else "unknown"
    raise InputError("--to", name, f"{reason}; available: {known}")
