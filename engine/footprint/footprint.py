"""What the ranks of a layout must hold, by formula: parameters, gradients, optimizer state, activations, buffers. Pure.

What kernels need for themselves while they run is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from engine.config.layout import Coordinates, accumulation, layers_of_stages, layout_of
from engine.config.presets import blocks_of, resolve
from engine.config.run_config import RunConfig
from engine.footprint.activations import FP32_BYTES, ActivationBytes, Part, published_bytes, remembered_bytes
from engine.footprint.side_activations import kept_of
from engine.footprint.side_factors import adapts
from engine.footprint.weights import (
    buffer_bytes,
    kept_elements,
    offloads_optimizer,
    optimizer_bytes,
    parameter_bytes,
    parameters_by_stage,
    trained_parameters,
)
from engine.schedules.actions import Action, Plan, Work
from engine.schedules.registry import plan
from engine.schedules.simulate import peak_in_flight
from engine.schedules.skip_pipe import Skips


@dataclass(frozen=True, slots=True)
class Footprint:
    """What each rank at one place of the pipeline holds at the peak of a step, in bytes; these ranks hold alike.

    ``rank`` is the first of ``ranks`` of them. ``in_flight`` is in micro-batches times stages of a rank.
    ``host_bytes`` are what offloading keeps off the device. ``published_bytes`` are the activations that arXiv
    2205.05198 gives a GPT of these sizes, None where it says nothing.
    """

    stages: tuple[int, ...]
    rank: int
    ranks: int
    layers: int
    in_flight: float
    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    buffer_bytes: int
    host_bytes: int = 0
    published_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """All that is on the rank's device."""
        held_bytes = self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes
        return held_bytes + self.activation_bytes + self.buffer_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the total."""
        return asdict(self) | {"total_bytes": self.total_bytes}


def footprints(config: RunConfig) -> tuple[Footprint, ...]:
    """For each place of the pipeline what a rank there holds; the configuration keeps every rule."""
    chosen = plan_of(config)
    flying = peak_in_flight(chosen)
    return tuple(_footprint(config, chosen, place, flying[place]) for place in range(chosen.ranks))


def largest(config: RunConfig) -> Footprint:
    """The rank that holds most."""
    return max(footprints(config), key=lambda footprint: footprint.total_bytes)


def plan_of(config: RunConfig, dp: int | None = None) -> Plan:
    """The schedule that a configuration asks for; without ``dp`` of the busiest data-parallel rank."""
    return plan(*_sizes(config, dp), skips_of(config))


def whole_plan_of(config: RunConfig, dp: int | None = None) -> Plan:
    """The same with every micro-batch on all stages, as what is validated goes."""
    return plan(*_sizes(config, dp))


def _sizes(config: RunConfig, dp: int | None) -> tuple[str, int, int, int]:
    return config.schedule.kind, config.parallel.pp, config.schedule.chunks, accumulation(config, dp)


def skips_of(config: RunConfig) -> Skips | None:
    """What micro-batches leave out; None where they go through all stages."""
    schedule = config.schedule
    if not schedule.skip_share:
        return None
    stages = layers_of_stages(
        blocks_of(config.model) or 1, config.parallel.pp * schedule.chunks, schedule.stage_layers
    )
    return Skips(schedule.skip_share, schedule.skip_order == "planned", tuple(map(len, stages)))


def parts_of(config: RunConfig, chosen: Plan) -> list[Part]:
    """What each stage holds of the model."""
    shape = resolve(config.model)
    layers = layers_of_stages(shape.layers, chosen.stages, config.schedule.stage_layers)
    return [
        Part(
            len(layer), layer.start == 0, layer.stop == shape.layers, chosen.turns_at_once(stage), layer.start
        )
        for stage, layer in enumerate(layers)
    ]


def sums_whole_gradients(config: RunConfig) -> bool:
    """Whether whole gradients are there: ZeRO 2 and 3 slice them after a step's last micro-batch, or after each one."""
    if config.parallel.zero_stage < 2:
        return True
    return accumulation(config) > 1 and not config.parallel.reduce_every_micro_batch


def activation_bytes(
    actions: Sequence[Action], bytes_of_stages: Mapping[int, ActivationBytes]
) -> tuple[int, int]:
    """Most that a rank's list keeps at once of its stages, on the device and on the host.

    Each forward adds what its stage keeps, each backward takes it away; of a split one W takes what I leaves.
    """
    change, on_host = dict[tuple[Work, int], int](), dict[tuple[Work, int], int]()
    for stage, stage_bytes in bytes_of_stages.items():
        change[Work.FORWARD, stage], change[Work.BACKWARD, stage] = stage_bytes.device, -stage_bytes.device
        change[Work.INPUT, stage], change[Work.WEIGHT, stage] = (
            stage_bytes.waiting - stage_bytes.device,
            -stage_bytes.waiting,
        )
        on_host[Work.FORWARD, stage], on_host[Work.BACKWARD, stage] = stage_bytes.host, -stage_bytes.host
        on_host[Work.INPUT, stage], on_host[Work.WEIGHT, stage] = -stage_bytes.host, 0
    device, host = (
        max(accumulate(changes[action.work, action.stage] for action in actions))
        for changes in (change, on_host)
    )
    return device + max(stage_bytes.returning for stage_bytes in bytes_of_stages.values()), host


def clip_to_budget(config: RunConfig, size: int) -> int:
    """Bytes of activations on a device: what is kept if nothing becomes of it, or the budget where that is less."""
    budget = config.memory.budget_gib
    return size if budget is None else min(size, int(budget * 2**30))


def _footprint(config: RunConfig, chosen: Plan, place: int, flying: float) -> Footprint:
    layout, parts = layout_of(config), parts_of(config, chosen)
    own_parts = {stage: parts[stage] for stage in chosen.stages_of(place)}
    stages = trained_parameters(config, list(own_parts.values()))
    frozen = parameters_by_stage(config, list(own_parts.values())) if adapts(config) else []
    elements = sum(kept_elements(weights, layout) for weights in (*frozen, *stages))
    whole = sum(stage.elements for stage in stages)
    bytes_of_stages = {stage: kept_of(config, part) for stage, part in own_parts.items()}
    layers = sum(part.layers for part in own_parts.values())
    optimizer = sum(optimizer_bytes(config, stage) for stage in stages)
    device, host = activation_bytes(chosen.actions[place], bytes_of_stages)
    device = clip_to_budget(config, device)
    published = published_bytes(config, layers)
    remembered = sum(remembered_bytes(config, part) for part in own_parts.values())
    return Footprint(
        stages=tuple(own_parts),
        rank=layout.rank(Coordinates(pp=place)),
        ranks=layout.world_size // layout.pp,
        layers=layers,
        in_flight=flying,
        parameters=elements,
        parameter_bytes=parameter_bytes(config, elements),
        gradient_bytes=FP32_BYTES * (whole if sums_whole_gradients(config) else elements),
        optimizer_bytes=0 if offloads_optimizer(config) else optimizer,
        activation_bytes=device,
        buffer_bytes=buffer_bytes(config, stages, place, chosen) + remembered,
        host_bytes=host + (optimizer if offloads_optimizer(config) else 0),
        published_bytes=None if published is None else round(published * flying / chosen.chunks),
    )
