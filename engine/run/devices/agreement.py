"""Which device ranks of another launcher use: the same kind on all of them, whatever each host has."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from functools import partial

import msgspec
import torch.distributed as dist

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from engine.run.devices import gpu_probe, selection
from engine.run.devices.selection import Devices


class _Found(msgspec.Struct):
    """One rank's own choice, or in ``remedy`` why it refuses."""

    host: str
    chosen: Devices | None = None
    remedy: str = ""


def choose(config: RunConfig, store: dist.Store, place: int, places: int) -> Devices:
    """GPUs where each rank has one that works, the CPU on all ranks otherwise; every rank calls it.

    ``place`` is torchrun's number of this process. A rank is about to use CUDA in any case: it asks torch here, of the
    GPU of its own, and no process is started for that.

    Raises:
        InputError: GPUs were asked for by name, and some rank has none; raised on all.
    """
    mine = _found(config)
    if config.device == "cpu":
        return _checked(mine, mine.host)
    told = dist.PrefixStore("devices", store)
    told.set(f"{place}", msgspec.json.encode(mine).decode())
    found = [msgspec.json.decode(told.get(f"{number}"), type=_Found) for number in range(places)]
    told.set(f"heard-{place}", "")
    against = next((one for one in found if one.chosen is None or one.chosen.kind != "cuda"), mine)
    if (
        against.chosen is None and place == 0
    ):  # it may hold the store, which is to outlive the others' questions
        told.wait([f"heard-{number}" for number in range(places)])
    return _checked(against, mine.host)


def _found(config: RunConfig) -> _Found:
    here = int(os.environ.get("LOCAL_RANK", "0"))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    try:
        chosen = selection.choose(config, ranks, ask=partial(gpu_probe.look, only=here))
        return _Found(socket.gethostname(), chosen)
    except InputError as error:
        return _Found(socket.gethostname(), remedy=error.remedy)


def _checked(found: _Found, here: str) -> Devices:
    where = "" if found.host == here else f"{found.host}: "
    if found.chosen is None:
        raise InputError("device", "cuda", f"{where}{found.remedy}")
    return replace(found.chosen, reason=f"{where}{found.chosen.reason}")
