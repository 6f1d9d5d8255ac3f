"""Which rank on which device, and how many layers on which stage, for networks and devices that are not even. Pure.

Pipette (arXiv 2405.18093) searches orders of nodes by the links as they were measured; Holmes (arXiv 2312.03549) puts
whole stages on islands of fast links. Both are tried, beside the order of ranks, and the cheapest is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.config.layout import Layout, layers_of_stages
from tuning.predict.hardware import Cluster
from tuning.predict.placing.islands import crossing_groups, fitting_stages, island_orders, stages_fit
from tuning.predict.placing.links import Floats, Ints, Links, of_cluster
from tuning.predict.placing.search import MAX_EXHAUSTIVE, STEPS, anneal, exhaustive
from tuning.predict.placing.volumes import Costs, Volumes, Work

Method = Literal["rank order", "islands", "all orders", "annealing"]
#: An order that is harder to explain has to be faster by this part.
_WORTH = 1e-3


@dataclass(frozen=True, slots=True)
class Placement:
    """``devices``: of each rank. ``seconds``: of a step, by axis and ``compute`` where that is known, beside those of
    the ranks in order. ``stage_layers``: of each stage, with one stage a rank; None where times of layers are unknown.
    ``across`` says in words what crosses islands; empty where there is one.
    """

    devices: tuple[int, ...]
    seconds: dict[str, float]
    in_order_seconds: dict[str, float]
    stage_layers: tuple[int, ...] | None
    method: Method
    reason: str
    across: str = ""

    @property
    def total_seconds(self) -> float:
        """Of all axes and compute."""
        return sum(self.seconds.values())

    @property
    def in_order(self) -> bool:
        """Whether rank r is on device r, which is how ranks lie on hosts without being told."""
        return self.devices == tuple(range(len(self.devices)))

    def values(self) -> dict[str, list[int]]:
        """Dotted keys of a configuration that ask for it; none for ranks in order, and even layers."""
        order = {} if self.in_order else {"parallel.placement": list(self.devices)}
        if self.stage_layers is None:
            return order
        usual = layers_of_stages(sum(self.stage_layers), len(self.stage_layers))
        same = [len(own) for own in usual] == list(self.stage_layers)
        return order if same else order | {"schedule.stage_layers": list(self.stage_layers)}


def place(
    layout: Layout,
    cluster: Cluster | Links,
    volumes: Volumes,
    work: Work | None = None,
    *,
    permute: bool = True,
    seed: int = 0,
    steps: int = STEPS,
    limit_seconds: float | None = None,
) -> Placement:
    """The cheapest order of devices, and the layers of each stage where ``work`` tells how fast devices are.

    Nodes move as a whole where all of them have as many devices, so that what is near by rank stays on one node; else
    devices move. All orders are tried of up to 8 of them, more are annealed in ``steps`` steps or until
    ``limit_seconds``. Without ``permute`` ranks stay in order and only layers are dealt.

    Raises:
        InputError: links or times of layers are for another number of devices, islands have no link that joins
            them, or layers do not fit on stages.
    """
    links = of_cluster(cluster) if isinstance(cluster, Cluster) else cluster
    costs = Costs(layout, links, volumes, work)
    in_order = tuple(range(links.devices))
    best: tuple[tuple[int, ...], Method] = in_order, "rank order"
    if permute:
        best = _chosen(layout, links, costs, seed, steps, limit_seconds)
    devices, method = best
    across = _across(layout, links, devices)
    return Placement(
        devices,
        _parts(costs, devices),
        _parts(costs, in_order),
        None if work is None else costs.stage_layers(np.array(devices), work),
        method,
        _reason(costs, devices, method, across),
        across,
    )


def _chosen(
    layout: Layout, links: Links, costs: Costs, seed: int, steps: int, limit_seconds: float | None
) -> tuple[tuple[int, ...], Method]:
    """The simplest order that none beats by much."""
    in_order = tuple(range(links.devices))
    best: tuple[tuple[int, ...], Method] = in_order, "rank order"
    least = _cost(costs, in_order)
    by_islands = list(island_orders(layout, links.islands)) if len(set(links.islands)) > 1 else []
    if by_islands:
        found = costs(np.array(by_islands))
        if found.min() < least * (1 - _WORTH):
            best, least = (by_islands[int(found.argmin())], "islands"), float(found.min())
    devices, method = _searched(links, costs, best[0], seed, steps, limit_seconds)
    return (devices, method) if _cost(costs, devices) < least * (1 - _WORTH) else best


def _searched(
    links: Links, costs: Costs, start: Sequence[int], seed: int, steps: int, limit_seconds: float | None
) -> tuple[tuple[int, ...], Method]:
    blocks = _blocks(links.nodes, start)

    def devices_of(orders: Ints) -> Ints:
        return blocks[orders].reshape(len(orders), -1)

    def of_blocks(orders: Ints) -> Floats:
        return costs(devices_of(orders))

    few = len(blocks) <= MAX_EXHAUSTIVE
    if few:
        found = exhaustive(len(blocks), of_blocks)
    else:
        found = anneal(range(len(blocks)), of_blocks, seed, steps, limit_seconds=limit_seconds)
    devices = devices_of(np.array([found.order]))[0].tolist()
    return tuple(devices), "all orders" if few else "annealing"


def _blocks(nodes: Sequence[int], start: Sequence[int]) -> Ints:
    """What moves together, [blocks, devices]: the nodes that ``start`` has whole and in a row, or single devices."""
    size = nodes.count(nodes[0])
    rows = np.array(start).reshape(-1, size if len(start) % size == 0 else 1)
    whole = all(len({nodes[device] for device in row}) == 1 for row in rows)
    return rows if whole else np.array(start).reshape(-1, 1)


def _cost(costs: Costs, devices: Sequence[int]) -> float:
    return float(costs(np.array([devices]))[0])


def _parts(costs: Costs, devices: Sequence[int]) -> dict[str, float]:
    parts = costs.parts(np.array([devices]))
    return {name: float(seconds[0]) for name, seconds in parts.items()}


def _reason(costs: Costs, devices: tuple[int, ...], method: Method, across: str) -> str:
    """What the order gains over the ranks in order, and what crosses islands."""
    now, before = _cost(costs, devices), _cost(costs, range(len(devices)))
    gain = f"{before / now:.2f} times as fast as ranks in order" if now < before else "No order is faster"
    if method == "rank order":
        gain = "Ranks stay in order"
    return f"{gain} ({now:.3g} s a step){across and f'; {across}'}" + ("" if across else ".")


def _across(layout: Layout, links: Links, devices: tuple[int, ...]) -> str:
    """Axes whose groups cross islands, and the stages that would fit on them; empty where there is one island."""
    if len(set(links.islands)) == 1:
        return ""
    crossing = crossing_groups(layout, devices, links.islands)
    names = [axis for axis, groups in crossing.items() if groups]
    found = (
        f"{' and '.join(names)} cross{'' if len(names) > 1 else 'es'} islands."
        if names
        else "nothing crosses."
    )
    if not stages_fit(layout, links.islands):
        legal = ", ".join(map(str, fitting_stages(layout, links.islands)))
        found += f" Whole stages fit on islands with pp = {legal}."
    return found
