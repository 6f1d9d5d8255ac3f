"""What is to be played: a schedule, seconds of each piece of work, and what is sent when. Data alone.

A *place* is a group of ranks that act in lockstep: the tp x cp ranks of one stage and one dp replica. All of them
compute and send alike, each through its own ports, so one stands for all. Places are numbered as ranks are, replicas
first: ``pipeline_rank * replicas + replica``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.schedules.actions import Costs, Plan
from tuning.predict.traffic.calls import Join


class CollectiveGroup(NamedTuple):
    """Which places meet in a collective: ``size`` replicas of one pipeline rank, every ``stride``-th one; with
    ``whole_pipeline`` all pipeline ranks of those replicas.
    """

    size: int = 1
    stride: int = 1
    whole_pipeline: bool = False

    @property
    def is_own(self) -> bool:
        """Whether a place meets nobody: the collective is among its own ranks."""
        return self.size == 1 and not self.whole_pipeline


OWN = CollectiveGroup()


class Collective(NamedTuple):
    """A collective of ``group_size`` ranks; ``bytes`` is the payload of nccl-tests' definitions.

    It takes ``seconds``, or where that is None what the machine's links need for its bytes. With a ``tag`` it goes on
    beside computation until a ``Join`` of that tag, else its places wait for it. Among a place's own ranks it is never
    beside: it makes their work longer.
    """

    axis: str
    operation: str
    group_size: int
    bytes: float
    group: CollectiveGroup = OWN
    seconds: float | None = None
    tag: str | None = None
    dtype: str = "float32"


class Pause(NamedTuple):
    """Seconds of computation outside the schedule, counted to a phase of ``profilers.records.schema.PHASES``."""

    seconds: float
    phase: str = "optimizer"


Item = Collective | Join | Pause
Items = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class RankTraffic:
    """What one pipeline rank sends: before its actions, in each of them, and after them."""

    before: Items = ()
    actions: tuple[Items, ...] = ()
    after: Items = ()

    def action_items(self, place: int) -> Items:
        """In one action."""
        return self.actions[place] if self.actions else ()


@dataclass(frozen=True)
class Step:
    """One step of ``replicas`` pipelines that follow the same plan.

    ``seconds`` has one entry a stage (``Costs.hop`` is not read: messages take what the machine's links need).
    ``message_bytes`` is what a rank sends on to the next stage, one entry for each border between stages or one for
    all; a gradient comes back as large. ``rank_traffic`` has one entry a pipeline rank. The work of an action is spread
    evenly: a part in front of each collective, the last of which is at its end. Where an action itself joins what it
    started, such as a layer's parameters, the part comes behind the join, and the next start goes on beside it.

    ``registers`` bounds the messages from each stage to another that were begun and not yet used up (the quota of
    OneFlow's actors, arXiv 2110.15032): work whose result has no free register waits until the work that reads an
    older one has ended and its credit has come back. None is no bound.
    """

    plan: Plan
    seconds: tuple[Costs, ...]
    message_bytes: float | tuple[float, ...] = 0.0
    replicas: int = 1
    width: int = 1
    rank_traffic: tuple[RankTraffic, ...] = ()
    registers: int | None = None

    def __post_init__(self) -> None:
        stages = self.plan.stages
        if len(self.seconds) != stages:
            raise ValueError(
                f"seconds: {len(self.seconds):,} entries for {stages:,} stages; give one for each"
            )
        if self.rank_traffic and len(self.rank_traffic) != self.plan.ranks:
            raise ValueError(
                f"sent: {len(self.rank_traffic):,} entries for {self.plan.ranks:,} pipeline ranks"
            )
        if isinstance(self.message_bytes, tuple) and len(self.message_bytes) != stages - 1:
            borders = f"{len(self.message_bytes):,} entries for {stages - 1:,} borders between stages"
            raise ValueError(f"message_bytes: {borders}; give one for each, or a number")
        for name, value in (
            ("replicas", self.replicas),
            ("width", self.width),
            ("registers", self.registers),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value:,} is not at least 1")

    @property
    def places(self) -> int:
        """Of all pipelines."""
        return self.plan.ranks * self.replicas

    def border_bytes(self, border: int) -> float:
        """Of a message between a stage and the next one."""
        return self.message_bytes[border] if isinstance(self.message_bytes, tuple) else self.message_bytes
