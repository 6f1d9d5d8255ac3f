"""A configuration simulated on a target: stages' seconds in closed form, everything that is sent by events.

What is sent are the calls of ``traffic``, the one formula for them; here they become collectives of places (lockstep
groups of ranks). Links are shared, registers are handed out against credits (OneFlow's actors, arXiv 2110.15032), ranks
may straggle, and work may jitter. What is not modelled: collectives do not slow down the computation beside them, and
messages never split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.config.errors import InputError
from engine.config.layout import Layout, layout_of
from engine.config.run_config import RunConfig
from engine.footprint.footprint import parts_of, plan_of
from engine.schedules.actions import Costs
from profilers.records.operations import ALL_GATHER, SEND, is_message
from tuning.predict.model import compute, step_time
from tuning.predict.model.cases import cases_of
from tuning.predict.model.constants import Constants
from tuning.predict.model.hardware import Cluster, Group, Link
from tuning.predict.model.step_time import updated_elements
from tuning.predict.placement.place import uneven_links
from tuning.predict.simulation.event_loop import simulate
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.step import (
    OWN,
    Collective,
    CollectiveGroup,
    Item,
    Items,
    Pause,
    RankTraffic,
    Step,
)
from tuning.predict.simulation.step_result import SimulatedStep
from tuning.predict.target import Target
from tuning.predict.traffic.calls import Call, Join, RankCalls, Section, Wire
from tuning.predict.traffic.rank import ARRIVING, Pipeline, traffic_of, why_not_known

#: Seconds of a call, or None for what the machine's links need.
Price = Callable[[Call], float | None]


def simulate_config(config: RunConfig, target: Target, jitter: float = 0.0, seed: int = 0) -> SimulatedStep:
    """One step of a configuration that keeps every rule, its ranks where ``parallel.placement`` has them; ``jitter`` as
    in ``Machine``. Where the hosts of the target's cluster were measured pair by pair, messages take what that told;
    in a lab whose links differ, what its links carry.

    Raises:
        InputError: the target has no rate for its format or too few devices, or no formula says what is sent.
    """
    constants = target.calibrated.constants
    cases = cases_of([config], target.devices_per_node)
    device = target.machine(config.precision).device
    update = float(compute.update(cases, updated_elements(cases), device, constants)[0])
    backend = "gloo" if target.on_cpu else "nccl"
    step = step_of(config, stage_costs(config, target), update, backend=backend)
    reached = _effective_cluster(target.cluster, constants)
    order, links = config.parallel.placement, uneven_links(config, replace(target, cluster=reached))
    return simulate(
        step, Machine(reached, None if order is None else tuple(order), jitter=jitter, seed=seed, links=links)
    )


def stage_costs(config: RunConfig, target: Target) -> list[Costs]:
    """Seconds of each stage's work without what it sends; the last has the head. A split backward is halved."""
    constants = target.calibrated.constants
    machine = target.machine(config.precision)
    cases = cases_of([config], target.devices_per_node)
    forward, backward = (
        float(seconds[0]) for seconds in step_time.block_seconds(cases, machine.device, constants)
    )
    head = float(step_time.head_seconds(cases, machine.device, constants)[0])
    costs = []
    for part in parts_of(config, plan_of(config)):
        ahead = part.layers * forward + head * part.is_last
        back = part.layers * backward + 2 * head * part.is_last
        costs.append(Costs(ahead, back, back / 2, back / 2))
    return costs


def _effective_cluster(cluster: Cluster, constants: Constants) -> Cluster:
    """The cluster with what its links reach of their figures."""
    groups = tuple(_group(group, constants) for group in cluster.groups)
    group_link = cluster.across and _link(cluster.across, constants.between_share, constants.between_seconds)
    return replace(cluster, groups=groups, across=group_link)


def _group(group: Group, constants: Constants) -> Group:
    inside = _link(group.inside, constants.inside_share, constants.inside_seconds)
    between = _link(group.between, constants.between_share, constants.between_seconds)
    pairs = group.pairs and _link(group.pairs, constants.inside_share, constants.inside_seconds)
    return replace(group, inside=inside, between=between, pairs=pairs)


def _link(link: Link, share: float, seconds: float) -> Link:
    return Link(link.alpha_seconds + seconds, link.bytes_per_second * share)


