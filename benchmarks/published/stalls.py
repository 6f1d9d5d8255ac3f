"""Runs that stall: in a pipeline each message between stages waits far longer than it takes to send. Pure.

In the playbook's table a third of the runs with a pipeline need 0.6 s more for each micro-batch with two stages and
1.2 s with more, whatever the model and its micro-batch: 0.3 s for each message that a stage waits for (two with a
neighbour on one side, four with two). Their peaks lack the buffers that wait where a host runs ahead of its device
(``memory``), so in them the host keeps step. One cause is known: devices so full that the allocator must synchronize.
Of the others only how often they came is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.frequencies import Frequencies, Keys, learn
from benchmarks.published.memory import fullest
from benchmarks.published.peaks import Peaks
from tuning.predict.fit.least_squares import fit
from tuning.predict.model import step_time
from tuning.predict.model.cases import Array, Cases
from tuning.predict.model.constants import LIMITS, Constants
from tuning.predict.model.step_time import Machine

#: What is taken for a stall before one was seen, and what part of it says that a run stalled.
_SECONDS, _PART = 0.3, 0.4
#: A run that takes less than this much longer than without stalls has none.
_LONGER = 1.12
#: A device is crowded that would hold more than this part of what one can, with all that can wait.
_CROWDED = 0.93
_MANY, _MOST = 32, 64
#: Constants without stalls: fitted again so often, to rows that are at most this much slower, as a logarithm.
_ROUNDS, _SLOWER = 2, 0.45


class Stalls(NamedTuple):
    """Seconds that a message waits, and how often runs stalled."""

    seconds: float
    chance: Frequencies

    def likely(self, cases: Cases, crowded: NDArray[np.bool_]) -> Array:
        """Probability of each configuration: 0 on one node that is not crowded."""
        never = (_nodes(cases) <= 1) & ~crowded
        return np.where(never, 0.0, self.chance.of(keys(cases, crowded)))

    def slowed(self, cases: Cases, without: Array, crowded: NDArray[np.bool_]) -> Array:
        """Seconds of a step, the geometric mean over stalling and not; ``without`` are those of one that does not."""
        longer = self.slow(cases, without) / without
        return np.asarray(without * longer ** self.likely(cases, crowded), np.float64)

    def slow(self, cases: Cases, without: Array) -> Array:
        """Seconds of a step that stalls."""
        return np.asarray(without + self.seconds * messages(cases), np.float64)

    def median(self, cases: Cases, without: Array, crowded: NDArray[np.bool_]) -> Array:
        """Seconds of a step that half of the runs stay under: those of one that stalls where more do than not."""
        more = self.likely(cases, crowded) > 0.5
        return np.where(more, self.slow(cases, without), without)


def messages(cases: Cases) -> Array:
    """Messages that the busiest stage waits for in a step: of each micro-batch one each way to each neighbour.

    A run without a pipeline that is slow waits as long for each micro-batch as one with more than two stages.
    """
    return cases.micro_batches * np.where(cases.pp == 2, 2.0, 4.0)


def crowded(cases: Cases, peaks: Peaks) -> NDArray[np.bool_]:
    """Configurations whose fullest device has no room for buffers that wait."""
    return np.asarray(fullest(cases, peaks.constants, 1.0) > _CROWDED * peaks.limit_bytes, np.bool_)


def keys(cases: Cases, crowded: NDArray[np.bool_]) -> Keys:
    """What says most: crowded devices, 64 nodes, tp over 4 nodes, whole optimizer states on many replicas, 32 nodes,
    more than one sequence a micro-batch. First whether there is a pipeline.
    """
    nodes, wide = _nodes(cases), cases.tp >= 4 * cases.devices_per_node
    whole = (cases.zero_stage == 0) & (cases.dp > 1)
    columns = (cases.pp > 1, crowded, nodes >= _MOST, wide, whole, nodes >= _MANY, cases.micro_batch > 1)
    return np.asarray(np.stack(columns, axis=1), np.int64)


def stalled(cases: Cases, seconds: Array, without: Array, wait: float = _SECONDS) -> Array:
    """1 where measured ``seconds`` of a step say that it stalled, 0 where not."""
    each = (seconds - without) / messages(cases)
    happened = (each > _PART * wait) & (seconds > _LONGER * without)
    return happened.astype(np.float64)


def fit_stalls(cases: Cases, seconds: Array, without: Array, crowded: NDArray[np.bool_]) -> Stalls:
    """From measured seconds of a step and those predicted without stalls.

    Raises:
        ValueError: no row is on more than one node.
    """
    happened = stalled(cases, seconds, without)
    slow = happened == 1
    each = (seconds - without)[slow] / messages(cases)[slow]
    wait = float(np.median(each)) if slow.any() else 0.0
    known = np.where((_nodes(cases) > 1) | crowded, happened, np.nan)
    return Stalls(wait, learn(keys(cases, crowded), known))


def fit_without(
    cases: Cases, seconds: Array, machine: Machine, start: Constants, free: Mapping[str, float]
) -> Constants:
    """Constants of ``cost`` from the rows that do not stall: not far slower than fitted ones."""
    kept = np.full(len(cases), True)
    for _ in range(_ROUNDS + 1):
        constants = _fitted(cases.take(kept), seconds[kept], machine, start, free)
        kept = np.log(seconds / step_time.step(cases, machine, constants).seconds) < _SLOWER
    return constants


def _fitted(
    cases: Cases, seconds: Array, machine: Machine, start: Constants, free: Mapping[str, float]
) -> Constants:
    count = len(seconds)
    many = cases.take(np.tile(np.arange(count), len(free)))

    def residuals(tried: Constants) -> Array:
        return np.asarray(np.log(step_time.step(cases, machine, tried).seconds / seconds), np.float64)

    def rows(tried: Sequence[Constants]) -> Array:
        columns: dict[str, Any] = {
            field.name: np.repeat([getattr(one, field.name) for one in tried], count)
            for field in fields(start)
        }
        found = step_time.step(many, machine, replace(start, **columns)).seconds
        return np.asarray(np.log(found.reshape(len(tried), count) / seconds), np.float64)

    return fit(residuals, start, free, rows, limits=LIMITS).constants


def _nodes(cases: Cases) -> Array:
    return np.ceil(cases.world / cases.devices_per_node)
