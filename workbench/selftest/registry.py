"""Every check in the order in which they run: its name, what it proves, what it needs, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.selftest.check_context import CheckContext
from workbench.selftest.checks import faults, layouts, machine, measurements, one_rank, shared_gpu, warm_ranks
from workbench.selftest.results import Verdict


def anywhere(bench: CheckContext) -> str | None:
    """Nothing but what the machine check looks at."""
    return None


def driver(bench: CheckContext) -> str | None:
    """A driver that shows a GPU."""
    from profilers.gpu.nvml import Nvml

    library = Nvml()
    return library.reason or (None if library.device_count else "the driver shows no GPU")


def one_gpu(bench: CheckContext) -> str | None:
    """A GPU that torch can use."""
    return bench.why_not_cuda()


def two_devices(bench: CheckContext) -> str | None:
    """Two GPUs, or CPU ranks in their place unless GPUs were asked for."""
    return bench.why_not_cuda(2) if bench.device == "cuda" else None


def all_devices(bench: CheckContext) -> str | None:
    """As many GPUs as ranks were asked for, or CPU ranks in their place."""
    return bench.why_not_cuda(bench.ranks) if bench.device == "cuda" else None


@dataclass(frozen=True, slots=True)
class Check:
    """``function`` is imported by its name in a process of its own, which is ended after ``limit_seconds``;
    ``needs`` says why it is not possible here, None if it is.
    """

    name: str
    title: str
    proves: str
    function: Callable[[CheckContext], Verdict]
    needs: Callable[[CheckContext], str | None] = anywhere
    limit_seconds: float = 240.0


CHECKS: tuple[Check, ...] = (
    Check(
        "machine",
        "Environment",
        "Python, torch, the backends and a folder for runs work, and torch can use the GPUs that the driver shows.",
        machine.machine,
    ),
    Check(
        "nvml",
        "Readings of the GPUs",
        "The driver answers ten readings a second; its answers are saved for a replay.",
        machine.nvml,
        driver,
    ),
    Check(
        "gpu_kernels",
        "Kernels on one GPU",
        "A GPU computes the losses that the CPU does: dense and with experts, in fp32 and within rounding in bf16.",
        one_rank.gpu_kernels,
        one_gpu,
    ),
    Check(
        "memory_savings",
        "Memory of one rank",
        "Recomputing, offloading, ZeRO 3 and the order of layers change no loss, and each run reports its peak.",
        one_rank.memory_savings,
    ),
    Check(
        "two_on_one_gpu",
        "Two ranks on one GPU",
        "Every collective, axis and schedule runs over NCCL on two ranks, as far as one GPU can show.",
        shared_gpu.two_on_one_gpu,
        one_gpu,
        480.0,
    ),
    Check(
        "exact_data",
        "Data parallelism is exact",
        "dp and ZeRO 1 to 3 have the losses and gradient norms of one process.",
        layouts.exact_data,
        all_devices,
    ),
    Check(
        "exact_tensor",
        "Tensor parallelism is exact",
        "tp, in less memory and with its messages in parts, has the losses and gradient norms of one process.",
        layouts.exact_tensor,
        all_devices,
    ),
    Check(
        "exact_context",
        "Context parallelism is exact",
        "Ring and Ulysses have the losses and gradient norms of one process.",
        layouts.exact_context,
        all_devices,
    ),
    Check(
        "exact_expert",
        "Expert parallelism is exact",
        "Experts on different ranks have the losses and gradient norms of one process.",
        layouts.exact_expert,
        all_devices,
    ),
    Check(
        "exact_pipeline",
        "Pipelines are exact",
        "Every schedule has the losses and gradient norms of one process, and none hangs.",
        layouts.exact_pipeline,
        all_devices,
    ),
    Check(
        "out_of_memory",
        "A rank without memory",
        "A stage that does not fit ends the run as out of memory at once, names the rank, and spares the next run.",
        faults.out_of_memory,
        two_devices,
    ),
    Check(
        "killed_rank",
        "A killed rank",
        "A rank that is killed from outside is named with its signal, and the next run is good.",
        faults.killed_rank,
        two_devices,
    ),
    Check(
        "hung_rank",
        "A hung rank",
        "A rank that stands still is named with the collective that the others wait in, and the next run is good.",
        faults.hung_rank,
        two_devices,
    ),
    Check(
        "equal_peaks",
        "Equal peaks of equal trials",
        "Warm ranks leave nothing of a trial behind: peaks of memory can be compared.",
        warm_ranks.equal_peaks,
        two_devices,
    ),
    Check(
        "variables",
        "Environment variables act",
        "The ranks themselves prove that what a run sets takes effect, also in their second run.",
        warm_ranks.variables,
        two_devices,
    ),
    Check(
        "trace",
        "A trace on demand",
        "torch.profiler records a step of all ranks on request, and the run continues.",
        measurements.trace,
        two_devices,
    ),
    Check(
        "recording_cost",
        "Cost of recording",
        "Recording adds at most 1 % to a step; a machine that is too noisy to tell is reported as such.",
        measurements.recording_cost,
        two_devices,
    ),
    Check(
        "calibration",
        "A quick calibration",
        "Matrix products, memory and every collective can be measured, and their times are plausible.",
        measurements.calibration,
        all_devices,
    ),
)
NAMES = tuple(check.name for check in CHECKS)
