"""What a run's ``environment`` asks for as variables of a process, and where it cannot act. Pure but for ``take``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from engine.config.environment_catalog import VARIABLES, Environment
from engine.config.errors import LayoutError

#: Other names of a variable, which would be read in its place.
ALIASES = {"PYTORCH_ALLOC_CONF": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")}
SECTION = "environment"
_SOCKETS = 64
_BOUNDS = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))


def asked(environment: Environment) -> dict[str, Any]:
    """The settings that are given, by their names in a configuration."""
    given = {name: getattr(environment, name) for name in VARIABLES}
    return {name: value for name, value in given.items() if value is not None}


def text_of(name: str, value: Any) -> str:
    """A value as its variable, or its part of one, has it."""
    if isinstance(value, bool):
        return str(value) if VARIABLES[name].part else str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def variables(environment: Environment, at_start: bool = False) -> dict[str, str]:
    """Variables of a process; ``at_start``: only those that are read as a program starts."""
    found: dict[str, str] = {}
    for name, value in asked(environment).items():
        known = VARIABLES[name]
        if at_start and known.read != "start":
            continue
        if known.part is None:
            found[name] = text_of(name, value)
            continue
        key, part = known.name or name, f"{known.part}:{text_of(name, value)}"
        found[key] = f"{found[key]},{part}" if key in found else part
    return found


def of_ranks(environment: Environment, here: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of a rank: those asked for and, with any of NCCL's, its log, which tells what it read.

    ``TUNING`` writes a line for each collective, so it is on only where the choice among algorithms is turned.
    """
    found = variables(environment)
    if any(name.startswith("NCCL_") for name in found) and "NCCL_DEBUG" not in here:
        chosen = [",TUNING"] if found.keys() & {"NCCL_ALGO", "NCCL_PROTO"} else []
        found |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "".join(["INIT,ENV", *chosen])}
    return found


def take(found: Mapping[str, str]) -> None:
    """Make variables those of this process, before anything reads them."""
    for name, value in found.items():
        for alias in ALIASES.get(name, ()):
            os.environ.pop(alias, None)
        os.environ[name] = value


def seen(name: str, here: Mapping[str, str] = os.environ) -> str | None:
    """What this process has of a setting; None if nothing."""
    known = VARIABLES[name]
    if known.part is None:
        return here.get(name)
    parts = (part.partition(":") for part in here.get(known.name or name, "").split(","))
    return next((value for key, _, value in parts if key == known.part), None)


def silent(name: str, kind: str, ranks: int) -> str | None:
    """Why a setting has no effect on ranks of a kind of device (``cpu``, ``cuda``); None if it may have one."""
    acts = VARIABLES[name].acts
    if acts != "anywhere" and kind != "cuda":
        return f"acts on {'NCCL' if acts == 'nccl' else 'GPUs'} only, and ranks run on the CPU, over gloo"
    if acts == "nccl" and ranks == 1:
        return "acts between ranks only, and there is one"
    return None


def problems(environment: Environment) -> Iterator[LayoutError]:
    """What contradicts itself."""
    given = asked(environment)
    for low, high in _BOUNDS:
        if low in given and high in given and given[low] > given[high]:
            remedy = f"must not be above {high}={given[high]}"
            yield LayoutError(f"{SECTION}.{low}", given[low], remedy)
    if given.get("NCCL_P2P_DISABLE") and "NCCL_P2P_LEVEL" in given:
        remedy = "means nothing with NCCL_P2P_DISABLE=true; give one of them"
        yield LayoutError(f"{SECTION}.NCCL_P2P_LEVEL", given["NCCL_P2P_LEVEL"], remedy)
    threads, sockets = (given.get(name, 1) for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"))
    if threads * sockets > _SOCKETS:
        remedy = f"times NCCL_NSOCKS_PERTHREAD={sockets} must be at most {_SOCKETS}"
        yield LayoutError(f"{SECTION}.NCCL_SOCKET_NTHREADS", threads, remedy)
