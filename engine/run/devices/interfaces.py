"""Whether this host has the interfaces that a configuration names for its groups. No torch."""

from __future__ import annotations

import socket

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.run.devices.selection import Devices


def require(config: RunConfig, chosen: Devices) -> None:
    """Nothing where it has all of them, on GPUs, where names are NCCL's, and in a lab, whose hosts have their own.

    Raises:
        InputError: it lacks one, with those that it has.
    """
    if config.lab.wanted or chosen.kind != "cpu":
        return
    here = [name for _, name in socket.if_nameindex()]
    for key in ("inside", "between"):
        asked = getattr(config.network, key)
        if asked is not None and not {one.strip() for one in asked.split(",")} <= set(here):
            remedy = f"{socket.gethostname()} has no such interface; it has {', '.join(here)}"
            raise InputError(f"network.{key}", asked, remedy)
