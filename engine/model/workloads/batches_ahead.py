"""Batches that a thread makes before their step: no more than there are registers for them, as OneFlow's actors read
data (arXiv 2110.15032). The next one is begun when one is taken.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from torch import Tensor

from engine.model.stage import Samples

_Pair = tuple[Tensor, Tensor]
#: Its first sample, and how many it has.
_Batch = tuple[int, int]


@dataclass
class PrefetchUse:
    """What making batches ahead was good for: of those ``asked`` for, how many were ``ready``, and how long steps
    ``waited`` for the others, in seconds; what all of them took to make; and how many were made for nothing.
    """

    asked: int = 0
    ready: int = 0
    waited_seconds: float = 0.0
    made_seconds: float = 0.0
    dropped: int = 0


class PrefetchedBatches:
    """The same samples; of training at most ``registers`` batches are made before anybody asks for them. All are made
    on one thread, one after the other, as if no step was between them.
    """

    def __init__(self, samples: Samples, registers: int) -> None:
        self._samples, self.registers, self.use = samples, registers, PrefetchUse()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._coming: deque[tuple[_Batch, Future[_Pair]]] = deque()

    def training(self, first: int, count: int) -> _Pair:
        """As of the samples; what makes them raises here."""
        batch, use = (first, count), self.use
        if self._coming and self._coming[0][0] != batch:
            self._drop()
        was_ahead = bool(self._coming)
        pending = self._coming.popleft()[1] if was_ahead else self._begin(batch)
        use.asked += 1
        use.ready += was_ahead and pending.done()
        began = time.perf_counter()
        try:
            return pending.result()
        finally:
            use.waited_seconds += time.perf_counter() - began

    def validation(self, first: int, count: int) -> _Pair:
        """As of the samples."""
        return self._thread.submit(self._samples.validation, first, count).result()

    def expect(self, first: int, count: int, apart: int) -> None:
        """The next batches begin at ``first`` and so far ``apart``, with ``count`` samples each."""
        wanted = [(first + place * apart, count) for place in range(self.registers)]
        expected = [batch for batch, _ in self._coming]
        if expected != wanted[: len(expected)]:
            self._drop()
            expected = []
        for batch in wanted[len(expected) :]:
            self._coming.append((batch, self._begin(batch)))

    def close(self) -> None:
        """Nobody asks any more; waits for what is being made."""
        for _, pending in self._coming:
            pending.cancel()
        self._thread.shutdown()

    def _begin(self, batch: _Batch) -> Future[_Pair]:
        return self._thread.submit(self._time_making, lambda: self._samples.training(*batch))

    def _time_making(self, make: Callable[[], _Pair]) -> _Pair:
        began = time.perf_counter()
        try:
            return make()
        finally:
            self.use.made_seconds += time.perf_counter() - began

    def _drop(self) -> None:
        """The run went back, or takes other batches now."""
        self.use.dropped += len(self._coming)
        while self._coming:
            self._coming.popleft()[1].cancel()
