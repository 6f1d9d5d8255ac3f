"""Learns what ranks hold beside counted bytes from the peaks of finished runs. Pure.

On a CPU a peak is a rank's resident set: counted bytes x a share, and its libraries, torch's among them, whose pages
each rank counts as its own. On a GPU it is the allocator's, in which a context and NCCL's buffers are not: that part
stays believed (``engine.footprint.device_overhead``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import several
from tuning.predict.fit.calibrate import small_sample_factor
from tuning.predict.fit.least_squares import fit
from tuning.predict.model.cases import Array
from tuning.predict.model.headroom import ON_CPU, ON_GPU, WORKSPACE_SHARE, Allowance

#: Fewer trials teach nothing: of six left-out errors the largest is about the end of 90 %.
LEAST = 6
#: Least half-width of an interval, as a natural logarithm.
_LEAST_ERROR = 0.02
_PERCENTILE = 90
#: How far beliefs move, as ``constants.FREE``: libraries by a factor of two, counted bytes by a tenth.
_FREE: Mapping[str, float] = {"context_bytes": 0.7, "scale": 0.1}
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class _MemoryConstants:
    """Bytes beside what is counted, and what that is multiplied with."""

    context_bytes: float
    scale: float


class Peaks(NamedTuple):
    """Counted and measured bytes of the fullest rank, and the group of each trial, which is left out as a whole."""

    counted_bytes: Array
    measured_bytes: Array
    groups: NDArray[np.int_]


def learn_allowance(peaks: Peaks, runs: int, on_cpu: bool) -> Allowance:
    """From at least ``LEAST`` configurations, of which there were so many runs."""
    fitted, error = fit_allowance(peaks, on_cpu), cross_validation_error(peaks, on_cpu)
    share = fitted.scale - 1
    words = f"learned from {several(runs, 'runs')}, left-out error ±{100 * math.expm1(error):.0f} %"
    error *= small_sample_factor(max(2, len(np.unique(peaks.groups))))
    context, ends = ON_GPU.context_bytes, (ON_GPU.least_context_bytes, ON_GPU.most_context_bytes)
    text = f"memory: counted bytes {100 * share:+.1f} % as the allocator's peak, {words}"
    if on_cpu:
        context = fitted.context_bytes
        ends = context * math.exp(-error), context * math.exp(error)
        libraries = f"{context / _MIB:,.0f} MiB of libraries, as a resident set has them"
        text = f"memory: counted bytes {100 * share:+.1f} % and {libraries}; {words}"
    return Allowance(
        context_bytes=context,
        most_context_bytes=ends[1],
        least_context_bytes=ends[0],
        share=share,
        error=error,
        counted_bytes=float(peaks.counted_bytes.max()),
        trials=runs,
        description=text,
    )


def fit_allowance(peaks: Peaks, on_cpu: bool) -> _MemoryConstants:
    """Robust, and held near what is believed."""

    def log_errors(fitted: _MemoryConstants) -> Array:
        return np.log(_predict_peaks(peaks.counted_bytes, fitted, on_cpu) / peaks.measured_bytes)

    free = _FREE if on_cpu else {"scale": _FREE["scale"]}
    return fit(log_errors, _MemoryConstants(ON_CPU.context_bytes, 1 + WORKSPACE_SHARE), free).constants


def cross_validation_error(peaks: Peaks, on_cpu: bool) -> float:
    """End of 90 % of the size of log(predicted / measured), each group predicted from the others."""
    errors = np.zeros(len(peaks.counted_bytes))
    groups = peaks.groups
    if len(np.unique(groups)) < 2:
        groups = np.arange(len(errors))
    for name in np.unique(groups):
        out = groups == name
        fitted = fit_allowance(Peaks(*(column[~out] for column in peaks)), on_cpu)
        errors[out] = np.log(
            _predict_peaks(peaks.counted_bytes[out], fitted, on_cpu) / peaks.measured_bytes[out]
        )
    return max(_LEAST_ERROR, float(np.percentile(np.abs(errors), _PERCENTILE)))


def _predict_peaks(counted: Array, fitted: _MemoryConstants, on_cpu: bool) -> Array:
    return counted * fitted.scale + (fitted.context_bytes if on_cpu else 0.0)
