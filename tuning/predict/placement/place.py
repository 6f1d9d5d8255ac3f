"""Where the ranks of a configuration belong on devices that are not alike: the cheapest placement, and what it gains.

On a cluster of several groups of nodes, and in a lab of several islands or of several ranks a host; elsewhere ranks
stay in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.config.formulas.network import shape_of
from engine.config.layout import layout_of
from engine.config.presets import resolve
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.footprint import footprint
from tuning.predict.cluster import catalogue
from tuning.predict.model import compute, headroom, step_time
from tuning.predict.model.cases import cases_of, rank_layers
from tuning.predict.model.hardware import Accelerator, Link
from tuning.predict.placement.cost import Costs, Volumes, Work
from tuning.predict.placement.link_traffic import head_layers, volumes_of
from tuning.predict.placement.links import Links, cluster_links, host_links, lab_links, lab_of
from tuning.predict.placement.orders import nested_orders
from tuning.predict.placement.search import Placement, crossing_groups, place
from tuning.predict.target import Target

#: Of each stage; None where they stay as they are.
Layers = tuple[int, ...] | None
#: What a message of gloo costs beside its bytes, and links without a rate, where that was not measured.
LOOPBACK = Link(3e-4, 1e9)
#: A search may take so long for one configuration.
LIMIT_SECONDS = 2.0
#: What is simpler is taken if it is longer by no more than this part.
_SAME = 1e-3
_WHAT = {"parallel.placement": "ranks placed", "schedule.stage_layers": "layers dealt by speed"}


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another order of the ranks: ``axes`` inside each other, the outermost first; ``seconds`` by axis and ``compute``,
    and by axis how many groups have members on several islands.
    """

    axes: tuple[str, ...]
    devices: tuple[int, ...]
    seconds: dict[str, float]
    crossing: dict[str, int]

    @property
    def total(self) -> float:
        """Seconds of a step, with nothing hidden."""
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "axes": list(self.axes),
            "order": list(self.devices),
            "seconds": self.seconds,
            "crossing_groups": self.crossing,
        }


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """``seconds`` by axis and ``compute``, beside those of ranks in order, and of the placement that the configuration
    has, if any, both with the layers that are configured; nothing is hidden in any. ``stage_layers``: where devices are
    not equally fast, else None. ``alternatives`` are the orders with axes nested in all ways, the fastest first.
    """

    network: str
    placement: Placement
    seconds: dict[str, float]
    in_order_seconds: dict[str, float]
    configured_seconds: dict[str, float] | None
    stage_layers: Layers
    alternatives: tuple[Alternative, ...] = ()

    @property
    def gain(self) -> float:
        """Of ``seconds`` over those in order: 0.1 is 10 % more tokens a second."""
        return sum(self.in_order_seconds.values()) / sum(self.seconds.values()) - 1

    @property
    def values(self) -> dict[str, list[int]]:
        """Dotted keys of a configuration that ask for it; none where ranks in order are as good."""
        order = {} if self.placement.in_order else {"parallel.placement": list(self.placement.devices)}
        layers = {} if self.stage_layers is None else {"schedule.stage_layers": list(self.stage_layers)}
        return order | layers

    @property
    def reason(self) -> str:
        """What is gained, and what crosses islands, in one line."""
        now, before = (1e3 * sum(seconds.values()) for seconds in (self.seconds, self.in_order_seconds))
        crossing_text = self.placement.crossings.rstrip(".")
        crossing_text = f"; {crossing_text}" if crossing_text else ""
        if not self.values:
            order_text = "placing ranks in order is as fast as any other way"
            return f"{order_text} ({now:,.1f} ms a step, nothing hidden){crossing_text}"
        changed = " and ".join(_WHAT[key] for key in self.values)
        return f"{changed}: {now:,.1f} ms a step instead of {before:,.1f}, nothing hidden{crossing_text}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values: seconds, and the gain as a fraction."""
        return {
            "where": self.network,
            "order": list(self.placement.devices),
            "stage_layers": None if self.stage_layers is None else list(self.stage_layers),
            "gain": self.gain,
            "seconds": self.seconds,
            "in_order_seconds": self.in_order_seconds,
            "configured_seconds": self.configured_seconds,
            "alternatives": [alternative.as_dict() for alternative in self.alternatives],
            "method": self.placement.method,
            "reason": self.reason,
            "values": self.values,
        }


