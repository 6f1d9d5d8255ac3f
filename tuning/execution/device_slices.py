"""Several controllers of one study on one host: which cores or GPUs each of them has, and when that cannot be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config.errors import InputError, several
from engine.config.run_config import RunConfig
from engine.run.devices import selection
from profilers.gpu import detection
from tuning.storage import study_folder
from tuning.storage.controllers import LeasedTrial, is_here, present_controllers, select_local, words

FIELD = "side_by_side"


@dataclass(frozen=True, slots=True)
class Slice:
    """What one controller and its ranks may use: processor cores, or GPUs by the driver's numbers."""

    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()

    def take(self) -> None:
        """Keep this process, and all that it starts from now on, to it."""
        if self.gpus:
            for name, value in selection.visibility_variables(self.gpus).items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        else:
            os.sched_setaffinity(0, self.cores)


@dataclass(frozen=True, slots=True)
class HostDevices:
    """What this host can deal: ``noun`` is GPUs (by the driver's numbers, None for a part of one) or cores."""

    noun: str
    devices: tuple[int | None, ...]

    def most(self, ranks: int) -> int:
        """How many trials of so many ranks can run at once; one always can."""
        return max(1, len(self.devices) // ranks)


def host_devices(ranks: int, config: RunConfig) -> HostDevices:
    """The devices that trials of a study use here.

    Raises:
        InputError: GPUs were asked for by name and there are none, or too few.
    """
    driver = detection.open_library()
    try:
        if selection.choose(config, ranks, driver).kind == "cuda":
            return HostDevices("GPUs", tuple(selection.visible(driver)))
    finally:
        driver.close()
    return HostDevices("cores", tuple(sorted(os.sched_getaffinity(0))) if _can_deal_cores() else ())


def check_alone(folder: Path, controllers: int) -> None:
    """Raise if another controller of the study lives on this host: who came first may use every device.

    Raises:
        InputError: there is one.
    """
    others = [member for member in present_controllers(study_folder.latest(folder)) if is_here(member)]
    if others:
        remedy = f"{words(others[0])} measures this study, perhaps on the same devices; join it with 1"
        raise InputError(FIELD, controllers, remedy)


def slices(controllers: int, ranks: int, config: RunConfig, simulated: bool = False) -> list[Slice]:
    """One for each controller, all of the same size. ``ranks`` is the most that a trial has.

    Raises:
        InputError: there are too few devices, or trials would share a network.
    """
    if simulated:
        raise InputError(FIELD, controllers, "a simulated trial takes milliseconds; leave it out")
    if config.lab.is_wanted:
        remedy = "trials in a lab would share the processors that its links are shaped by; leave it out"
        raise InputError(FIELD, controllers, remedy)
    if not _can_deal_cores():
        raise InputError(FIELD, controllers, "cores cannot be dealt on this system; leave it out")
    devices = host_devices(ranks, config)
    whole = [device for device in devices.devices if device is not None]
    if len(whole) < len(devices.devices):
        raise InputError(FIELD, controllers, "parts of GPUs (MIG) cannot be dealt; leave it out")
    if controllers * ranks > len(whole):
        offered, most = f"{len(whole)} {devices.noun}", devices.most(ranks)
        remedy = f"times {several(ranks, 'ranks')} is more than this host's {offered}; at most {most}"
        raise InputError(FIELD, controllers, remedy)
    if devices.noun == "GPUs":
        return [Slice(gpus=part) for part in _parts(whole, ranks, controllers)]
    return [Slice(part) for part in _parts(whole, len(whole) // controllers, controllers)]


def _parts(whole: Sequence[int], size: int, count: int) -> list[tuple[int, ...]]:
    return [tuple(whole[start : start + size]) for start in range(0, count * size, size)]


def _can_deal_cores() -> bool:
    return hasattr(os, "sched_setaffinity")


class ConcurrentTrials:
    """How many other trials of a study ran on this host while one was measured: the mean over looks."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._sum = self._looks = 0

    def look(self, under_way: Sequence[LeasedTrial]) -> None:
        """Count those that run now."""
        self._sum += sum(trial.number != self._number for trial in select_local(under_way))
        self._looks += 1

    def readings(self) -> dict[str, float]:
        """``beside``; nothing of a trial that ran alone."""
        return {"beside": self._sum / self._looks} if self._sum else {}
