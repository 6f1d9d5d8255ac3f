"""Settings that are legal and do nothing, or nothing good, in a run as it went. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import RunConfig


def notes_of(config: RunConfig, devices: Sequence[str]) -> tuple[str, ...]:
    """What a reader of a run's numbers should know; ``devices`` are what its ranks computed on."""
    memory, found = config.memory, []
    if memory.offload != "none" and devices and set(devices) == {"cpu"}:
        found.append(
            f"memory.offload={memory.offload} saved no memory and cost time: a CPU's memory is the host's already"
        )
    if memory.parameters == "bf16" and config.parallel.zero_stage >= 2:
        found.append(
            "memory.parameters=bf16 changed nothing: with precision bf16, ZeRO 2 and 3 gather parameters in bf16, "
            "sum gradients in fp32 and update fp32 slices anyway"
        )
    return tuple(found)
