"""How each group of ranks is made, and what it sends over, by where its members are (after Holmes, arXiv 2312.03549).

gloo takes an interface by name, from a variable that it reads as a group is made; NCCL a network, from a group's
options.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from engine.comm.channel import Group
from engine.config.formulas.network import DATA, INSIDE, shape_of
from engine.config.layout import islands_of
from engine.config.run_config import RunConfig

_INTERFACE = "GLOO_SOCKET_IFNAME"


class GroupNetwork(NamedTuple):
    """What a group of one axis was given, and whether all of its members are on one island; None if nobody told."""

    axis: str
    network: str | None
    inside: bool | None


@dataclass(frozen=True, slots=True)
class Transport:
    """Networks for groups whose members share an island, and for all others; None leaves the choice to the backend.

    ``islands`` has the island of each rank, or is None where nobody told. ``carried`` fills up with this rank's groups.
    """

    inside: str | None = None
    between: str | None = None
    islands: tuple[int, ...] | None = None
    carried: list[GroupNetwork] = field(default_factory=list)

    def group(self, axis: str, members: Sequence[int], timeout: timedelta) -> Group:
        """A group of these ranks; only its members call this. Every group of a run but the default one and that of
        checkpoints is made here. ``axis`` is its label in records: ``dp``, ``dp_cp``, ``dp_shard``, ``dp_replicate``
        and ``edp`` carry gradients, ``outer`` what replicas average; ``tp``, ``cp``, ``ep`` and ``pp`` activations and
        their gradients, ``pp`` also gradients of parameters that several stages have.
        """
        inside = None if self.islands is None else len({self.islands[rank] for rank in members}) == 1
        network = (inside and self.inside) or self.between
        self.carried.append(GroupNetwork(axis, network, inside))
        with group_options(network, dist.get_backend()) as options:
            group: Group = dist.new_group(
                list(members), timeout=timeout, pg_options=options, use_local_synchronization=True
            )
        return group

    def note_default(self, axis: str) -> None:
        """That the axis sends over the default group, which was made of all ranks before any other."""
        inside = None if self.islands is None else len(set(self.islands)) == 1
        self.carried.append(GroupNetwork(axis, self.between, inside))

    def record_fields(self) -> list[dict[str, Any]]:
        """What records keep: nothing where there was no choice."""
        return [kind._asdict() for kind in self.carried] if self.inside or self.between else []


def transport_of(config: RunConfig) -> Transport:
    """What a configuration asks for; in a lab, names of its hosts' interfaces."""
    choice, shape, islands = config.network, shape_of(config.lab), islands_of(config)
    inside, between = choice.inside, choice.between
    if shape is not None and shape.inside_kbit:
        inside, between = inside or INSIDE, between or DATA
    return Transport(inside, between, None if islands is None else tuple(islands))


@contextmanager
def group_options(network: str | None, backend: str) -> Iterator[Any]:
    """How a group is made over a network, or as the backend likes where it is None: what is given is for
    ``pg_options``, NCCL's or None, and while this lasts groups of gloo are made over the interface of that name.
    """
    if network is None:
        yield None
    elif "nccl" in backend:
        options = dist.ProcessGroupNCCL.Options()  # type: ignore[attr-defined,unused-ignore]
        options.config.net_name = network  # type: ignore[attr-defined,unused-ignore]
        yield options
    else:
        before = os.environ.get(_INTERFACE)
        os.environ[_INTERFACE] = network
        try:
            yield None
        finally:
            if before is None:
                del os.environ[_INTERFACE]
            else:
                os.environ[_INTERFACE] = before
