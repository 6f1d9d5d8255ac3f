"""Whether this host has the interfaces that a configuration names for its groups. No torch."""

from __future__ import annotations

import socket

import psutil

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.run.devices.selection import Devices

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def require(config: RunConfig, chosen: Devices) -> None:
    """Nothing where it has all of them, on GPUs, where names are NCCL's, and in a lab, whose hosts have their own.

    Raises:
        InputError: it lacks one, with those that it has, or one has no address.
    """
    if config.lab.is_wanted or chosen.kind != "cpu":
        return
    addresses = psutil.net_if_addrs()
    for key in ("inside", "between"):
        names = getattr(config.network, key)
        if names is None:
            continue
        host = socket.gethostname()
        if not set(names.split(",")) <= set(addresses):
            spaces = "; names are joined by commas alone" if "," in names else ""
            remedy = f"{host} has no such interface; it has {', '.join(addresses)}{spaces}"
            raise InputError(f"network.{key}", names, remedy)
        for name in names.split(","):
            if not any(address.family in _FAMILIES for address in addresses[name]):
                with_one = [
                    other
                    for other in addresses
                    if any(address.family in _FAMILIES for address in addresses[other])
                ]
                remedy = f"{name} of {host} has no address to send from; {', '.join(with_one)} have"
                raise InputError(f"network.{key}", names, remedy)
