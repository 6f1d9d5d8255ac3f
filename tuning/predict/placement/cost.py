"""What a layout sends in a step, axis by axis, and how long that takes in an order of devices. Pure, on arrays.

Messages of one axis go in all of its groups at the same time, and may share a link; axes follow each other. A ring of n
ranks passes n-th parts 2 (n - 1) times; each time waits for the slowest link. A pipeline's messages go there and back:
in 1F1B such a round gates every pp micro-batches, so that it is waited for m / pp times (arXiv 2405.18093), while
stages compute m + pp - 1 times. All of it is taken as exposed, as Pipette does; for an order that is the safe side.

Two additions are ours. A link that several hops cross may be busy for longer. And data ranks of a later stage have
averaged their gradients for a while when the first stage is through with its last micro-batch: what that takes on its
way back to the first stage is not waited for again, so the slowest links do least harm under the last stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from engine.config.errors import InputError, several
from engine.config.layout import Layout
from tuning.predict.placement.links import Bools, Floats, Ints, Links
from tuning.predict.placement.stage_layers import slowest_stage, split_layers

#: Axis -> the groups of ranks that do one collective together.
GROUPS = {"dp": "data", "tp": "tp", "cp": "cp", "ep": "ep"}
AXES = (*GROUPS, "pp")
#: Volumes of an axis that go in groups of their own kind.
_PARTS = {"dp": ("dp", "edp", "shard", "replicate")}
#: Part of a layer's seconds.
_BACKWARD = 2 / 3
#: By stage of ZeRO, the part of what data ranks send that follows the last backward and nothing else: stage 1 gathers
#: weights when all stages have their norms, stages 2 and 3 send in every micro-batch.
_AFTER_BACKWARD = {0: 1.0, 1: 0.5}


@dataclass(frozen=True, slots=True)
class Stream:
    """``calls`` messages a step of ``bytes_`` each."""

    bytes_: float = 0.0
    calls: float = 1.0


@dataclass(frozen=True, slots=True)
class Volumes:
    """Payloads per step. ``dp``, ``tp`` and ``cp``: all-reduces of one group (a reduce-scatter and an all-gather count
    as one, each alone as half of one); ``ep``: all-to-alls, with what one rank has to give away; ``pp``: messages
    from one place of a pipeline to the next, and as many back; ``wrap``: from its last place to the first, and back.
    What data ranks exchange in parts of their group counts to dp: ``edp`` for experts' gradients, ``shard`` and
    ``replicate`` for ZeRO's copies.
    """

    dp: Stream = Stream()
    tp: Stream = Stream()
    cp: Stream = Stream()
    ep: Stream = Stream()
    pp: Stream = Stream()
    wrap: Stream = Stream(calls=0.0)
    edp: Stream = Stream()
    shard: Stream = Stream()
    replicate: Stream = Stream()


@dataclass(frozen=True, slots=True)
class Work:
    """What devices compute. ``layer_seconds``: of each device, for the forward and backward of one layer and
    micro-batch; ``head_layers``: what the last stage computes beside its layers, in times of a layer;
    ``most_layers``: how many a stage on each device has room for.
    """

    layers: int
    layer_seconds: tuple[float, ...]
    head_layers: float = 0.0
    most_layers: tuple[int, ...] | None = None


class MessageRound(NamedTuple):
    """Messages that go at the same time, one from each of ``sources``, and how many such turns a step has. Sources lie
    by groups of so many ``members``.
    """

    sources: Ints
    targets: Ints
    bytes_: float
    times: float
    members: int


@dataclass(slots=True, eq=False)
class Costs:
    """Seconds of a step in any order of devices: device of each rank.

    Raises:
        InputError: links, or times of layers, are for another number of devices than there are ranks.
    """

    layout: Layout
    links: Links
    volumes: Volumes
    work: Work | None = None
    _turns: dict[str, list[MessageRound]] = field(init=False)
    _stages: Ints = field(init=False)
    _slowest: dict[tuple[float, ...], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        ranks = self.layout.world_size
        if ranks != self.links.devices:
            remedy = f"the layout has {several(ranks, 'ranks')}; give a cluster of as many devices"
            raise InputError("cluster", self.links.devices, remedy)
        if self.work is not None and len(self.work.layer_seconds) != ranks:
            raise InputError(
                "layer_seconds", len(self.work.layer_seconds), f"there are {ranks} devices; give one for each"
            )
        self._turns = {axis: turns(self.layout, axis, self.volumes) for axis in GROUPS}
        self._stages = np.arange(ranks).reshape(self.layout.pp, -1)

    def __call__(self, orders: Ints) -> Floats:
        """Seconds of orders of devices [orders, ranks]."""
        whole: Floats = np.sum(list(self.parts(orders).values()), axis=0)
        return whole

    def parts(self, orders: Ints) -> dict[str, Floats]:
        """Seconds of each axis and, where ``work`` is known, of ``compute``; [orders] each."""
        seconds = {axis: self._collective(orders, axis).max(axis=1) for axis in GROUPS if axis != "dp"}
        seconds = {"dp": self._gradients(orders)} | seconds | {"pp": self._pipeline(orders)}
        return seconds if self.work is None else seconds | {"compute": self._compute(orders, self.work)}

    def stage_seconds(self, devices: Ints, work: Work) -> Floats:
        """Of one layer on each stage, which is as fast as its slowest device; [..., stages]."""
        seconds: Floats = np.array(work.layer_seconds)[devices[..., self._stages]].max(axis=-1)
        return seconds

    def stage_layers(self, devices: Ints, work: Work) -> tuple[int, ...]:
        """The split of layers whose slowest stage takes the least time, devices [ranks]."""
        most = [int(count) for count in self._room(devices, work).tolist()]
        speeds = self.stage_seconds(devices, work).tolist()
        return split_layers(work.layers, speeds, self._extra(work), most or None)

    def _collective(self, orders: Ints, axis: str) -> Floats:
        """Of the slowest group of each stage, all groups at the same time; [orders, stages]."""
        stages, ranks = self._stages.shape
        total = np.zeros((len(orders), stages))
        for turn in self._turns[axis]:
            sources, targets = orders[:, turn.sources], orders[:, turn.targets]
            groups = self.links.share_island(sources.reshape(len(orders), -1, turn.members))
            near = groups.repeat(turn.members, axis=1)
            seconds = self.links.seconds(sources, targets, turn.bytes_, near)
            of_stage = turn.sources // ranks
            for stage in range(stages):
                total[:, stage] += turn.times * seconds[:, of_stage == stage].max(axis=1)
        return total

    def _gradients(self, orders: Ints) -> Floats:
        """What is left of the data ranks' exchange when the first stage is through with its own."""
        whole, last = self._collective(orders, "dp"), _AFTER_BACKWARD.get(self.layout.zero_stage, 0.0)
        hidden_seconds = np.minimum(last * whole, self._lead(orders)) if last and whole.any() else 0.0
        seconds: Floats = (whole - hidden_seconds).max(axis=1)
        return seconds

    def _lead(self, orders: Ints) -> Floats:
        """For how long each stage is through with its backward when the first one is; [orders, stages]."""
        lead = np.zeros((len(orders), len(self._stages)))
        hop = 0.0 if self.work is None else _BACKWARD * self._slowest_stage(orders, self.work)
        near = self._near_pipelines(orders)
        for stage, (source, target) in enumerate(itertools.pairwise(self._stages), 1):
            back = self.links.seconds(orders[:, target], orders[:, source], self.volumes.pp.bytes_, near)
            lead[:, stage] = lead[:, stage - 1] + hop + back.min(axis=1)
        return lead

    def _pipeline(self, orders: Ints) -> Floats:
        """Rounds of the slowest pipeline that are waited for; more where a link is busy for longer than that.

        What a link carries beside computation is not waited for.
        """
        stream, stages = self.volumes.pp, self._stages
        if len(stages) == 1 or not stream.bytes_:
            return np.zeros(len(orders))
        total, near = np.zeros((len(orders), stages.shape[1])), self._near_pipelines(orders)
        for source, target, calls in hops(stages, self.volumes):
            times = max(1.0, calls / self.layout.pp)
            for way in ((source, target), (target, source)):
                total += times * self.links.seconds(orders[:, way[0]], orders[:, way[1]], stream.bytes_, near)
        hidden_seconds = 0.0 if self.work is None else self._compute(orders, self.work)
        seconds: Floats = np.maximum(total.max(axis=1), self._busiest(orders) - hidden_seconds)
        return seconds

    def _busiest(self, orders: Ints) -> Floats:
        """Seconds for which the busiest link carries messages. Those all around go beside as many to the next place."""
        wrap_calls, next_places = self.volumes.wrap.calls, list(itertools.pairwise(self._stages))
        carried = (self.volumes.pp.calls - wrap_calls) * self._carried(orders, next_places)
        if wrap_calls:
            wrapped = wrap_calls * self._carried(orders, [*next_places, (self._stages[-1], self._stages[0])])
            wrapped[:, : len(next_places)] += carried
            carried = wrapped
        seconds: Floats = carried.max(axis=(1, 2, 3))
        return seconds

    def _carried(self, orders: Ints, places: Sequence[tuple[Ints, Ints]]) -> Floats:
        """Seconds without latency of one message of each pipeline between each of these places, all at the same time;
        [orders, places, ways, pipelines].
        """
        forth, back = (np.concatenate([place for pair in places for place in pair[::way]]) for way in (1, -1))
        sources, targets = orders[:, forth], orders[:, back]
        near = np.tile(self._near_pipelines(orders), 2 * len(places))
        seconds = self.links.seconds(sources, targets, self.volumes.pp.bytes_, near)
        seconds = seconds - self.links.alphas(sources, targets, near)
        return seconds.reshape(len(orders), len(places), 2, -1)

    def _near_pipelines(self, orders: Ints) -> Bools:
        """Pipelines of which all stages are on one island; [orders, pipelines]."""
        return self.links.share_island(orders[:, self._stages.T])

    def _compute(self, orders: Ints, work: Work) -> Floats:
        """Of orders whose stages are alike in speed and memory layers are split once."""
        seconds: Floats = (max(1.0, self.volumes.pp.calls) + self.layout.pp - 1) * self._slowest_stage(
            orders, work
        )
        return seconds

    def _slowest_stage(self, orders: Ints, work: Work) -> Floats:
        """Seconds of a micro-batch on it."""
        stages = np.concatenate([self.stage_seconds(orders, work), self._room(orders, work)], axis=-1)
        different, row_of_order = np.unique(stages, axis=0, return_inverse=True)
        slowest: Floats = np.array([self._best(tuple(row), work) for row in different.tolist()])
        return slowest[row_of_order.ravel()]

    def _room(self, devices: Ints, work: Work) -> Floats:
        """How many layers each stage has room for, that of its fullest device; [..., stages], or nothing."""
        if work.most_layers is None:
            return np.zeros((*devices.shape[:-1], 0))
        room: Floats = np.array(work.most_layers, float)[devices[..., self._stages]].min(axis=-1)
        return room

    def _best(self, key: tuple[float, ...], work: Work) -> float:
        """The slowest stage's seconds for a micro-batch, with layers split as well as can be; speeds, then room."""
        if key not in self._slowest:
            speeds, most = key[: self.layout.pp], [int(count) for count in key[self.layout.pp :]]
            counts = split_layers(work.layers, speeds, self._extra(work), most or None)
            self._slowest[key] = slowest_stage(counts, speeds, self._extra(work))
        return self._slowest[key]

    def _extra(self, work: Work) -> list[float]:
        return [0.0] * (self.layout.pp - 1) + [work.head_layers]


