"""Parameters that modules share: when their gradients are complete, and with which stages they are summed.

Each rank of a pipeline that has modules with such a parameter holds one copy of it, and updates it like the others:
their gradients are summed over these ranks once all backwards of a step are through (as Megatron-LM does with tied
embeddings, arXiv 2104.04473), and only then averaged over data ranks. So all that follows, compression included, sees
the gradients of one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import nn

from engine.comm.channel import Channel
from engine.comm.context import RankContext
from engine.config.formulas.tied_parameters import Holders
from engine.parallel.data.averaging import SharedParameters
from profilers.analysis.events import NETWORKS_EVENT

#: What messages between the stages of a pipeline are called in records.
_AXIS = "pp"


@dataclass(frozen=True)
class StageSharedParameters:
    """Of one rank: who holds which parameter, and its groups with other ranks of its pipeline, by their places.

    Where backwards are ``split``, gradients of one parameter come in several parts even within a stage.
    """

    holders: Holders
    channels: Mapping[tuple[int, ...], Channel]
    split: bool

    def channel(self, name: str) -> Channel | None:
        """Over which a parameter's gradients are summed."""
        return self.channels.get(self.holders.meeting(name))

    def waits(self, name: str) -> bool:
        """Whether the gradient of a parameter is complete only at the end of a step."""
        stages = self.holders.stages(name)
        return len(stages) > 1 or (self.split and bool(stages))

    def group_deferred(self, whole: SharedParameters) -> list[SharedParameters]:
        """Those that wait for the end of a step, by the set that they belong to, in one order on all ranks."""
        sets: dict[str, dict[str, nn.Parameter]] = {}
        for name, parameter in whole.parameters.items():
            if self.waits(name):
                sets.setdefault(_set_of(name), {})[name] = parameter
        return [
            replace(whole, parameters=named, at_end=True, between_stages=self.channel(next(iter(named))))
            for _, named in sorted(sets.items())
        ]

    def select_immediate(self, whole: SharedParameters) -> SharedParameters:
        """The others."""
        return replace(
            whole,
            parameters={
                name: parameter for name, parameter in whole.parameters.items() if not self.waits(name)
            },
        )

    def sets(self, names: Iterable[str]) -> list[tuple[Channel, list[str]]]:
        """The names whose gradients are summed over stages, by set, in one order on all ranks."""
        sets: dict[str, list[str]] = {}
        for name in names:
            if self.channel(name) is not None:
                sets.setdefault(_set_of(name), []).append(name)
        return [(self.channels[self.holders.meeting(names[0])], names) for _, names in sorted(sets.items())]


def make_shared_groups(rank: RankContext, holders: Holders, split: bool) -> StageSharedParameters:
    """Make the groups of this rank; all ranks of a pipeline call it.

    torch names a group after its ranks and the number of groups that a process has made, which therefore has to be the
    same on all of them: who is not in one makes another of its own.
    """
    coordinates, channels = rank.groups.coordinates, dict[tuple[int, ...], Channel]()
    for places in holders.meetings():
        if coordinates.pp in places:
            channels[places] = _channel(rank, places)
        else:
            dist.new_group([rank.rank], timeout=rank.group_timeout, use_local_synchronization=True)
    if carried := rank.groups.transport.record_fields():  # once more, these groups with the others
        rank.writer.event(NETWORKS_EVENT, groups=carried)
    return StageSharedParameters(holders, channels, split)


def _channel(rank: RankContext, places: tuple[int, ...]) -> Channel:
    members = [rank.layout.rank(replace(rank.groups.coordinates, pp=place)) for place in places]
    group = rank.groups.transport.group(_AXIS, members, rank.group_timeout)
    rank.groups.axes[group.group_name] = _AXIS
    return Channel(group, rank.device)


def _set_of(name: str) -> str:
    """What is shared together: a layer's parameters, or a single one."""
    return ".".join(name.split(".")[:2])
