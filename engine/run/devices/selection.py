"""Which device and backend a run uses, and why. Never touches CUDA here: the driver tells which GPUs there are, a
process of its own whether torch can use them.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from engine.config.errors import InputError, several
from engine.config.formulas.network import shape_of
from engine.config.run_config import RunConfig
from engine.run.devices import torch_gpus
from engine.run.devices.torch_gpus import TorchGpus
from profilers.gpu import detection
from profilers.gpu.amd_smi import AmdSmi
from profilers.gpu.library import GpuIdentity

_PART = "a part of a GPU (MIG)"


class GpuSource(Protocol):
    """Who tells which GPUs this machine has, numbered as the driver does; asks no CUDA."""

    @property
    def device_count(self) -> int:
        """GPUs that the driver shows."""

    @property
    def reason(self) -> str | None:
        """Why the driver cannot be asked, in one line; None if it can."""

    def name(self, index: int) -> str | None:
        """A GPU's product name."""

    def identity(self, index: int) -> GpuIdentity:
        """With its ``uuid``."""

    def is_divided(self, index: int) -> bool:
        """Whether it is used in parts (MIG)."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Kind (``cpu`` or ``cuda``), backend (``gloo``, ``nccl``, or ``MODULE:NAME``), the reason, and the GPUs' names."""

    kind: str
    backend: str
    reason: str
    names: tuple[str, ...] = ()


