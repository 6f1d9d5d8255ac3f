"""Gradients of FSDP2's reduce-scatter as coarse values: one compressor a group of ranks, and what it carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from engine.comm.channel import Group
from engine.compression.bucket import GradientCompressor
from engine.compression.interface import Content
from engine.compression.registry import build
from engine.config.compression import settings_of
from engine.config.run_config import RunConfig
from engine.parallel.data.fsdp_units import Unit
from engine.parallel.data.replica import Extent, ReplicaMemory
from profilers.steps.timer import StepTimer


class CoarseGradients:
    """Sets the compressors of units; ``over_tp`` tells copies of a parameter apart by name."""

    def __init__(
        self, units: Sequence[Unit], config: RunConfig, timer: StepTimer, over_tp: Mapping[str, str]
    ) -> None:
        self._units = [unit for unit in units if unit.channel.size > 1 and unit.held]
        self._over_tp, self._config, self._timer = over_tp, config, timer
        made = dict[Group, GradientCompressor]()
        for unit in self._units:
            group = unit.channel.group
            made.setdefault(group, self._compressor(group, unit.channel.device))
            unit.reduce.compressor = made[group]
        self._compressors = made

    def turn(self, config: RunConfig) -> None:
        """Between two steps: as this configuration says from now on."""
        before, self._config = self._config, config
        if config.compression != before.compression:
            for compressor in self._compressors.values():
                compressor.use(settings_of(config.compression))

    def left_alone(self) -> dict[str, str]:
        """Parameters with slices that are sent as they are though a method is chosen, and why."""
        found = dict[str, str]()
        for unit, compressor in self._each():
            found |= compressor.left_alone(self._content(unit))
        return found

    def memories(self, extents: Mapping[str, Extent]) -> list[ReplicaMemory]:
        """Of each parameter one for every rank that gets a slice of it."""
        return [one for unit, compressor in self._each() for one in self._of(unit, compressor, extents)]

    def _of(
        self, unit: Unit, compressor: GradientCompressor, extents: Mapping[str, Extent]
    ) -> Iterator[ReplicaMemory]:
        content = self._content(unit)
        errors = compressor.memory(content)
        if errors is None:
            return
        each, ranks = len(content.flat) // unit.channel.size, unit.channel.size
        for part in (part for part in content.parts if part.count):
            lies = extents[part.name]
            held = "" if lies.sizes == lies.shape else f".at{'-'.join(map(str, lies.offsets))}"
            slice_ = f"slice{part.start // each}of{ranks}"
            name = f"{part.name}{held}.{unit.place}.{slice_}{self._over_tp.get(part.name, '')}"
            # A tensor of its own: under a name that has the parameter's shape a checkpoint wants all of its elements.
            whole = Extent((part.count,), (0,), (part.count,))
            yield ReplicaMemory(name, errors[part.start : part.stop], whole)

    def _each(self) -> Iterator[tuple[Unit, GradientCompressor]]:
        return ((unit, self._compressors[unit.channel.group]) for unit in self._units)

    def _content(self, unit: Unit) -> Content:
        """As large as its gradients, without their values."""
        size = sum(one.padded for one in unit.held) * unit.channel.size
        return unit.reduce.content(torch.empty(size, device=unit.channel.device))

    def _compressor(self, group: Group, device: torch.device) -> GradientCompressor:
        settings, seed = settings_of(self._config.compression), self._config.train.seed
        return build(settings, group, seed, lambda: self._timer.step, device, one_way=True)
