"""What this machine can do, one line each: ok, missing, or worth a note, and why."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.config.errors import InputError
from workbench.export import targets

if TYPE_CHECKING:
    from profilers.gpu.library import GpuLibrary

Status = Literal["ok", "missing", "note"]

PACKAGES = ("streamlit", "plotly", "optuna", "numpy", "pyarrow", "pydantic", "msgspec", "psutil")
_GIB = 2**30
_ROOM_BYTES = 2 * _GIB
_UNTRIED = "which we have never run on an AMD GPU"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing. ``needed``: without it nothing can be trained."""

    name: str
    status: Status
    value: str
    why: str = ""
    needed: bool = False


def examine(home: Path) -> list[Check]:
    """Every check, in the order people read them."""
    checks = [_python(), *_torch(), *_gpus(), _processors(), _memory(), _compiler(), _namespaces()]
    return [*checks, _chromium(), _home(home), _calibration(home), *_packages(), *_export_targets()]


def document(home: Path, checks: list[Check]) -> dict[str, Any]:
    """The JSON of ``doctor``."""
    return {"home": str(home), "usable": usable(checks), "checks": [asdict(check) for check in checks]}


def usable(checks: list[Check]) -> bool:
    """Whether training can run here at all."""
    return not any(check.needed and check.status == "missing" for check in checks)


def _python() -> Check:
    version = platform.python_version()
    return Check("python", "ok", version, sys.executable, needed=True)


def _torch() -> Iterator[Check]:
    """Asks torch itself, which takes a second or two to load."""
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        yield Check("torch", "missing", "", str(error), needed=True)
        return
    hip, cuda = torch.version.hip, torch.version.cuda
    build_text = (
        f"built for {f'ROCm {hip}' if hip else f'CUDA {cuda}'}" if hip or cuda else "built without CUDA"
    )
    yield Check("torch", "ok", str(torch.__version__), build_text, needed=True)
    yield _backend("gloo", dist.is_gloo_available(), "ranks on the CPU", is_needed=True)
    purpose = f"one GPU per rank; it is RCCL here, {_UNTRIED}" if hip else "one GPU per rank"
    yield _backend("nccl", dist.is_nccl_available(), purpose)


def _backend(name: str, is_there: bool, purpose: str, is_needed: bool = False) -> Check:
    if is_there:
        return Check(name, "ok", "available", purpose, is_needed)
    return Check(name, "missing", "", f"this build of torch has no {name} ({purpose})", is_needed)


def _gpus() -> Iterator[Check]:
    from engine.run.devices import selection
    from profilers.gpu import detection

    library = detection.open_library()
    try:
        names, hidden = selection.names(library), selection.describe_hidden_gpus(library)
        if not names:
            yield Check("gpu", "missing", "", library.reason or f"no GPU to use{hidden}")
            return
        kinds = ", ".join(f"{count} x {name}" for name, count in Counter(names).items())
        notes = list(_gpu_notes(library))
        why = f"driver {library.driver_version or 'of unknown version'}{hidden}"
        if library.vendor == "AMD":
            why += f"; read by {library.library}, {_UNTRIED}"
        yield Check("gpu", "note" if notes else "ok", kinds, "; ".join([why, *notes]))
    finally:
        library.close()
    yield _torch_on(len(names))


def _torch_on(count: int) -> Check:
    """Takes some seconds, and a little memory of each GPU for as long."""
    from engine.run.devices import torch_gpus

    answer = torch_gpus.ask()
    if reason := answer.why_not(count):
        return Check("torch on gpu", "missing", "", reason)
    nccl = "RCCL" if (answer.built_for or "").startswith("ROCm") else "NCCL"
    return Check("torch on gpu", "ok", f"{count} of {count} compute", f"{answer.build}, {nccl} {answer.nccl}")


def _gpu_notes(library: GpuLibrary) -> Iterator[str]:
    """What is amiss with GPUs: one that does not answer, or that is divided into parts (MIG)."""
    for gpu in range(library.device_count):
        if library.is_divided(gpu):
            yield f"GPU {gpu} is divided into parts (MIG)"
    for _, data in library.error_transitions():
        yield f"GPU {data['gpu']}: {data['error']}"


def _processors() -> Check:
    core_count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Check(
        "cpu", "ok", f"{core_count} cores", f"{platform.machine()}, {platform.system()} {platform.release()}"
    )


def _memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    return Check(
        "memory", "ok", f"{memory.total / _GIB:.1f} GiB", f"{memory.available / _GIB:.1f} GiB free now"
    )


def _compiler() -> Check:
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return Check("c++ compiler", "ok", path, "compile: true works on the CPU")
    return Check("c++ compiler", "missing", "", "compile: true needs one on the CPU; install g++")


def _namespaces() -> Check:
    from engine.run.netns import unavailability

    if reason := unavailability():
        return Check("network namespaces", "missing", "", reason)
    return Check("network namespaces", "ok", "may be made", "links of a chosen bandwidth between ranks")


def _chromium() -> Check:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return Check("chromium", "ok", path, "browser tests can run")
    return Check("chromium", "missing", "", "only the browser tests need it")


def _home(home: Path) -> Check:
    existing = next(path for path in (home, *home.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check("home", "missing", str(home), f"cannot be written ({error.strerror})", needed=True)
    status: Status = "ok" if free > _ROOM_BYTES else "note"
    return Check("home", status, str(home), f"writable, {free / _GIB:.1f} GiB free", needed=True)


def _calibration(home: Path) -> Check:
    from engine.run.calibration.store import COMMAND
    from workbench.home.calibrations import find_calibration

    lookup = find_calibration(home)
    if lookup.calibration is None:
        return Check("calibration", "note", "stale" if lookup.stale else "none", lookup.reason or "")
    day = time.strftime("%d %b %Y %H:%M", time.localtime(lookup.calibration.measured_unix))
    return Check("calibration", "ok", lookup.calibration.fingerprint.id, f"{COMMAND}, {day}")


def _packages() -> Iterator[Check]:
    for name in PACKAGES:
        try:
            yield Check(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "missing", "", "reinstall with: make")


def _export_targets() -> Iterator[Check]:
    """What a winner can be exported to, and whether its trainer is installed here; that is not needed to export."""
    for target in targets.TARGETS:
        name = f"export {target.name}"
        try:
            package = target.required_package()
            version = "built in" if package is None else importlib.metadata.version(package)
            yield Check(name, "ok", version)
        except InputError as error:
            yield Check(name, "missing", "", str(error))
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, "note", "", f"{package} is not installed here; exporting works without it")
