"""Which AMD GPUs a rank may use: ROCr filters and reorders all of them, and HIP then numbers what is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from profilers.gpu.amd_smi import AmdSmi

_ROCR, _HIP, _CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
#: What a list of HIP shows of so many devices with these UUIDs, by position.
Reader = Callable[[str, Sequence[str]], list[int]]


def visible(driver: AmdSmi, read: Reader) -> list[int]:
    """The numbers, as AMD SMI lists them, of the GPUs that HIP shows, in its order.

    ``read`` takes HIP_VISIBLE_DEVICES or, without it, CUDA_VISIBLE_DEVICES, which HIP reads as well.
    """
    uuids = [str(driver.identity(gpu)["uuid"]) for gpu in range(driver.device_count)]
    shown = _in_order_of_hip(driver)
    if (asked := os.environ.get(_ROCR)) is not None:
        shown = _filtered(asked, shown, uuids)
    asked = os.environ.get(_HIP, os.environ.get(_CUDA))
    if asked is None:
        return shown
    return [shown[place] for place in read(asked, [uuids[gpu] for gpu in shown])]


def variables() -> str:
    """Those that hide GPUs here, for people."""
    there = [name for name in (_ROCR, _HIP, _CUDA) if name in os.environ]
    return " and ".join(there) or _ROCR


def only(driver: AmdSmi, gpus: Sequence[int]) -> dict[str, str | None]:
    """The variables that show these GPUs to a process and its children, None for one to unset. By UUID, which holds
    whatever HIP's order is; by number where one is not told.
    """
    uuids = [driver.identity(gpu)["uuid"] for gpu in gpus]
    order = _in_order_of_hip(driver)
    named = uuids if None not in uuids else [str(order.index(gpu)) for gpu in gpus]
    return {_ROCR: ",".join(named), _HIP: None, _CUDA: None}


def _in_order_of_hip(driver: AmdSmi) -> list[int]:
    numbers = driver.hip_numbers()
    return sorted(range(len(numbers)), key=numbers.__getitem__)


def _filtered(asked: str, order: Sequence[int], uuids: Sequence[str]) -> list[int]:
    """Numbers or beginnings of UUIDs; the first that fits none, several, or one that was named before ends the list."""
    found: list[int] = []
    for token in (part.strip().lower() for part in asked.split(",")):
        if token.isdecimal():
            fitting = [order[int(token)]] if int(token) < len(order) else []
        else:
            fitting = [
                gpu for gpu in order if token.startswith("gpu-") and uuids[gpu].lower().startswith(token)
            ]
        if len(fitting) != 1 or fitting[0] in found:
            break
        found += fitting
    return found
