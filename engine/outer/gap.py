"""How far replicas have moved on since the average that arrives was taken, and by how much it counts less for that.

``CO2`` (arXiv 2401.16265) divides by a staleness gap of at least 1. Its definition was not at hand, and its public code
takes a constant; so this is the form of gap-aware training (arXiv 1909.10802): 1 + distance / typical distance, where
the distance is between the starts of two rounds that follow each other, and the typical one its mean over all rounds
so far. With steady progress that is about 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine import on_host
from engine.outer.settings import Gap


class StalenessGap:
    """One number for everything (``scalar``), for each part (``tensor``), or for each ``element`` of a part, measured
    against the typical element of its part. A part is what this rank updates of one parameter.
    """

    def __init__(self, kind: Gap, parts: Sequence[slice], total: Callable[[list[float]], float]) -> None:
        self._kind, self._parts, self._total = kind, parts, total
        #: Mean over rounds [parts] or [1], and the number of rounds [] that it is of.
        self.typical = torch.zeros(1 if kind == "scalar" else len(parts), dtype=torch.float64)
        self.rounds = torch.zeros((), dtype=torch.int64)
        self._ratios = torch.zeros_like(self.typical)

    def measure(self, here: Tensor, before: Tensor) -> None:
        """At a round's start, on all ranks; both vectors [elements that this rank updates]."""
        if self._kind == "none":
            return
        distances = torch.tensor(self._distances(here - before), dtype=torch.float64)
        if distances.any():
            self.rounds += 1
            self.typical += (distances - self.typical) / self.rounds
        self._ratios = torch.where(self.typical > 0, distances / self.typical, 0.0)

    def lessen(self, pull: Tensor, here: Tensor, before: Tensor) -> None:
        """Divide ``pull`` by the gap that was measured last, in place."""
        if self._kind == "none":
            return
        for place, part in enumerate(self._parts):
            own = place if len(self.typical) > 1 else 0
            if self._kind != "element":
                pull[part].div_(1 + float(self._ratios[own]))
            elif self.typical[own] > 0:
                pull[part].div_((here[part] - before[part]).abs_().div_(float(self.typical[own])).add_(1))

    def _distances(self, moved: Tensor) -> list[float]:
        if self._kind == "element":
            return [on_host.number(moved[part].abs().mean()) for part in self._parts]
        norms = [on_host.number(moved[part].norm()) for part in self._parts]
        return norms if self._kind == "tensor" else [math.sqrt(self._total([norm**2 for norm in norms]))]
