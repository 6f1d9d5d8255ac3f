"""What one rank carries through a run: its process groups, place, device and instruments; there is no global state."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine.comm.channel import Channel, Group
from engine.comm.transport import Transport
from engine.config.compression import NO_PLAN, Plan
from engine.config.layout import SEQUENCE, Coordinates, Layout
from engine.config.run_config import RunConfig
from engine.run.commands import StopControl
from engine.run.messages import LabPlacement
from engine.run.progress import Progress
from profilers.collectives.recorder import CollectiveRecorder
from profilers.records.writer import RecordWriter
from profilers.steps.pipeline_actions import ActionRecorder
from profilers.steps.timer import StepTimer


@dataclass(frozen=True, slots=True)
class Groups:
    """This rank's groups; None where there is one member.

    ``data`` spans the ranks of one replica that see different tokens, ``outer`` those with the same part of different
    replicas; without an outer loop there is one replica, of ``replica_size`` ranks. ``shard`` and ``replicate`` divide
    ``data`` under ZeRO 2 and 3, ``ep`` and ``edp`` for experts; ``ep_island`` and ``ep_between`` divide ``ep`` where
    messages go in two stages. ``pp`` carries messages to later ranks and ``pp_back`` to earlier ones: with NCCL, two
    directions on one communicator could block each other. ``norm`` spans the ranks of a replica whose gradients differ.
    ``sequence`` has, for each size above 1, the group of side by side data ranks that may share documents.
    ``transport`` makes groups.
    """

    coordinates: Coordinates
    replica_size: int = 1
    data: Group | None = None
    shard: Group | None = None
    replicate: Group | None = None
    edp: Group | None = None
    ep: Channel | None = None
    ep_island: Channel | None = None
    ep_between: Channel | None = None
    cp: Channel | None = None
    tp: Channel | None = None
    pp: Channel | None = None
    pp_back: Channel | None = None
    norm: Channel | None = None
    outer: Group | None = None
    sequence: dict[int, Channel] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    transport: Transport = field(default_factory=Transport)


def build_groups(
    layout: Layout,
    rank: int,
    device: torch.device,
    timeout: timedelta,
    transport: Transport | None = None,
) -> Groups:
    """Create this rank's groups; every rank calls it, only members of a group meet for it."""
    maker = _GroupFactory(layout, rank, device, timeout, transport or Transport())
    data = maker.group("data", "dp" if layout.cp == 1 else "dp_cp")
    hybrid = 1 < layout.shard < layout.inner
    tp, pp = maker.channel("tp"), maker.channel("pp")
    return Groups(
        layout.coordinates(rank),
        layout.world_size // layout.replicas,
        data=data,
        shard=maker.group("shard", "dp_shard") if hybrid else data,
        replicate=maker.group("replicate", "dp_replicate") if hybrid else None,
        edp=maker.group("edp", "edp") if layout.ep > 1 else data,
        ep=maker.channel("ep"),
        ep_island=maker.channel("ep_island") if layout.ep_island else None,
        ep_between=maker.channel("ep_between") if layout.ep_island else None,
        cp=maker.channel("cp"),
        tp=tp,
        pp=pp,
        pp_back=maker.channel("pp"),
        norm=maker.norm(tp, pp),
        outer=maker.group("outer", "outer"),
        sequence=maker.sequence(),
        axes=maker.axes,
        transport=maker.transport,
    )


class _GroupFactory:
    """Makes groups in one fixed order and remembers what they are called in records."""

    def __init__(
        self, layout: Layout, rank: int, device: torch.device, timeout: timedelta, transport: Transport
    ) -> None:
        self._layout, self._rank, self._device, self._timeout = layout, rank, device, timeout
        self.axes: dict[str, str] = {}
        self.transport = transport

    def group(self, kind: str, label: str) -> Group | None:
        members = next(group for group in self._layout.groups(kind) if self._rank in group)
        if len(members) == 1:
            return None
        group = self.transport.group(label, members, self._timeout)
        self.axes[group.group_name] = label
        return group

    def channel(self, kind: str) -> Channel | None:
        group = self.group(kind, kind)
        return None if group is None else Channel(group, self._device)

    def sequence(self) -> dict[int, Channel]:
        channels = {number: self.channel(f"{SEQUENCE}{number}") for number in self._layout.sequence_degrees}
        return {degree: channel for degree, channel in channels.items() if channel is not None}

    def norm(self, tp: Channel | None, pp: Channel | None) -> Channel | None:
        """The smallest group that holds every different gradient of a replica."""
        if self._layout.data_ranks_differ and self._layout.replicas > 1:
            return self.channel("replica")
        if self._layout.data_ranks_differ:
            world: Any = dist.group.WORLD
            self.transport.note_default("world")
            return Channel(world, self._device)
        return self.channel("model") if tp is not None and pp is not None else tp or pp


@dataclass(slots=True)
class RankContext:
    """One rank's configuration, place, device and instruments, the run's folder, how long its groups wait,
    and its seat if it runs in the lab.

    ``config`` and ``plan`` are what holds now: an order or a planner may replace them between two steps, as a batch
    that grows does with ``batch``. All else stays.
    """

    rank: int
    config: RunConfig
    layout: Layout
    device: torch.device
    groups: Groups
    timer: StepTimer
    recorder: CollectiveRecorder
    writer: RecordWriter
    control: StopControl
    progress: Progress | None = None
    folder: Path = Path()
    group_timeout: timedelta = timedelta(minutes=30)
    lab_placement: LabPlacement | None = None
    #: None where a schedule has one stage.
    actions: ActionRecorder | None = None
    plan: Plan = NO_PLAN
    #: Sequences of a step where they are not as configured: of a batch that grows.
    batch: int | None = None
    #: All that the steps so far took.
    sequences: int = 0

    @property
    def step_config(self) -> RunConfig:
        """The configuration, with the batch of the running step."""
        if self.batch is None:
            return self.config
        batch = self.config.batch.model_copy(update={"global_batch": self.batch})
        return self.config.model_copy(update={"batch": batch})

    def note(self, text: str) -> None:
        """Tell readers of the run's summary something; the same from several ranks counts once."""
        self.writer.event("note", text=text)

    def state(self, name: str) -> None:
        """Tell the launcher what this rank is about to do outside a step."""
        if self.progress is not None:
            self.progress.enter_state(self.rank, self.timer.step, name)
