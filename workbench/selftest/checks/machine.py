"""Checks of what is there: everything ``doctor`` looks at, versions, and a full reading of every GPU, recorded."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from dataclasses import asdict
from typing import Any

from engine.config.errors import several
from engine.config.run_config import RunConfig
from engine.run.calibration import fingerprint
from engine.run.devices import selection
from profilers.gpu import detection
from profilers.gpu.nvml import Nvml
from profilers.gpu.nvml_call_recorder import NvmlCallRecorder
from workbench.selftest.check_context import CheckContext
from workbench.selftest.redaction import CHECKED, VERSIONS, is_ours
from workbench.selftest.results import Number, Verdict, verdict_of
from workbench.services import doctor

PACKAGE = "training-workbench"
RECORDING = "nvml.tape.json"
_READ_SECONDS, _EVERY_SECONDS = 3.0, 0.1
#: What says how GPUs are wired; its output is kept.
_TOOLS = (("nvidia-smi", "-L"), ("nvidia-smi", "topo", "-m"))
_TOOL_SECONDS = 20.0


def machine(bench: CheckContext) -> Verdict:
    """What training needs is there, and torch can use the GPUs that the driver shows."""
    checks = doctor.examine(bench.home)
    bench.keep("doctor.json", [asdict(check) for check in checks])
    bench.keep(VERSIONS, versions())
    bench.keep("environment.json", environment())
    bench.keep("fingerprint.json", fingerprint.this_machine().as_dict())
    for command in _TOOLS:
        if (output := _output(command)) is not None:
            bench.keep(f"{'-'.join(command).replace('--', '-')}.txt", output)
    problems = [
        f"{check.name}: {check.why}" for check in checks if check.needed and check.status == "missing"
    ]
    driver = detection.open_library()
    visible_count = len(selection.visible(driver))
    usable_count = _usable(visible_count)
    if bench.device != "cpu" and visible_count and not usable_count:
        problems.append(
            f"the driver shows {several(visible_count, 'GPUs')}, and none can be used: {bench.why_not_cuda()}"
        )
    measured: dict[str, Number] = {"gpus_shown_count": visible_count, "gpus_usable_count": usable_count}
    return verdict_of(
        problems, _words(checks, usable_count, selection.describe_hidden_gpus(driver)), measured
    )


def nvml(bench: CheckContext) -> Verdict:
    """Every reading of every GPU for some seconds, as the sampler takes it, recorded for a replay."""
    import pynvml

    recorder = NvmlCallRecorder(pynvml)
    library = Nvml(recorder)
    gpus, deadline = range(library.device_count), time.monotonic() + _READ_SECONDS
    fields: dict[int, set[str]] = {gpu: set() for gpu in gpus}
    while time.monotonic() < deadline:
        for gpu in gpus:
            reading = asdict(library.sample(gpu))
            fields[gpu] |= {name for name, value in reading.items() if value is not None}
        time.sleep(_EVERY_SECONDS)
    missing, driver = library.missing, library.driver_version
    library.close()
    bench.keep(
        RECORDING,
        recorder.as_dict(f"{several(len(gpus), 'GPUs')}, driver {driver}. Written by workbench selftest."),
    )
    bench.keep("missing.txt", "".join(f"{line}\n" for line in missing))
    problems = [
        f"GPU {gpu} tells no {name}"
        for gpu in gpus
        for name in ("memory_used_bytes", "memory_total_bytes")
        if name not in fields[gpu]
    ]
    slowest = max((wall for spans in recorder.seconds.values() for wall, _ in spans), default=0.0)
    measured: dict[str, Number] = {"gpus_count": len(gpus), "slowest_call_seconds": slowest}
    measured |= {f"gpu_{gpu}_fields_count": len(readings) for gpu, readings in fields.items()}
    return verdict_of(
        problems, f"{several(len(gpus), 'GPUs')} read; {len(missing)} functions not answered", measured
    )


def versions() -> dict[str, Any]:
    """Of Python, this package and all that it needs, torch's libraries, the driver and the system."""
    import torch

    packages = [PACKAGE, *_names(importlib.metadata.requires(PACKAGE) or [])]
    on_gpus = torch.version.cuda is not None or torch.version.hip is not None
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _version(name) for name in packages},
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpus else None,
        "driver": detection.open_library().driver_version,
        "nvidia_packages": {
            dist.name: dist.version
            for dist in importlib.metadata.distributions()
            if dist.name.startswith("nvidia-")
        },
    }


def environment() -> dict[str, Any]:
    """Variables of the checked list with their values; of others that act on ranks only the names."""
    return {
        "values": {name: os.environ[name] for name in sorted(CHECKED) if name in os.environ},
        "set_but_not_told": sorted(name for name in os.environ if is_ours(name) and name not in CHECKED),
    }


def _usable(visible_count: int) -> int:
    for count in range(visible_count, 0, -1):
        if selection.choose(RunConfig(), count).kind == "cuda":
            return count
    return 0


def _words(checks: list[doctor.Check], usable_count: int, hidden: str) -> str:
    checks_by_name = {check.name: check for check in checks}
    text = checks_by_name["gpu"].value if usable_count else "no GPU to train on"
    python, torch, cpu = (checks_by_name[name].value for name in ("python", "torch", "cpu"))
    return f"Python {python}, torch {torch}, {cpu}, {text}{hidden}"


def _names(requirements: list[str]) -> list[str]:
    """Without versions, extras and conditions."""
    matches = [re.match(r"[A-Za-z0-9._-]+", line) for line in requirements]
    return sorted({name[0] for name in matches if name})


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(command: tuple[str, ...]) -> str | None:
    """What a tool prints; None if it is not there, or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TOOL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout + process.stderr
