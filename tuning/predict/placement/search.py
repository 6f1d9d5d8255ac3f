"""Which rank on which device, and how many layers on which stage, for networks and devices that are not even. Pure.

Pipette (arXiv 2405.18093) searches orders of nodes by the links as they were measured; Holmes (arXiv 2312.03549) puts
whole stages on islands of fast links. Both are tried, beside ranks in order and orders with axes nested in other ways,
and the cheapest is taken: of all orders where they are few, else by simulated annealing.

Annealing has the moves of Pipette's program (arXiv 2405.18093). That one counts a difference in cost by its leading
digits and cools by 0.999 a step for as long as its time allows. Here a difference counts as a part of the start's cost
and the temperature falls evenly to the last step, so that any number of steps ends cold; and several chains go side by
side, since costs of many orders at once are cheap.

Parallel groups and islands of fast links: who crosses, how much, and the order in which only pipelines do. Pure.

Holmes (arXiv 2312.03549): where only a slow network joins clusters, stages of a pipeline are dealt to clusters, so
that only messages from stage to stage cross, and groups of tp and dp stay where the network is fast.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

import numpy as np

from engine.config.layout import Layout, layers_of_stages
from tuning.predict.model.hardware import Cluster
from tuning.predict.placement.cost import AXES, GROUPS, Costs, Volumes, Work
from tuning.predict.placement.links import Floats, Ints, Links, cluster_links
from tuning.predict.placement.orders import nested_orders

#: With more islands than this only the given order of them is tried: 120 orders of 5.
_MAX_ISLANDS = 5


def island_orders(layout: Layout, islands: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Devices of the ranks with whole stages on each island, for each order of islands; none where that cannot be.

    ``islands`` tells for each device its island. Within one, devices follow in their order, so that a stage's
    ranks are as near to each other as they are by number.
    """
    if stages_fit(layout, islands):
        members = [np.flatnonzero(np.array(islands) == island).tolist() for island in dict.fromkeys(islands)]
        orders = itertools.permutations(members) if len(members) <= _MAX_ISLANDS else [members]
        for order in orders:
            yield tuple(itertools.chain.from_iterable(order))


def stages_fit(layout: Layout, islands: Sequence[int]) -> bool:
    """Whether each island has room for a whole number of stages."""
    stage = layout.world_size // layout.pp
    return all(islands.count(island) % stage == 0 for island in set(islands))


