"""The layout of ranks: each rank's coordinates on the axes, and the layers of each pipeline stage. Pure."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config.formulas.network import shape_of
from engine.config.formulas.task_ranks import deal
from engine.config.methods.outer_methods import OUTER_METHODS
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import SEQUENCE_DEGREES

#: The order in which ranks are numbered, fastest first: tensor parallelism has the most traffic.
AXES = ("tp", "cp", "dp", "pp")
#: Group -> the axes along which its members differ.
GROUPS = {
    "dp": ("dp",),
    "tp": ("tp",),
    "cp": ("cp",),
    "pp": ("pp",),
    "data": ("cp", "dp"),
    "model": ("tp", "pp"),
}
_PARTS = ("ep", "edp", "shard", "replicate")
#: Groups of ranks that share documents, followed by their size.
SEQUENCE = "sequence_"
#: In the ``layout`` of a run of another trainer: how many ranks it has; how it lays them out nobody told.
RANKS = "ranks"


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism. Ranks are numbered with tp fastest, then cp, dp and pp.

    The dp x cp ranks that see different tokens are the data ranks, numbered with cp fastest. An outer loop has them
    form ``replicas`` that train by themselves, of ``inner`` data ranks each, side by side. Of those ``ep``, side by
    side, hold one set of experts, ``ep_island`` of them near each other; ``shard`` of them hold one sharded copy of the
    parameters. With ``columns`` each holds its part of the embedding.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero_stage: int = 0
    shard_ranks: int | None = None
    replicas: int = 1
    columns: bool = False
    ep_island: int | None = None
    #: Sizes of the groups of data ranks that may share documents, beside ranks alone.
    sequence_degrees: tuple[int, ...] = ()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.data * self.tp * self.pp

    @property
    def data(self) -> int:
        """Ranks that see different tokens."""
        return self.dp * self.cp

    @property
    def inner(self) -> int:
        """Data ranks whose gradients are averaged at every step: all, or those of one replica of an outer loop."""
        return self.data // self.replicas

    @property
    def shard(self) -> int:
        """Ranks over which parameters are split; 1 without ZeRO."""
        return (self.shard_ranks or self.inner) if self.zero_stage >= 2 else 1

    @property
    def data_ranks_differ(self) -> bool:
        """Whether data ranks of one replica update different parts of the parameters."""
        return self.inner > 1 and (self.zero_stage > 0 or self.ep > 1 or self.columns)

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank stands."""
        coordinates = {}
        for axis in AXES:
            rank, coordinates[axis] = divmod(rank, getattr(self, axis))
        return Coordinates(**coordinates)

    def rank(self, coordinates: Coordinates) -> int:
        """Inverse of :meth:`coordinates`."""
        rank = 0
        for axis in reversed(AXES):
            rank = rank * getattr(self, axis) + getattr(coordinates, axis)
        return rank

    def data_rank(self, coordinates: Coordinates) -> int:
        """Place among the data ranks."""
        return coordinates.dp * self.cp + coordinates.cp

    def replica(self, coordinates: Coordinates) -> int:
        """The replica of an outer loop that a rank belongs to."""
        return self.data_rank(coordinates) // self.inner

    def groups(self, name: str) -> list[list[int]]:
        """All process groups of a kind, in one fixed order.

        Kinds: ``dp``, ``tp``, ``cp``, ``pp``, ``model`` (tp x pp), ``data`` (the data ranks of one replica), and parts
        of those: ``ep`` and ``shard`` (side by side), ``edp`` and ``replicate`` (one of each of those), and of ``ep``
        ``ep_island`` (side by side) and ``ep_between`` (one of each of those). ``outer`` joins
        the ranks that hold the same in different replicas; ``replica`` all ranks of one. ``sequence_4`` are data ranks
        side by side that may share documents, four at a time.
        """
        if name == "replica":
            ranks = range(self.world_size)
            return [
                [r for r in ranks if self.replica(self.coordinates(r)) == n] for n in range(self.replicas)
            ]
        if name.startswith(SEQUENCE):
            return _split_groups(self._along(GROUPS["data"]), int(name.removeprefix(SEQUENCE)))[0]
        if name in ("ep_island", "ep_between"):
            islands, between = _split_groups(self.groups("ep"), self.ep_island or self.ep)
            return islands if name == "ep_island" else between
        if name not in (*_PARTS, "data", "outer"):
            return self._along(GROUPS[name])
        whole = self._along(GROUPS["data"])
        blocks, between_blocks = _split_groups(whole, self.inner)
        if name in ("data", "outer"):
            return blocks if name == "data" else between_blocks
        side_by_side, one_of_each = _split_groups(blocks, self.ep if name in ("ep", "edp") else self.shard)
        return side_by_side if name in ("ep", "shard") else one_of_each

    def as_dict(self) -> dict[str, int]:
        """The ``layout`` object of results; that of another trainer has ``RANKS``, too."""
        return {name: getattr(self, name) for name in ("dp", "tp", "pp", "cp", "ep", "zero_stage")}

    def _along(self, varying: tuple[str, ...]) -> list[list[int]]:
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            coordinates = self.coordinates(rank)
            fixed = tuple(getattr(coordinates, name) for name in AXES if name not in varying)
            members.setdefault(fixed, []).append(rank)
        return list(members.values())


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's place on each axis."""

    dp: int = 0
    tp: int = 0
    pp: int = 0
    cp: int = 0