def hops(stages: Ints, volumes: Volumes) -> Iterator[tuple[Ints, Ints, float]]:
    """Places of a pipeline between which messages go, of ``stages`` [places, pipelines], and how many each way."""
    for source, target in itertools.pairwise(stages):
        yield source, target, volumes.pp.calls
    if volumes.wrap.calls:
        yield stages[-1], stages[0], volumes.wrap.calls


def turns(layout: Layout, axis: str, volumes: Volumes) -> list[MessageRound]:
    """The messages of an axis's collectives, in all kinds of its groups."""
    return [
        turn for part in _PARTS.get(axis, (axis,)) for turn in _turns_of(layout, part, getattr(volumes, part))
    ]


def _turns_of(layout: Layout, part: str, stream: Stream) -> list[MessageRound]:
    """In rings for all-reduces, rotated for all-to-alls."""
    if not stream.bytes_:
        return []
    groups = np.array(layout.groups(GROUPS.get(part, part)))
    ranks = groups.shape[1]
    if ranks == 1:
        return []
    share = stream.bytes_ / ranks
    distances = range(1, ranks) if part == "ep" else (1,)
    times = stream.calls if part == "ep" else 2 * (ranks - 1) * stream.calls
    return [
        MessageRound(groups.ravel(), np.roll(groups, -far, axis=1).ravel(), share, times, ranks)
        for far in distances
    ]
