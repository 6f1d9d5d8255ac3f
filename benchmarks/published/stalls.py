"""Runs that stall: their host waits in each message or collective far longer than it takes to send. Pure.

In the playbook's table a third of the runs with a pipeline need 0.6 s more for each micro-batch with two stages and
1.2 s with more, whatever the model and its micro-batch: 0.3 s for each message that a stage waits for (two with a
neighbour on one side, four with two). Runs without a pipeline that are slow need some 20 ms more for each layer of each
micro-batch with tp inside of a node, 40 ms over two nodes and 70 ms over four: 3 ms for each collective of tp, as
much again for each doubling of its nodes; and without ZeRO as long for each bucket of gradients.
Their peaks lack the buffers that wait where a host runs ahead of its device
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
from tuning.predict.model import network, step_time
from tuning.predict.model.cases import Array, Cases
from tuning.predict.model.constants import LIMITS, Constants
from tuning.predict.model.step_time import Machine

#: What part of a wait says that a run stalled; how many runs that did tell how long it is; bytes of a bucket.
_PART, _ENOUGH, _BUCKET = 0.4, 3, 25e6
#: Collectives of tp in a layer: a gather and a scatter around attention, as many around the rest, and backward.
_OF_TP = 8
#: A run that takes less than this much longer than without stalls has none.
_LONGER = 1.12
#: A device is crowded that would hold more than this part of what one can, with all that can wait.
_CROWDED = 0.93
#: So many nodes are few; and the places of ``keys`` that are counts.
_FEW, _COUNTS = 16, (2,)
#: Constants without stalls: fitted again so often, to rows that are at most this much slower, as a logarithm.
_ROUNDS, _SLOWER = 2, 0.45


class Waits(NamedTuple):
    """Seconds that a stalled run waits: in a pipeline for each message, without one for each collective and again for
    each doubling of its nodes.
    """

    message: float
    collective: float

    def of(self, cases: Cases) -> Array:
        """Of a step."""
        return np.asarray(self.message * messages(cases) + self.collective * collectives(cases), np.float64)


#: What is taken for a stall before one was seen, and between what waits of a host lie: from a launch that the device is
#: waited for, some 0.1 ms, to a time-out of seconds.
BEFORE = Waits(0.3, 3e-3)
LEAST, MOST = Waits(1e-2, 1e-4), Waits(3.0, 5e-2)


class Stalls(NamedTuple):
    """How long stalled runs wait, and how often runs stalled."""

    waits: Waits
    chance: Frequencies

    def likely(self, cases: Cases, crowded: NDArray[np.bool_]) -> Array:
        """Probability of each configuration: 0 on one node that is not crowded, and of those that wait for nobody."""
        never = ((_nodes(cases) <= 1) & ~crowded) | (self.waits.of(cases) == 0)
        return np.where(never, 0.0, self.chance.of(keys(cases, crowded)))

    def slowed(self, cases: Cases, without: Array, crowded: NDArray[np.bool_]) -> Array:
        """Seconds of a step, the geometric mean over stalling and not; ``without`` are those of one that does not."""
        return np.asarray(
            without * np.exp(self.likely(cases, crowded) * self.slower(cases, without)), np.float64
        )

    def slower(self, cases: Cases, without: Array) -> Array:
        """How much longer a step takes that stalls, as a logarithm."""
        return np.asarray(np.log1p(self.waits.of(cases) / without), np.float64)

    def slow(self, cases: Cases, without: Array) -> Array:
        """Seconds of a step that stalls."""
        return np.asarray(without + self.waits.of(cases), np.float64)

    def median(self, cases: Cases, without: Array, crowded: NDArray[np.bool_]) -> Array:
        """Seconds of a step that half of the runs stay under: those of one that stalls where more do than not."""
        more = self.likely(cases, crowded) > 0.5
        return np.where(more, self.slow(cases, without), without)


def messages(cases: Cases) -> Array:
    """Messages of a pipeline that gate a step: of each micro-batch one each way to each neighbour of the busiest stage,
    and one from stage to stage until the last one has begun.
    """
    each = np.where(cases.pp == 2, 2.0, 4.0)
    return np.where(cases.pp > 1, cases.micro_batches * each + cases.pp - 1, 0.0)


def collectives(cases: Cases) -> Array:
    """Collectives of a step without a pipeline, each counted once and again for each doubling of its nodes: tp's, and
    dp's of each bucket where gradients are summed and not scattered.
    """
    each = (
        _OF_TP * cases.layers * cases.micro_batches * (1 + _doublings(cases, cases.tp, np.ones(len(cases))))
    )
    buckets = step_time.rank_elements(cases) * cases.reduce_bytes / _BUCKET
    summed = buckets * (1 + _doublings(cases, cases.dp * cases.cp, cases.tp))
    of_dp = np.where((cases.zero_stage == 0) & (cases.dp > 1), summed, 0.0)
    return np.where(cases.pp > 1, 0.0, np.where(cases.tp > 1, each, 0.0) + of_dp)


def _doublings(cases: Cases, ranks: Array, apart: Array) -> Array:
    """Of the nodes that a group of ranks spans."""
    return np.log2(network.reach(cases, ranks, apart).nodes)


def crowded(cases: Cases, peaks: Peaks) -> NDArray[np.bool_]:
    """Configurations whose fullest device has no room for buffers that wait."""
    return np.asarray(fullest(cases, peaks.constants, 1.0) > _CROWDED * peaks.limit_bytes, np.bool_)


def keys(cases: Cases, crowded: NDArray[np.bool_]) -> Keys:
    """What says most: a pipeline, crowded devices, up to 16, 32 or 64 nodes, whole optimizer states on many replicas,
    tp over 4 nodes, more than one sequence a micro-batch.
    """
    whole = (cases.zero_stage == 0) & (cases.dp > 1)
    large = np.clip(np.round(np.log2(_nodes(cases) / _FEW)), 0, 2)
    wide = cases.tp >= 4 * cases.devices_per_node
    columns = (cases.pp > 1, crowded, large, whole, wide, cases.micro_batch > 1)
    return np.asarray(np.stack(columns, axis=1), np.int64)


def stalled(cases: Cases, seconds: Array, without: Array, waits: Waits = BEFORE) -> Array:
    """1 where measured ``seconds`` of a step say that it stalled, 0 where not."""
    longer = waits.of(cases)
    happened = (longer > 0) & (seconds - without > _PART * longer) & (seconds > _LONGER * without)
    return happened.astype(np.float64)


def fit_stalls(cases: Cases, seconds: Array, without: Array, crowded: NDArray[np.bool_]) -> Stalls:
    """From measured seconds of a step and those predicted without stalls.

    Raises:
        ValueError: no row is on more than one node.
    """
    happened = stalled(cases, seconds, without)
    longer, counted = seconds - without, np.stack([messages(cases), collectives(cases)])
    each = [longer[rows] / count[rows] for count in counted for rows in [(happened == 1) & (count > 0)]]
    told = [
        np.median(one) if len(one) >= _ENOUGH else before for one, before in zip(each, BEFORE, strict=True)
    ]
    known = np.where((_nodes(cases) > 1) | crowded, happened, np.nan)
    waits = Waits(*np.clip(told, LEAST, MOST).tolist())
    return Stalls(waits, learn(keys(cases, crowded), known, _COUNTS))


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
