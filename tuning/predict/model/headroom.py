"""Whether what a rank holds fits on its device: an allowance for what no formula counts, and a probability. Pure.

``engine.footprint.footprint`` counts parameters, gradients, optimizer, activations and messages. A device also holds
kernels' workspace and the allocator's gaps: an allowance that is believed, or learned from runs. On a GPU its context
and the buffers of NCCL's communicators come on top (``engine.footprint.device_overhead``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.footprint.device_overhead import DeviceOverhead, device_overhead, layout_overhead, nccl_settings
from tuning.predict.model.cases import Array, Cases

GIB = 2**30
#: Workspace and gaps as a share of what is counted, and the upper end of 90 %; the lower one is nothing.
WORKSPACE_SHARE, _HIGH_SHARE = 0.03, 0.10
#: On a CPU a rank's libraries take this beside; there is no context.
CPU_BYTES, _HIGH_CPU_BYTES = GIB // 2, GIB
#: Half of the middle 90 % of a normal distribution, in standard deviations.
HALF_OF_90_PERCENT = 1.645
SAID = (
    "memory: counted bytes, with 3 % (at most 10 %) for workspace and the allocator's gaps, and on a CPU half a GiB "
    "(at most 1) for libraries; believed, not measured"
)
#: A layout is safe where it runs out of memory with at most this probability.
SAFE = 0.05


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is held beside counted bytes: libraries, ``context_bytes`` (none on a GPU, where the allocator does not see
    them), and ``share`` of what is counted.

    ``least_context_bytes`` and ``most_context_bytes`` are the ends of 90 %. ``error`` is that of counted bytes with
    their share, as a natural logarithm, on ``trials`` that were left out; above the ``counted_bytes`` that these went
    to, the share is anything up to 10 % again.
    """

    context_bytes: float
    most_context_bytes: float
    least_context_bytes: float = 0.0
    share: float = WORKSPACE_SHARE
    error: float = 0.0
    counted_bytes: float = 0.0
    trials: int = 0
    description: str = SAID

    def median(self, counted: Array) -> Array:
        """Bytes at the peak."""
        return counted * (1 + self.share) + self.context_bytes

    def ends(self, counted: Array) -> tuple[Array, Array]:
        """Of 90 %."""
        beyond = np.maximum(counted - self.counted_bytes, 0.0)
        corrected = (counted - beyond) * (1 + self.share)
        fewest, most = 1 + min(self.share, 0.0), 1 + max(self.share, _HIGH_SHARE)
        low = (corrected + fewest * beyond) * math.exp(-self.error) + self.least_context_bytes
        return low, (corrected + most * beyond) * math.exp(self.error) + self.most_context_bytes


ON_GPU = Allowance(0.0, 0.0)
ON_CPU = Allowance(CPU_BYTES, _HIGH_CPU_BYTES)


class MemoryPrediction(NamedTuple):
    """Bytes at the peak with the range of 90 %, and the probability that they are more than the device has."""

    median: Array
    low: Array
    high: Array
    probability: Array


class OutsideAllocator(NamedTuple):
    """Bytes outside the allocator, with the range of 90 %."""

    median: Array | float = 0.0
    low: Array | float = 0.0
    high: Array | float = 0.0


#: Of a CPU.
NOTHING = OutsideAllocator()


def predict_memory(
    counted: Array, limit: float, allowance: Allowance = ON_GPU, outside: OutsideAllocator = NOTHING
) -> MemoryPrediction:
    """Of counted bytes on a device with ``limit`` bytes; logarithms are taken to be normal above the median."""
    median, (low, high) = allowance.median(counted) + outside.median, allowance.ends(counted)
    low, high = low + outside.low, high + outside.high
    deviation = np.log(high / median) / HALF_OF_90_PERCENT
    beyond = np.log(limit / median) / deviation
    return MemoryPrediction(median, low, high, _tail_probability(beyond))


def _tail_probability(away: Array) -> Array:
    """Probability that a normal value is so many standard deviations above its mean, or more."""
    from scipy.special import ndtr  # takes 0.2 s to load, and most commands predict nothing

    return np.asarray(ndtr(-away), np.float64)


OUTSIDE_SAID = (
    "outside torch's allocator: a CUDA context and NCCL's buffers, counted from NCCL's source and believed channels; "
    "never measured by us: compare with what `workbench show` prints of a finished run"
)


def rank_overhead(config: RunConfig, on_cpu: bool) -> DeviceOverhead:
    """What one rank holds outside of the allocator; a rank on a CPU nothing."""
    return DeviceOverhead() if on_cpu else device_overhead(config)


def overhead_columns(overheads: Sequence[DeviceOverhead]) -> OutsideAllocator:
    """Of many ranks as columns."""
    rows = np.array(
        [(overhead.likely, overhead.low, overhead.high) for overhead in overheads], np.float64
    ).reshape(-1, 3)
    return OutsideAllocator(*rows.T)


def case_overhead(cases: Cases, base: RunConfig, on_cpu: bool) -> OutsideAllocator:
    """Outside of the allocator, of layouts of a plan: ``base`` with other dp, tp, pp and ZeRO stages."""
    if on_cpu:
        return NOTHING
    columns = np.stack([cases.dp, cases.tp, cases.pp, cases.zero_stage], axis=1).astype(np.int64)
    kinds, row_of_case = np.unique(columns, axis=0, return_inverse=True)
    layout, wanted = layout_of(base), nccl_settings(base)
    names = ("dp", "tp", "pp", "zero_stage")
    layouts = [replace(layout, **dict(zip(names, kind, strict=True))) for kind in kinds.tolist()]
    columns_of_kinds = overhead_columns([layout_overhead(layout, wanted) for layout in layouts])
    return OutsideAllocator(*(np.asarray(column)[row_of_case.ravel()] for column in columns_of_kinds))