def place_config(
    config: RunConfig, target: Target, limit_seconds: float = LIMIT_SECONDS
) -> PlacementReport | None:
    """Of one configuration that keeps every rule; None where devices and links are all alike.

    Raises:
        InputError: a device lacks a figure, or ranks are not as many as the cluster's devices.
    """
    return many([config], target, limit_seconds)[0]


def many(configs: Sequence[RunConfig], target: Target, limit_seconds: float) -> list[PlacementReport | None]:
    """Of several configurations of one size, ``limit_seconds`` at most for the search of all of them together."""
    reports, links_by_network = list[PlacementReport | None](), dict[str, Links]()
    for config in configs:
        network = _network_words(config, target)
        if network is None:
            reports.append(None)
            continue
        links = links_by_network.setdefault(
            network, links_by_network.get(network) or links_of(config, target)
        )
        reports.append(_place(config, target, links, network, limit_seconds / len(configs)))
    return reports


def _network_words(config: RunConfig, target: Target) -> str | None:
    """The uneven network that ranks are on, in words."""
    cluster, shape = target.cluster, shape_of(config.lab)
    if cluster.host_links is not None:
        uneven = len(cluster.groups) > 1 or cluster.host_links.count > 1
        return f"{cluster.name}: {cluster.host_links.words()}" if uneven else None
    if len(cluster.groups) > 1:
        return cluster.name
    is_this_machine = bool(cluster.collectives)  # this machine, calibrated: no other has a lab
    if not is_this_machine or shape is None:
        return None
    measured, uneven = target.lab_links.get(shape.code()), shape.is_uneven(layout_of(config).world_size)
    if measured is not None:
        return f"a lab of {shape}: {measured.words()}" if uneven or measured.count > 1 else None
    return f"a lab of {shape}" if uneven else None


def uneven_links(config: RunConfig, target: Target) -> Links | None:
    """Those of hosts that were measured pair by pair, or of a lab whose links differ; None where the cluster's own tell
    it all.
    """
    measured = target.cluster.host_links is not None
    in_lab = len(target.cluster.groups) == 1 and _network_words(config, target) is not None
    return links_of(config, target) if measured or in_lab else None


def links_of(config: RunConfig, target: Target) -> Links:
    """What joins each two devices of a configuration's ranks: of its lab, else of the cluster; as it was measured, if
    it was.

    Raises:
        InputError: there are several groups of nodes and no link that joins them.
    """
    shape, used = shape_of(config.lab), lab_of(config)
    if len(target.cluster.groups) > 1 or shape is None or used is None:
        return cluster_links(target.cluster)
    inside, ranks = target.group.inside if target.on_cpu else LOOPBACK, layout_of(config).world_size
    configured, measured = lab_links(used, ranks, inside), target.lab_links.get(shape.code())
    if measured is None:
        return configured
    links = host_links(measured, configured.nodes, configured.alpha_seconds, configured.bytes_per_second)
    return replace(links, inside=configured.inside)


def _place(
    config: RunConfig, target: Target, links: Links, network: str, limit_seconds: float
) -> PlacementReport:
    """The simplest of what is as good as the best: ranks in order or placed, with layers as they are or dealt."""
    layout, volumes, work = layout_of(config), volumes_of(config), _work(config, target, links.devices)
    in_order = place(layout, links, volumes, work, permute=False)
    searched = place(layout, links, volumes, work, limit_seconds=limit_seconds)
    asked_order, ways = config.parallel.placement, list[tuple[dict[str, float], Placement, Layers]]()
    for layers in (
        None,
        *dict.fromkeys(_better_split(config, placement, work) for placement in (in_order, searched)),
    ):
        for placement in (in_order, searched):
            ways.append((_seconds(config, links, work, placement.devices, layers), placement, layers))
    least = min(sum(seconds.values()) for seconds, _, _ in ways)
    seconds, chosen, layers = next(way for way in ways if sum(way[0].values()) <= least * (1 + _SAME))
    configured = None if asked_order is None else _seconds(config, links, work, asked_order, None)
    return PlacementReport(
        network, chosen, seconds, ways[0][0], configured, layers, _alternatives(config, links, work)
    )


