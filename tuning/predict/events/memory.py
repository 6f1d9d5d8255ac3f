"""Memory in time of a step that was played: the engine's formulas at the times of the simulated actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.config.run_config import RunConfig
from engine.footprint.activations import Kept, kept_by_stage
from engine.footprint.footprint import footprints, parts_of
from engine.parallel.schedules.actions import Work
from tuning.predict.events.played import Simulated


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """What a rank of one place holds: ``resting_bytes`` all the time (parameters, gradients, optimizer, buffers), and
    ``activations`` as (seconds, bytes) after each change; ``returning_bytes`` come on top while a backward runs.
    """

    resting_bytes: int
    returning_bytes: int
    activations: tuple[tuple[float, float], ...]

    @property
    def activation_bytes(self) -> int:
        """The most of them at once."""
        return round(max(level for _, level in self.activations)) + self.returning_bytes

    @property
    def peak_bytes(self) -> int:
        """The most of all."""
        return self.resting_bytes + self.activation_bytes


def changes(kept: Mapping[int, Kept]) -> dict[tuple[Work, int], float]:
    """By (work, stage), what an action leaves on the device or takes away; of a split one W takes what I leaves."""
    found: dict[tuple[Work, int], float] = {}
    for stage, one in kept.items():
        found[Work.FORWARD, stage], found[Work.BACKWARD, stage] = one.device, -one.device
        found[Work.INPUT, stage], found[Work.WEIGHT, stage] = one.waiting - one.device, -one.waiting
    return found


def memory_of(config: RunConfig, simulated: Simulated, replica: int = 0) -> list[MemoryLine]:
    """One line for each rank of a pipeline; ``simulated`` is a step of this configuration.

    Its peak is that of ``engine.footprint.footprint``: a rank's list decides the order in which activations come and
    go.
    """
    plan, parts, lines = simulated.step.plan, parts_of(config, simulated.step.plan), list[MemoryLine]()
    for place, row in enumerate(footprints(config)):
        kept = {stage: kept_by_stage(config, parts[stage]) for stage in plan.stages_of(place)}
        levels = simulated.levels(place * simulated.step.replicas + replica, changes(kept))
        returning = max(one.returning for one in kept.values())
        lines.append(MemoryLine(row.total_bytes - row.activation_bytes, returning, tuple(levels)))
    return lines