def step_of(
    config: RunConfig,
    seconds: Sequence[Costs],
    optimizer_seconds: Sequence[float] | float = 0.0,
    price: Price = lambda call: None,
    backend: str = "nccl",
) -> Step:
    """What to play for a configuration that keeps every rule.

    ``seconds`` has the work of each stage without what it sends; ``optimizer_seconds`` that of each pipeline rank, or
    one for all. Where the tokens decide how much comes to a rank's experts, it is as much as it sends. Weights that
    arrive beside the next step (``overlap.gather_with_optimizer``) are waited for before its first action.

    Raises:
        InputError: no formula says what the configuration sends.
    """
    if (reason := why_not_known(config)) is not None:
        raise InputError("config", reason, "no formula says what is sent; set it to its default")
    layout, pipeline = layout_of(config), Pipeline.from_config(config)
    per_rank = layout.world_size // layout.pp
    size = Wire(config).message(SEND.name).bytes or 0
    sent = tuple(
        _convert_traffic(
            traffic_of(pipeline, place * per_rank, backend),
            _Converter(layout, price),
            _of_rank(optimizer_seconds, place),
        )
        for place in range(layout.pp)
    )
    width = layout.tp * layout.cp
    return Step(pipeline.plan, tuple(seconds), float(size), layout.dp, width, sent, config.schedule.registers)


def axis_groups(axis: str, layout: Layout) -> CollectiveGroup:
    """Which places meet on an axis; tp and cp are inside of one.

    Data ranks are numbered with cp fastest. Groups of them that cut through a place meet as a whole.
    """
    parts = {"ep": (layout.ep, True), "edp": (layout.ep, False)}
    parts |= {"dp_shard": (layout.shard, True), "dp_replicate": (layout.shard, False)}
    if layout.ep_island:
        parts["ep_island"] = (layout.ep_island, True)
    if axis in parts:
        return _part_of_replicas(layout, *parts[axis])
    if axis == "ep_between" and layout.ep_island and layout.ep_island % layout.cp == 0:
        return CollectiveGroup(layout.ep // layout.ep_island, layout.ep_island // layout.cp)
    if axis == "ep_between":
        return CollectiveGroup(layout.dp)
    if axis in ("model", "pp"):
        return CollectiveGroup(whole_pipeline=layout.pp > 1)
    if axis == "world":
        return CollectiveGroup(layout.dp, whole_pipeline=layout.pp > 1)
    return CollectiveGroup(layout.dp) if axis in ("dp", "dp_cp") else OWN


def _part_of_replicas(layout: Layout, size: int, side_by_side: bool) -> CollectiveGroup:
    """Groups of ``size`` data ranks side by side, or of one of each of those."""
    if size % layout.cp == 0:
        near = size // layout.cp
        return CollectiveGroup(near) if side_by_side else CollectiveGroup(layout.dp // near, near)
    if layout.cp % size == 0:
        return OWN if side_by_side else CollectiveGroup(layout.dp)
    return CollectiveGroup(layout.dp)


def _of_rank(seconds: Sequence[float] | float, place: int) -> float:
    return float(seconds) if isinstance(seconds, int | float) else seconds[place]


def _convert_traffic(traffic: RankCalls, convert: _Converter, optimizer_seconds: float) -> RankTraffic:
    before, actions, after = list[Item](), list[Items](), list[Item]()
    for section in traffic.sections:
        items = convert.items(section)
        if section.part == "before":
            arriving = any(isinstance(item, Collective) and item.tag == ARRIVING for item in items)
            before += (*items, Join(ARRIVING)) if arriving else items
        elif section.part == "action":
            actions.append(items)
        elif section.part == "optimizer":
            after += _with_update(items, optimizer_seconds)
        else:
            after += items
    return RankTraffic(tuple(before), tuple(actions), tuple(after))


def _with_update(items: Items, seconds: float) -> list[Item]:
    """The update follows the norm, and new weights the update."""
    calls = [item for item in items if isinstance(item, Collective)]
    first = next((n for n, call in enumerate(calls) if call.operation == ALL_GATHER.name), len(calls))
    return [*calls[:first], Pause(seconds), *calls[first:]]


class _Converter:
    """Calls as collectives of places."""

    def __init__(self, layout: Layout, price: Price) -> None:
        self._layout, self._price = layout, price
        self._known: dict[tuple[Call | Join, ...], Items] = {}
        self._rows = 0.0

    def items(self, section: Section) -> Items:
        """Without messages between stages, which follow from the plan."""
        converted = self._known.get(section.items)
        if converted is None:
            items = [item for item in section.items if isinstance(item, Join) or self._is_collective(item)]
            converted = self._known[section.items] = tuple(map(self._item, items))
        return converted

    def _is_collective(self, call: Call) -> bool:
        return call.axis != "pp" or not is_message(call.operation)

    def _item(self, item: Call | Join) -> Item:
        if not isinstance(item, Call):
            return Join(item.tag)
        if item.bytes is not None and item.axis in ("ep", "ep_island"):
            self._rows = float(item.bytes)
        size = self._rows if item.bytes is None else float(item.bytes)
        groups = axis_groups(item.axis, self._layout)
        return Collective(
            item.axis, item.operation, item.group_size, size, groups, self._price(item), item.tag, item.dtype
        )
