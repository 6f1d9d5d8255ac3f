"""Process groups of a layout, and this rank's ends of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from engine.channel import Channel, Group
from engine.layout import Coordinates, Layout


@dataclass(frozen=True, slots=True)
class Groups:
    """This rank's groups; None where an axis has one member.

    ``pp_backward`` carries gradients of activations: with NCCL, two directions on one communicator could block
    each other. ``norm`` spans the ranks whose gradients differ, for the global gradient norm.
    """

    at: Coordinates
    dp: Group | None = None
    tp: Channel | None = None
    pp: Channel | None = None
    pp_backward: Channel | None = None
    norm: Channel | None = None
    axes: dict[str, str] = field(default_factory=dict)


def build(layout: Layout, rank: int, device: torch.device, timeout: timedelta) -> Groups:
    """Create this rank's groups; every rank calls it, only members of a group meet for it."""
    made: dict[str, Group | None] = {}
    axes: dict[str, str] = {}
    for axis in ("dp", "tp", "pp"):
        made[axis] = _group(layout, axis, rank, timeout, axes, axis)
    made["pp_backward"] = _group(layout, "pp", rank, timeout, axes, "pp") if layout.pp > 1 else None
    made["norm"] = _norm_group(layout, rank, timeout, axes, made)
    dp = made.pop("dp")
    ends = {name: Channel(group, device) if group is not None else None for name, group in made.items()}
    return Groups(layout.coordinates(rank), dp, axes=axes, **ends)


def _group(
    layout: Layout, axis: str, rank: int, timeout: timedelta, axes: dict[str, str], label: str
) -> Group | None:
    members = next(group for group in layout.groups(axis) if rank in group)
    if len(members) == 1:
        return None
    group: Group = dist.new_group(members, timeout=timeout, use_local_synchronization=True)
    axes[group.group_name] = label
    return group


def _norm_group(
    layout: Layout, rank: int, timeout: timedelta, axes: dict[str, str], made: dict[str, Group | None]
) -> Group | None:
    differing = [axis for axis in ("tp", "pp") if made[axis] is not None]
    if layout.zero_stage == 3 and made["dp"] is not None:
        differing.append("dp")
    if len(differing) <= 1:
        return made[differing[0]] if differing else None
    if "dp" in differing or layout.dp == 1:
        return dist.group.WORLD
    return _group(layout, "model", rank, timeout, axes, "model")