def fitting_stages(layout: Layout, islands: Sequence[int]) -> list[int]:
    """The numbers of stages with which whole ones fit on each island, at the same number of ranks."""
    common = math.gcd(*(islands.count(island) for island in set(islands)))
    return [len(islands) // size for size in range(common, 0, -1) if common % size == 0]


def crossing_groups(layout: Layout, devices: Sequence[int], islands: Sequence[int]) -> dict[str, int]:
    """Axis -> how many of its groups have members on more than one island; axes of one rank are left out."""
    crossing = {}
    for axis in AXES:
        groups = layout.groups(GROUPS.get(axis, axis))
        if len(groups[0]) > 1:
            crossing[axis] = sum(len({islands[devices[rank]] for rank in group}) > 1 for group in groups)
    return crossing


#: Costs of orders [orders, places] -> [orders].
CostFunction = Callable[[Ints], Floats]
#: The most places of which all orders are tried: 40,320 of them.
MAX_EXHAUSTIVE = 8
CHAINS, STEPS = 12, 4000
#: Temperatures of the first and the last step, as parts of the start's cost.
HOT, COLD = 0.3, 0.003
_BATCH = 4096


class OrderSearchResult(NamedTuple):
    """The best order that was seen, its cost, and how many were tried."""

    order: tuple[int, ...]
    cost: float
    orders_tried: int


def exhaustive(places: int, costs: CostFunction) -> OrderSearchResult:
    """The best of all orders, the first of equals in the order of numbers.

    Raises:
        ValueError: there are more than ``MAX_EXHAUSTIVE`` places.
    """
    if places > MAX_EXHAUSTIVE:
        raise ValueError(
            f"{places} places have too many orders to try them all; {MAX_EXHAUSTIVE} are the most"
        )
    best, tried = OrderSearchResult((), math.inf, 0), 0
    orders = itertools.permutations(range(places))
    while batch := list(itertools.islice(orders, _BATCH)):
        costs_of_batch = costs(np.array(batch))
        least, tried = int(costs_of_batch.argmin()), tried + len(batch)
        if costs_of_batch[least] < best.cost:
            best = OrderSearchResult(batch[least], float(costs_of_batch[least]), tried)
    return best._replace(orders_tried=tried)


def anneal(
    start: Sequence[int],
    costs: CostFunction,
    seed: int = 0,
    steps: int = STEPS,
    chains: int = CHAINS,
    limit_seconds: float | None = None,
) -> OrderSearchResult:
    """The best order seen in ``steps`` steps of each chain; the first chain begins with ``start``, others anywhere.

    The same seed gives the same order without ``limit_seconds``, which ends it earlier, and cools faster then.
    """
    random, begun, places = Random(seed), time.monotonic(), list(start)
    orders = [places, *(random.sample(places, len(places)) for _ in range(chains - 1))]
    costs_now = costs(np.array(orders))
    scale, best = float(costs_now[0]), _better(OrderSearchResult((), math.inf, 0), orders, costs_now)
    tried = chains
    for step in range(steps if len(places) > 1 else 0):
        spent = 0.0 if limit_seconds is None else (time.monotonic() - begun) / limit_seconds
        if spent >= 1:
            break
        neighbours = [_random_neighbour(order, random) for order in orders]
        neighbour_costs = costs(np.array(neighbours))
        tried, temperature = tried + chains, scale * HOT * (COLD / HOT) ** max(step / steps, spent)
        for chain in range(chains):
            if _accept_move(float(neighbour_costs[chain] - costs_now[chain]), temperature, random):
                orders[chain], costs_now[chain] = neighbours[chain], neighbour_costs[chain]
        best = _better(best, orders, costs_now)
    return best._replace(orders_tried=tried)


def _better(best: OrderSearchResult, orders: list[list[int]], costs: Floats) -> OrderSearchResult:
    least = int(costs.argmin())
    return (
        OrderSearchResult(tuple(orders[least]), float(costs[least]), 0) if costs[least] < best.cost else best
    )


def _accept_move(difference: float, temperature: float, random: Random) -> bool:
    if difference <= 0 or temperature <= 0:
        return difference <= 0
    return random.random() < math.exp(-difference / temperature)


def _random_neighbour(order: list[int], random: Random) -> list[int]:
    """A segment reversed, one place put elsewhere, two swapped, a segment put elsewhere, or that and reversed."""
    kind = random.randrange(5)
    first, last = sorted(random.sample(range(len(order) + 1), 2))
    if kind == 0:
        return order[:first] + order[first:last][::-1] + order[last:]
    if kind == 2:
        left, right = random.sample(range(len(order)), 2)
        swapped = list(order)
        swapped[left], swapped[right] = order[right], order[left]
        return swapped
    if kind == 1:
        first = random.randrange(len(order))
        last = first + 1
    moved, remaining = order[first:last], order[:first] + order[last:]
    place = random.randrange(len(remaining) + 1)
    return remaining[:place] + (moved[::-1] if kind == 4 else moved) + remaining[place:]


Method = Literal["rank order", "islands", "nested axes", "all orders", "annealing"]
#: An order that is harder to explain has to be faster by this part.
_WORTH = 1e-3


@dataclass(frozen=True, slots=True)
class Placement:
    """``devices``: of each rank. ``seconds``: of a step, by axis and ``compute`` where that is known, beside those of
    the ranks in order. ``stage_layers``: of each stage, with one stage a rank; None where times of layers are unknown.
    ``crossings`` says in words what crosses islands; empty where there is one.
    """

    devices: tuple[int, ...]
    seconds: dict[str, float]
    in_order_seconds: dict[str, float]
    stage_layers: tuple[int, ...] | None
    method: Method
    reason: str
    crossings: str = ""

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
        same = [len(layers_of_stage) for layers_of_stage in usual] == list(self.stage_layers)
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
    links = cluster_links(cluster) if isinstance(cluster, Cluster) else cluster
    costs = Costs(layout, links, volumes, work)
    in_order = tuple(range(links.devices))
    best: tuple[tuple[int, ...], Method] = in_order, "rank order"
    if permute:
        best = _choose_order(layout, links, costs, seed, steps, limit_seconds)
    devices, method = best
    crossings = _crossing_words(layout, links, devices)
    return Placement(
        devices,
        _parts(costs, devices),
        _parts(costs, in_order),
        None if work is None else costs.stage_layers(np.array(devices), work),
        method,
        _reason(costs, devices, method, crossings),
        crossings,
    )


def _choose_order(
    layout: Layout, links: Links, costs: Costs, seed: int, steps: int, limit_seconds: float | None
) -> tuple[tuple[int, ...], Method]:
    """The simplest order that none beats by much. The search begins with the best that leaves nodes whole: to look for
    places of single devices would take many times as long.
    """
    start = in_order = tuple(range(links.devices))
    best: tuple[tuple[int, ...], Method] = in_order, "rank order"
    least, whole = _cost(costs, in_order), len(_blocks(links.nodes, in_order))
    for method, orders in _simple(layout, links):
        costs_of_orders = costs(np.array(orders))
        if costs_of_orders.min() < least * (1 - _WORTH):
            best, least = (orders[int(costs_of_orders.argmin())], method), float(costs_of_orders.min())
            start = best[0] if len(_blocks(links.nodes, best[0])) == whole else start
    devices, method = _search_orders(links, costs, start, seed, steps, limit_seconds)
    return (devices, method) if _cost(costs, devices) < least * (1 - _WORTH) else best


def _simple(layout: Layout, links: Links) -> Iterator[tuple[Method, list[tuple[int, ...]]]]:
    """Orders that are easy to explain. Nested ones may part ranks whose devices are on one node."""
    if len(set(links.islands)) > 1 and (by_islands := list(island_orders(layout, links.islands))):
        yield "islands", by_islands
    yield "nested axes", [order.devices for order in nested_orders(layout)]


def _search_orders(
    links: Links, costs: Costs, start: Sequence[int], seed: int, steps: int, limit_seconds: float | None
) -> tuple[tuple[int, ...], Method]:
    blocks = _blocks(links.nodes, start)

    def devices_of(orders: Ints) -> Ints:
        return blocks[orders].reshape(len(orders), -1)

    def of_blocks(orders: Ints) -> Floats:
        return costs(devices_of(orders))

    few = len(blocks) <= MAX_EXHAUSTIVE
    if few:
        searched = exhaustive(len(blocks), of_blocks)
    else:
        searched = anneal(range(len(blocks)), of_blocks, seed, steps, limit_seconds=limit_seconds)
    devices = devices_of(np.array([searched.order]))[0].tolist()
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


def _reason(costs: Costs, devices: tuple[int, ...], method: Method, crossings: str) -> str:
    """What the order gains over the ranks in order, and what crosses islands."""
    now, before = _cost(costs, devices), _cost(costs, range(len(devices)))
    gain = f"{before / now:.2f} times as fast as ranks in order" if now < before else "No order is faster"
    if method == "rank order":
        gain = "Ranks stay in order"
    return f"{gain} ({1e3 * now:,.1f} ms a step){crossings and f'; {crossings}'}" + ("" if crossings else ".")


def _crossing_words(layout: Layout, links: Links, devices: tuple[int, ...]) -> str:
    """Axes whose groups cross islands, and the stages that would fit on them; empty where there is one island."""
    if len(set(links.islands)) == 1:
        return ""
    crossing = crossing_groups(layout, devices, links.islands)
    names = [axis for axis, groups in crossing.items() if groups]
    text = (
        f"{' and '.join(names)} cross{'' if len(names) > 1 else 'es'} islands."
        if names
        else "nothing crosses."
    )
    if not stages_fit(layout, links.islands):
        legal = ", ".join(map(str, fitting_stages(layout, links.islands)))
        text += f" Whole stages fit on islands with pp = {legal}."
    return text
