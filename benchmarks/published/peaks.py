"""Constants of ``memory`` from measured peaks, and peaks of other configurations with how far off they may be. Pure.

Measured peaks come in two kinds: with buffers that wait for the device because the host is ahead, and without. Which
of them a measured row is, is told by its peak, and by its time where that is known; of a new row only how often rows
like it kept step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.published.frequencies import Frequencies, Keys, learn
from benchmarks.published.memory import MemoryConstants, held
from tuning.predict.fit.least_squares import fit
from tuning.predict.model.cases import Array, Cases

#: Standard deviations of what is believed of each constant, as logarithms.
BELIEFS = {
    "activation_share": 0.15, "gradient_copies": 0.7, "bucket_copies": 0.7, "logit_copies": 0.4,
    "later_logit_copies": 0.7, "passing_values": 0.7, "message_copies": 0.7, "waiting_values": 0.4,
    "waiting_layers": 0.3, "base_bytes": 0.7,
}  # fmt: skip
_ROUNDS = 3
#: A row says which kind it is where the two differ by this much, as a logarithm.
_TELLS = 0.15
#: A device this full gives waiting buffers back: its allocator synchronizes and tries again.
_FULL = 0.94


class Peaks(NamedTuple):
    """Constants; how often rows keep step; most bytes that a device was seen to hold; and how far peaks are off.

    ``spread`` is a standard deviation of the logarithm, from the middle half of all rows.
    """

    constants: MemoryConstants
    in_step: Frequencies
    limit_bytes: float
    spread: float

    def bytes(self, cases: Cases) -> Array:
        """Peaks of the first stage: of the two that are possible the one that is less wrong on average."""
        ahead, level = _both(cases, self.constants)
        chance = np.where(ahead > _FULL * self.limit_bytes, 1.0, self.in_step.of(keys(cases)))
        likely = np.where(chance * ahead > (1 - chance) * level, level, ahead)
        return np.minimum(likely, self.limit_bytes)


def keys(cases: Cases) -> Keys:
    """What says most of whether the host keeps step: nodes, tp over many nodes, size of a micro-batch, a pipeline."""
    nodes = np.round(np.log2(np.maximum(cases.world / cases.devices_per_node, 1.0)))
    wide = cases.tp >= 4 * cases.devices_per_node
    size = np.minimum(np.log2(cases.micro_batch), 2.0)
    return np.stack([np.maximum(nodes, 1), wide, size, cases.pp > 1], axis=1).astype(np.int64)


def fit_peaks(cases: Cases, peaks: Array, stalled: Array | None = None) -> Peaks:
    """From measured peaks in bytes of first stages. ``stalled``: 1 or 0 where time tells, NaN elsewhere.

    Raises:
        ValueError: there is no row.
    """
    constants = MemoryConstants()
    in_step = _in_step(cases, peaks, constants)
    for _ in range(_ROUNDS):
        constants = _fitted(cases, peaks, in_step, constants)
        in_step = _in_step(cases, peaks, constants)
    told = _told(cases, constants, in_step, stalled)
    off = np.log(held(cases, "first", constants, 1 - in_step).bytes / peaks)
    low, high = np.quantile(off, [0.25, 0.75])
    return Peaks(constants, learn(keys(cases), told), float(peaks.max()), float(high - low) / 1.349)


def _fitted(cases: Cases, peaks: Array, in_step: Array, start: MemoryConstants) -> MemoryConstants:
    def residuals(constants: MemoryConstants) -> Array:
        return np.asarray(np.log(held(cases, "first", constants, 1 - in_step).bytes / peaks), np.float64)

    return fit(residuals, start, BELIEFS).constants


def _both(cases: Cases, constants: MemoryConstants) -> tuple[Array, Array]:
    """With all that can wait, and with nothing of it."""
    return held(cases, "first", constants, 1.0).bytes, held(cases, "first", constants, 0.0).bytes


def _in_step(cases: Cases, peaks: Array, constants: MemoryConstants) -> Array:
    """1 where a measured peak is nearer to what nothing waiting gives."""
    ahead, level = (np.abs(np.log(one / peaks)) for one in _both(cases, constants))
    return np.where(level < ahead, 1.0, 0.0)


def _told(cases: Cases, constants: MemoryConstants, in_step: Array, stalled: Array | None) -> Array:
    """What is known of rows: by time in a pipeline, else by their peak where it can tell."""
    ahead, level = _both(cases, constants)
    by_peak = np.where(np.log(ahead / level) > _TELLS, in_step, np.nan)
    if stalled is None:
        return by_peak
    return np.where(np.isfinite(stalled) & (cases.pp > 1), stalled, by_peak)