def _alternatives(config: RunConfig, links: Links, work: Work) -> tuple[Alternative, ...]:
    """With the layers that are configured."""
    layout = layout_of(config)
    alternatives = [
        Alternative(
            order.axes,
            order.devices,
            _seconds(config, links, work, order.devices, None),
            crossing_groups(layout, order.devices, links.islands),
        )
        for order in nested_orders(layout)
    ]
    return tuple(sorted(alternatives, key=lambda alternative: alternative.total))


def _seconds(
    config: RunConfig, links: Links, work: Work, devices: Sequence[int], layers: Layers
) -> dict[str, float]:
    """Of each axis, and ``compute``, with the configuration's layers or others; gradients are of the fullest stage."""
    dealt = config if layers is None else config.with_values({"schedule.stage_layers": list(layers)})
    volumes = volumes_of(dealt)
    parts = Costs(layout_of(config), links, volumes, work).parts(np.array([devices]))
    compute = _compute(config, volumes, work, devices, rank_layers(dealt))
    return {name: float(part[0]) for name, part in parts.items()} | {"compute": compute}


def _better_split(config: RunConfig, placement: Placement, work: Work) -> Layers:
    """Layers of each stage, where devices differ, there is one stage a rank, and other layers are legal and better."""
    layers, pp = placement.stage_layers, config.parallel.pp
    if pp == 1 or config.schedule.chunks > 1 or len(set(work.layer_seconds)) == 1 or layers is None:
        return None
    changed = config.with_values({"schedule.stage_layers": list(layers)})
    legal = not any(True for _ in rules.problems(changed))
    return layers if legal and list(layers) != rank_layers(config) else None


def _work(config: RunConfig, target: Target, devices: int) -> Work:
    """What each device needs for a layer, by the closed form; all of a lab's are alike.

    With several stages a rank a micro-batch passes each rank as often, with so many layers less.
    """
    groups, chunks = target.cluster.groups, config.schedule.chunks
    chips = [group.accelerator for group in groups for _ in range(group.size)] if len(groups) > 1 else []
    chips = chips or [target.group.accelerator] * devices
    different = {id(chip): chip for chip in chips}
    seconds = {name: _layer_seconds(config, target, chip) for name, chip in different.items()}
    most = (
        {name: _most_layers(config, target, chip) for name, chip in different.items()} if chunks == 1 else {}
    )
    return Work(
        layers=max(config.parallel.pp, resolve(config.model).layers // chunks),
        layer_seconds=tuple(seconds[id(chip)] for chip in chips),
        head_layers=head_layers(config) / chunks,
        most_layers=tuple(most[id(chip)] for chip in chips) if most else None,
    )


def _layer_seconds(config: RunConfig, target: Target, chip: Accelerator) -> float:
    """Forward and backward of one micro-batch in one layer."""
    if not (config.precision == "bf16" and "fp16" in chip.peak_flops):
        catalogue.peak_flops(chip, config.precision)
    device = compute.device_of(chip, config.precision)
    both = step_time.block_seconds(cases_of([config]), device, target.calibrated.constants)
    return float(both[0][0] + both[1][0])


def _most_layers(config: RunConfig, target: Target, chip: Accelerator) -> int:
    """Layers that are safe on a device, each taken as its share of the fullest rank; as many as now in any case."""
    fullest, whole = footprint.largest(config), resolve(config.model).layers
    bytes_by_layers = np.arange(1, whole + 1) * np.float64(fullest.total_bytes / fullest.layers)
    overheads = headroom.overhead_columns([headroom.rank_overhead(config, target.on_cpu)])
    needs = headroom.predict_memory(bytes_by_layers, float(chip.memory_bytes), target.allowance, overheads)
    return max(math.ceil(whole / config.parallel.pp), int((needs.probability <= headroom.SAFE).sum()))


def _compute(
    config: RunConfig, volumes: Volumes, work: Work, devices: Sequence[int], layers: Sequence[int]
) -> float:
    """Seconds of all rounds of the slowest stage; a round of one of several stages a rank has a part of its layers."""
    pp, chunks = config.parallel.pp, config.schedule.chunks
    speeds = np.array(work.layer_seconds)[list(devices)].reshape(pp, -1).max(axis=1)
    head = np.zeros(pp)
    head[-1] = work.head_layers
    return float((volumes.pp.calls + pp - 1) * ((np.array(layers) / chunks + head) * speeds).max())
