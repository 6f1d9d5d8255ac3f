"""Rank and coordinates. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import RunConfig

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


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism. Ranks are numbered with tp fastest, then cp, dp and pp.

    The dp x cp ranks that see different tokens are the data ranks, numbered with cp fastest. ``ep`` of them, side
    by side, hold one set of experts; ``shard`` of them hold one sharded copy of the parameters.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero_stage: int = 0
    shard_ranks: int | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.data * self.tp * self.pp

    @property
    def data(self) -> int:
        """Ranks that see different tokens."""
        return self.dp * self.cp

    @property
    def shard(self) -> int:
        """Ranks over which parameters are split; 1 without ZeRO."""
        return (self.shard_ranks or self.data) if self.zero_stage >= 2 else 1

    @property
    def data_ranks_differ(self) -> bool:
        """Whether data ranks update different parts of the parameters."""
        return self.data > 1 and (self.zero_stage > 0 or self.ep > 1)

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank stands."""
        at = {}
        for axis in AXES:
            rank, at[axis] = divmod(rank, getattr(self, axis))
        return Coordinates(**at)

    def rank(self, at: Coordinates) -> int:
        """Inverse of :meth:`coordinates`."""
        rank = 0
        for axis in reversed(AXES):
            rank = rank * getattr(self, axis) + getattr(at, axis)
        return rank

    def data_rank(self, at: Coordinates) -> int:
        """Place among the data ranks."""
        return at.dp * self.cp + at.cp

    def groups(self, name: str) -> list[list[int]]:
        """All process groups of a kind, in one fixed order.

        Kinds: ``dp``, ``tp``, ``cp``, ``pp``, ``data`` (dp x cp), ``model`` (tp x pp), and parts of the data ranks:
        ``ep`` and ``shard`` (side by side), ``edp`` and ``replicate`` (one of each of those).
        """
        if name in GROUPS:
            return self._along(GROUPS[name])
        size = self.ep if name in ("ep", "edp") else self.shard
        parts: list[list[int]] = []
        for data in self._along(GROUPS["data"]):
            blocks = [data[first : first + size] for first in range(0, len(data), size)]
            across = [list(members) for members in zip(*blocks, strict=True)]
            parts += blocks if name in ("ep", "shard") else across
        return parts

    def as_dict(self) -> dict[str, int]:
        """The ``layout`` object of results."""
        return {name: getattr(self, name) for name in ("dp", "tp", "pp", "cp", "ep", "zero_stage")}

    def _along(self, varying: tuple[str, ...]) -> list[list[int]]:
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            at = self.coordinates(rank)
            fixed = tuple(getattr(at, name) for name in AXES if name not in varying)
            members.setdefault(fixed, []).append(rank)
        return list(members.values())


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A rank's place on each axis."""

    dp: int = 0
    tp: int = 0
    pp: int = 0
    cp: int = 0


def layout_of(config: RunConfig) -> Layout:
    """The layout a configuration asks for, unchecked."""
    parallel = config.parallel
    names = ("dp", "tp", "pp", "cp", "ep", "zero_stage", "shard_ranks")
    return Layout(**{name: getattr(parallel, name) for name in names})


def accumulation(config: RunConfig) -> int:
    """Micro-batches per optimizer step and data-parallel rank."""
    return config.batch.global_batch // (config.parallel.dp * config.batch.micro_batch)