def _split_groups(groups: list[list[int]], size: int) -> tuple[list[list[int]], list[list[int]]]:
    """Of each group: its blocks of ``size`` ranks side by side, and the groups of one of each block."""
    blocks, between_blocks = list[list[int]](), list[list[int]]()
    for group in groups:
        subgroups = [group[first : first + size] for first in range(0, len(group), size)]
        blocks += subgroups
        between_blocks += [list(members) for members in zip(*subgroups, strict=True)]
    return blocks, between_blocks


def layout_of(config: RunConfig) -> Layout:
    """The layout a configuration asks for, unchecked."""
    parallel, outer = config.parallel, config.outer
    names = ("dp", "tp", "pp", "cp", "ep", "zero_stage", "shard_ranks", "ep_island")
    replicas = 1 if outer.method == "none" else outer.replicas or parallel.dp
    degrees = {name: getattr(parallel, name) for name in names}
    return Layout(
        **degrees,
        replicas=replicas,
        columns=parallel.embedding == "columns",
        sequence_degrees=sequence_degrees(config)[1:],
    )


def sequence_degrees(config: RunConfig) -> tuple[int, ...]:
    """Sizes of the groups that may share documents, unchecked, with 1 first: that of ``parallel.sequence_groups``, or
    if they are planned all that divide dp and the decoder's heads.
    """
    wanted = config.parallel.sequence_groups
    if wanted != "planned":
        return (1,) if wanted == 1 else (1, wanted)
    heads = 1
    if is_decoder(config.model):
        shape = resolve(config.model)
        heads = math.gcd(shape.heads, shape.kv_heads)
    return tuple(degree for degree in SEQUENCE_DEGREES if config.parallel.dp % degree == 0 == heads % degree)


def rank_tokens(config: RunConfig) -> int:
    """The most tokens that a rank computes on at once."""
    return config.batch.micro_batch * config.data.sequence_length


def longest_document(config: RunConfig) -> int:
    """The most tokens of a whole document: as many as are asked for, else what the largest group holds."""
    return config.data.longest_document or group_document_tokens(config)


def group_document_tokens(config: RunConfig) -> int:
    """The most tokens of a whole document that the largest group holds."""
    return rank_tokens(config) * max(sequence_degrees(config))


def devices_of(config: RunConfig) -> tuple[int, ...]:
    """The device of each rank, unchecked: as ``parallel.placement`` says, else ranks lie in their order."""
    placement = config.parallel.placement
    return tuple(range(layout_of(config).world_size)) if placement is None else tuple(placement)


def islands_of(config: RunConfig) -> list[int] | None:
    """The island of each rank, unchecked: of the lab, or as ``network.island_devices`` says; None where nobody told."""
    devices, shape, device_islands = devices_of(config), shape_of(config.lab), config.network.island_devices
    if shape is not None:
        return [shape.island_of(host) for host in shape.hosts_of_ranks(devices)]
    if device_islands is None:
        return None
    ends = list(
        itertools.accumulate(
            [device_islands] * (len(devices) // device_islands)
            if isinstance(device_islands, int)
            else device_islands
        )
    )
    return [bisect_right(ends, device) for device in devices]


def accumulation(config: RunConfig, dp: int | None = None) -> int:
    """Micro-batches per optimizer step of a data-parallel rank; where tasks give them unequal numbers, of the busiest
    one without ``dp``.
    """
    if not config.data.tasks:
        return config.batch.global_batch // (config.parallel.dp * config.batch.micro_batch)
    counts = [len(piece) for piece in deal(config)]
    return max(counts) if dp is None else counts[dp]


def mean_accumulation(config: RunConfig) -> float:
    """The mean over data-parallel ranks: what each one's losses are divided by, so that the mean over ranks is that of
    the global batch.
    """
    return config.batch.global_batch / (config.parallel.dp * config.batch.micro_batch)


def layers_of_stages(layers: int, stages: int, stage_layers: Sequence[int] | None = None) -> list[range]:
    """Consecutive layers of each stage: as many as ``stage_layers`` says, else dealt evenly, the rest to the first.

    The last stage has the head to compute, so it never gets one layer more than the others.
    """
    counts = stage_layers or [layers // stages + (stage < layers % stages) for stage in range(stages)]
    starts = [sum(counts[:stage]) for stage in range(stages)]
    return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]


def round_steps(config: RunConfig) -> int:
    """Steps from one exchange of the outer loop to the next; 1 without one."""
    return 1 if config.outer.method == "none" else config.outer.period


def settling_steps(config: RunConfig) -> int:
    """Steps at the start after which every stretch of a round's length holds a whole round's waits.

    CO2 takes over its first average at the end of the second round; streaming DiLoCo each one ``overlap`` steps late.
    """
    method = OUTER_METHODS.get(config.outer.method)
    return method.late_steps(config.outer.period, config.outer.overlap) if method else 0


def least_steps(config: RunConfig, rounds: int) -> int:
    """The fewest ``train.steps`` in which so many whole rounds are measured."""
    return max(config.train.warmup, settling_steps(config)) + rounds * round_steps(config)
