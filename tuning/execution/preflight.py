"""Whether this machine can measure what a study asks for, told before anything runs."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import InputError
from engine.footprint.device_peaks import peak_flops, why_unknown
from engine.run.devices import selection
from engine.run.devices.selection import Devices
from profilers.gpu import detection
from profilers.gpu.library import GpuLibrary
from tuning.analysis.constraints import BOUNDS
from tuning.analysis.measures import MEMORY_HEADROOM
from tuning.spec.study_file import StudyFile

_OTHERS = "; ask for tokens_per_second, step_seconds or peak_memory_bytes"


def check(file: StudyFile, library: GpuLibrary | None = None) -> None:
    """Refuse an objective or a constraint of which every trial would say that it was not measured.

    Raises:
        InputError: the first of them, with the reason.
    """
    library = library or detection.open_library()
    devices = selection.choose(file.config, file.ranks, library)
    for field, value, measure in _requested_measures(file):
        reason = _reason(measure, file, devices, library)
        if reason:
            raise InputError(field, value, reason)


def weighs_memory(file: StudyFile) -> bool:
    """Whether memory decides anything in a study."""
    return any(
        measure in ("peak_memory_bytes", MEMORY_HEADROOM) for _, _, measure in _requested_measures(file)
    )


def _requested_measures(file: StudyFile) -> Iterator[tuple[str, object, str]]:
    for aim in file.aims:
        yield "objective", aim.name, aim.name
    for name, bound in (file.constraints.bounds() if file.constraints else {}).items():
        yield f"constraints.{name}", bound, BOUNDS[name].measure


def _reason(measure: str, file: StudyFile, devices: Devices, library: GpuLibrary) -> str:
    """Why a measure cannot be had here, and what to do; empty if it can."""
    if measure == "joules_per_token":
        return _no_energy(file, devices, library)
    if measure == "mfu":
        return _no_peak(file, devices)
    if measure in ("peak_memory_bytes", MEMORY_HEADROOM) and not file.config.profile.memory:
        return "is not measured with base.profile.memory=false; leave that out"
    return ""


def _no_energy(file: StudyFile, devices: Devices, library: GpuLibrary) -> str:
    if devices.kind != "cuda":
        return f"joules are not measured on this machine: ranks run on CPUs ({devices.reason}){_OTHERS}"
    for gpu in selection.visible(library)[: file.ranks]:
        if gpu is None or not library.tells_energy(gpu):
            name = "a part of a GPU (MIG)" if gpu is None else library.name(gpu)
            return f"joules are not measured on this machine: the driver does not report those of {name}{_OTHERS}"
    return ""


def _no_peak(file: StudyFile, devices: Devices) -> str:
    for name in devices.names or ("cpu",):
        if peak_flops(name, file.config.precision) is None:
            return f"MFU is not measured on this machine: {why_unknown(name, file.config.precision)}{_OTHERS}"
    return ""
