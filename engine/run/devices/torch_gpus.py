"""What torch can do with this machine's GPUs, asked in a process of its own; loads no torch itself.

The driver may show GPUs that this build of torch cannot use. Only CUDA tells, and who has asked CUDA holds memory on
every GPU and must not fork: so no controller and no page asks it. ``engine.run.devices.gpu_probe`` does, once for each
environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from signal import Signals

import msgspec

#: torch from a cold network disk, and a context on each of 8 GPUs; one that answers does so within some seconds.
LIMIT_SECONDS = 120.0
_COMMAND = [sys.executable, "-P", "-m", "engine.run.devices.gpu_probe"]
#: Variables that change which GPUs torch finds, or which libraries it loads.
_MATTERS = ("CUDA_", "HIP_", "ROCR_", "HSA_", "NVIDIA_", "GPU_", "LD_")
#: How CUDA and HIP say that none of the build's kernels are for a GPU.
_NO_KERNELS = ("no kernel image", "invalid device function")

_answers: dict[tuple[tuple[str, str], ...], TorchGpus] = {}
_asking = threading.Lock()


class TorchGpu(msgspec.Struct, frozen=True):
    """A GPU as torch finds it. ``architecture`` is its own, as in ``TorchGpus.architectures``; ``error`` is what became
    of an allocation and a kernel on it, None if they went well or were not tried.
    """

    name: str
    uuid: str | None = None
    architecture: str = ""
    memory_bytes: int = 0
    error: str | None = None


class TorchGpus(msgspec.Struct, frozen=True):
    """An answer. ``built_for`` is such as "CUDA 13.0", None of a CPU build; ``nccl`` the version of NCCL, or on AMD of
    RCCL, None of a build without; ``architectures`` have kernels in it; ``error`` is why no GPU is found.
    """

    torch: str = ""
    built_for: str | None = None
    nccl: str | None = None
    architectures: tuple[str, ...] = ()
    gpus: tuple[TorchGpu, ...] = ()
    error: str | None = None

    @property
    def build(self) -> str:
        """Which torch this is."""
        return f"torch {self.torch} (built for {self.built_for or 'CPUs only'})"

    def why_not(self, count: int) -> str | None:
        """Why the first ``count`` GPUs cannot be used, with NCCL between them, in one line; None if they can."""
        if self.torch and self.built_for is None:
            return (
                f"this is a CPU build of torch ({self.torch}); install one that is built for the GPUs' driver"
            )
        if self.error is not None:
            return f"{self.build} cannot use GPUs: {self.error}" if self.torch else self.error
        if self.nccl is None:
            return f"{self.build} has no NCCL, which ranks on GPUs talk over"
        if len(self.gpus) < count:
            return f"{self.build} finds {len(self.gpus):,} of {count:,} GPUs"
        return next(filter(None, (self._broken(number) for number in range(count))), None)

    def _broken(self, number: int) -> str | None:
        gpu = self.gpus[number]
        if gpu.error is None:
            return None
        if any(words in gpu.error for words in _NO_KERNELS):
            has = " ".join(self.architectures) or "none"
            return f"{self.build} has no kernels for {gpu.name} ({gpu.architecture}); it has {has}"
        return f"{self.build} cannot compute on GPU {number} ({gpu.name}): {gpu.error}"


def ask() -> TorchGpus:
    """The answer for this process's environment, which is kept as long as the process lives: all its runs are to use
    the same devices. Takes seconds the first time, and never fails.
    """
    key = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_MATTERS)))
    with _asking:
        if key not in _answers:
            _answers[key] = _probe(_COMMAND, LIMIT_SECONDS)
        return _answers[key]


def _probe(command: list[str], limit_seconds: float) -> TorchGpus:
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return _silent(f"no answer in {limit_seconds:g} s")
    except OSError as error:
        return _silent(str(error))
    lines = process.stdout.splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else b"", type=TorchGpus)
    except msgspec.MsgspecError:
        if process.returncode < 0:
            return _silent(f"the process that asked it died of {Signals(-process.returncode).name}")
        errors = process.stderr.decode(errors="replace").strip().splitlines()
        return _silent(errors[-1] if errors else f"the process that asked it ended with {process.returncode}")


def _silent(why: str) -> TorchGpus:
    return TorchGpus(error=f"torch did not tell whether it can use the GPUs: {why}")


def first_sentence(text: str) -> str:
    """Of an error of torch, which goes on with advice over several lines."""
    line = next(iter(text.strip().splitlines()), "")
    return re.split(r"\.\s+(?=[A-Z])|\.$", line)[0]