def require_torch() -> None:
    """Without loading it. InputError where it is not installed: what was measured elsewhere is read without it."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("torch", None, "is not installed here, and ranks need it: pip install torch")


def choose(
    config: RunConfig,
    world_size: int,
    driver: GpuSource | None = None,
    ask: Callable[[], TorchGpus] | None = None,
) -> Devices:
    """NCCL with one GPU per rank where there are enough of them that torch can use, gloo on CPU otherwise.

    ``ask`` tells what torch can use, by default ``torch_gpus.ask``: only where there are GPUs, or the driver is missing
    and GPUs were asked for by name.

    Raises:
        InputError: torch is not installed; GPUs were asked for by name and there are none, or too few, or torch cannot
            use them; or another backend of CPU ranks was asked for, in vain.
    """
    require_torch()
    if (shape := shape_of(config.lab)) is not None:
        return Devices("cpu", _cpu_backend(), f"in a lab of {shape}")
    if config.device == "cpu":
        return Devices("cpu", _cpu_backend(), "device=cpu was asked for")
    driver = driver or detection.open_library()
    gpus, ask = names(driver), ask or torch_gpus.ask
    answer: TorchGpus | None
    if driver.reason is not None and config.device == "cuda":
        answer = ask()
        gpus, missing = [gpu.name for gpu in answer.gpus], answer.why_not(world_size)
        missing = missing and f"{missing}; {driver.reason}"
    else:
        missing, answer = driver.reason or _too_few(driver, gpus, world_size), None
        if missing is None:
            answer = ask()
            missing = answer.why_not(world_size)
    if missing is None:
        gpus = [_PART] if _PART in gpus else gpus
        reason = f"{several(len(gpus), 'GPUs')} for {several(world_size, 'ranks')}, one each"
        return Devices("cuda", "nccl", reason, tuple(gpus[:world_size]))
    if config.device == "cuda":
        one_can = bool(gpus) if answer is None else answer.why_not(1) is None
        fewer = ", or fewer ranks" if one_can and world_size > 1 else ""
        raise InputError("device", "cuda", f"{missing}; use device=auto or cpu{fewer}")
    return Devices("cpu", _cpu_backend(), missing)


def _too_few(driver: GpuSource, gpus: list[str], world_size: int) -> str | None:
    """Why the driver alone can tell that GPUs do not suffice; None if they may."""
    if _PART in gpus and world_size > 1:
        return f"{_PART} takes one rank, not {world_size:,}: CUDA shows a process one part and no other GPU"
    if gpus and len(gpus) >= world_size:
        return None
    library = "RCCL" if isinstance(driver, AmdSmi) else "NCCL"
    gpu_count, ranks = several(len(gpus), "GPUs"), several(world_size, "ranks")
    return f"{gpu_count}{describe_hidden_gpus(driver)} for {ranks}; {library} needs one each"


def visible(driver: GpuSource) -> list[int | None]:
    """The driver's numbers of the GPUs that ranks may use, in order; None for a part of a GPU (MIG), or for one that is
    used in parts.

    CUDA_VISIBLE_DEVICES is read as torch reads it (``torch.cuda.device_count``): numbers, or beginnings of UUIDs that
    fit one GPU; what fits none ends the list, a repetition empties it. Numbers are taken as the driver's, which is what
    CUDA_DEVICE_ORDER=PCI_BUS_ID makes them.
    """
    if isinstance(driver, AmdSmi):
        return [*_visible_amd(driver)]
    count, setting = driver.device_count, os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None or not count:
        return _whole(driver, range(count))
    if setting.startswith("MIG-"):
        parts = list(takewhile(lambda part: part.startswith("MIG-"), setting.split(",")))
        return [] if len(set(parts)) < len(parts) else [None] * len(parts)
    by_name = setting.startswith("GPU-")
    uuids = [str(driver.identity(gpu).uuid) if by_name else "" for gpu in range(count)]
    return _whole(driver, _shown_positions(setting, uuids))


def names(driver: GpuSource) -> list[str]:
    """Product names of the visible GPUs."""
    return [_PART if gpu is None else driver.name(gpu) or "unknown GPU" for gpu in visible(driver)]


def describe_hidden_gpus(driver: GpuSource) -> str:
    """How many more GPUs there are than ranks may use, as the tail of a line; empty if there are none."""
    hidden_count = driver.device_count - len(visible(driver))
    vendor = _CUDA
    if isinstance(driver, AmdSmi):
        vendor = " and ".join(name for name in (_ROCR, _HIP, _CUDA) if name in os.environ) or _ROCR
    return f" ({vendor} hides {hidden_count:,} more)" if hidden_count > 0 else ""


def visibility_variables(numbers: Sequence[int]) -> dict[str, str | None]:
    """The variables that show GPUs, by the driver's numbers, to a process and its children; None for one to unset.

    AMD's are named by UUID, which holds whatever HIP's order is; by number where one is not told.
    """
    driver = detection.open_library()
    try:
        if not isinstance(driver, AmdSmi):
            return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", _CUDA: ",".join(map(str, numbers))}
        uuids = [driver.identity(gpu).uuid for gpu in numbers]
        order = _in_order_of_hip(driver)
        told = [uuid for uuid in uuids if uuid is not None]
        named = told if len(told) == len(uuids) else [str(order.index(gpu)) for gpu in numbers]
        return {_ROCR: ",".join(named), _HIP: None, _CUDA: None}
    finally:
        driver.close()


def _shown_positions(setting: str, uuids: Sequence[str]) -> list[int]:
    """Positions that a list of numbers, or of UUIDs, shows of devices with these UUIDs."""
    parts = setting.split(",")
    if setting.startswith("GPU-"):
        named = list(takewhile(lambda part: part.startswith("GPU-"), parts))
        if len(set(named)) < len(named):
            return []
        fitting = ([gpu for gpu, uuid in enumerate(uuids) if uuid.startswith(name)] for name in named)
        numbers = [gpus[0] if len(gpus) == 1 else -1 for gpus in fitting]
    else:
        numbers = [_number(part.strip()) for part in parts]
    positions = list(takewhile(lambda number: number >= 0, numbers))
    if len(set(positions)) < len(positions):
        return []
    return list(takewhile(lambda number: number < len(uuids), positions))


def _whole(driver: GpuSource, numbers: Iterable[int]) -> list[int | None]:
    return [None if driver.is_divided(number) else number for number in numbers]


def _number(text: str) -> int:
    """What a text begins with; -1 if that is no number."""
    digits = re.match(r"[+-]?[0-9]+", text)
    return int(digits[0]) if digits else -1


_ROCR, _HIP, _CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


def _visible_amd(driver: AmdSmi) -> list[int]:
    """The numbers, as AMD SMI lists them, of the GPUs that HIP shows, in its order: ROCr filters and reorders all of
    them, and HIP then numbers what is left, by HIP_VISIBLE_DEVICES or, without it, CUDA_VISIBLE_DEVICES.
    """
    uuids = [str(driver.identity(gpu).uuid) for gpu in range(driver.device_count)]
    gpus = _in_order_of_hip(driver)
    if (setting := os.environ.get(_ROCR)) is not None:
        gpus = _select_tokens(setting, gpus, uuids)
    setting = os.environ.get(_HIP, os.environ.get(_CUDA))
    if setting is None:
        return gpus
    return [gpus[place] for place in _shown_positions(setting, [uuids[gpu] for gpu in gpus])]


def _in_order_of_hip(driver: AmdSmi) -> list[int]:
    numbers = driver.hip_numbers()
    return sorted(range(len(numbers)), key=numbers.__getitem__)


def _select_tokens(setting: str, order: Sequence[int], uuids: Sequence[str]) -> list[int]:
    """Numbers or beginnings of UUIDs; the first that fits none, several, or one that was named before ends the list."""
    selected: list[int] = []
    for token in (part.strip().lower() for part in setting.split(",")):
        if token.isdecimal():
            fitting = [order[int(token)]] if int(token) < len(order) else []
        else:
            fitting = [
                gpu for gpu in order if token.startswith("gpu-") and uuids[gpu].lower().startswith(token)
            ]
        if len(fitting) != 1 or fitting[0] in selected:
            break
        selected += fitting
    return selected


#: Process-group backends that others bring: ``WORKBENCH_BACKEND=MODULE:NAME`` is taken by CPU ranks in place of gloo. A
#: rank imports the module, which registers the backend (``torch.distributed.Backend.register_backend``).
BACKEND_VARIABLE = "WORKBENCH_BACKEND"


def _cpu_backend() -> str:
    """``gloo``, or the one that the environment asks for.

    Raises:
        InputError: it names no module, or one that is not there.
    """
    setting = os.environ.get(BACKEND_VARIABLE)
    if not setting:
        return "gloo"
    module, colon, name = setting.partition(":")
    if not (module and colon and name):
        raise InputError(
            BACKEND_VARIABLE, setting, "must be MODULE:NAME, a module that registers the backend of that name"
        )
    try:
        is_installed = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        is_installed = False
    if not is_installed:
        raise InputError(
            BACKEND_VARIABLE, setting, f"there is no module {module}; install it or set PYTHONPATH"
        )
    return setting


def load_backend(backend: str) -> str:
    """What torch calls a backend, in a rank: after its module was imported, if it has one."""
    module, _, name = backend.rpartition(":")
    if module:
        importlib.import_module(module)
    return name
