"""CO2 (arXiv 2401.16265): replicas average weights once a round, beside the next one, and use the mean a round late.

At the end of round t, with x[t] the weights at its start (the same on all replicas, but for ``keep_local``), a[t-1] the
mean of all replicas' weights at the end of round t - 1, and s the staleness gap:

    m = clip(beta m + (x[t-1] - a[t-1]) / s, -phi, phi), element by element
    paper:       x[t+1] = x[t-1] - alpha m
    delayed:     x[t+1] = x[t] - alpha m
    keep_local:  x[t+1] = x[t] - alpha m, and each replica adds what it did by itself in round t

The paper's listing was not at hand. ``paper`` is put together from what its abstract, its reviews and its public code
say: with alpha = 1 and beta = 0 every other round goes on from the other one's mean, so that two trainings take turns.
``delayed`` applies each round's progress once, a round late, as SlowMo (arXiv 1910.00643) would with a stale
gradient. ``keep_local`` works on from what a replica has, as CoCoD-SGD (arXiv 1906.12043) does, and averages the
progress of rounds rather than weights. The clip acts on m, in units of weights; the paper's optimizer may scale it.

Round 0 has no mean to use: replicas go back to their start (``keep_local``: go on), and its mean comes a round later.
With ZeRO each rank keeps and updates a slice of x and m, and what it makes is gathered beside the round as well.

The staleness gap s says how far replicas have moved on since the average that arrives was taken. ``CO2`` (arXiv
2401.16265) divides by a staleness gap of at least 1. Its definition was not at hand, and its public code takes a
constant; so this is the form of gap-aware training (arXiv 1909.10802): 1 + distance / typical distance, where the
distance is between the starts of two rounds that follow each other, and the typical one its mean over all rounds so
far. With steady progress that is about 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from engine.comm import host_values
from engine.comm.channel import all_reduce_scalar
from engine.config.methods.outer_methods import Gap
from engine.parallel.local_sgd.rounds import (
    AppliedAverage,
    FlatVector,
    LoopInput,
    Mean,
    Rounds,
    Vector,
    swap_values,
    vector_values,
)


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

    def measure(self, weights: Tensor, before: Tensor) -> None:
        """At a round's start, on all ranks; both vectors [elements that this rank updates]."""
        if self._kind == "none":
            return
        distances = torch.tensor(self._distances(weights - before), dtype=torch.float64)
        if distances.any():
            self.rounds += 1
            self.typical += (distances - self.typical) / self.rounds
        self._ratios = torch.where(self.typical > 0, distances / self.typical, 0.0)

    def lessen(self, pull: Tensor, weights: Tensor, before: Tensor) -> None:
        """Divide ``pull`` by the gap that was measured last, in place."""
        if self._kind == "none":
            return
        for place, part in enumerate(self._parts):
            index = place if len(self.typical) > 1 else 0
            if self._kind != "element":
                pull[part].div_(1 + float(self._ratios[index]))
            elif self.typical[index] > 0:
                pull[part].div_(
                    (weights[part] - before[part]).abs_().div_(float(self.typical[index])).add_(1)
                )

    def _distances(self, moved: Tensor) -> list[float]:
        if self._kind == "element":
            return [host_values.number(moved[part].abs().mean()) for part in self._parts]
        norms = [host_values.number(moved[part].norm()) for part in self._parts]
        return norms if self._kind == "tensor" else [math.sqrt(self._total([norm**2 for norm in norms]))]


class Co2Loop:
    """``_here`` and ``_before`` are this rank's parts of x[t] and x[t-1]; the buffer holds what the next round begins
    with, once the background's work is done. ``_begun`` are the weights of this replica at the round's start.
    """

    def __init__(self, inputs: LoopInput) -> None:
        rank, link, settings = inputs.rank, inputs.link, inputs.settings
        self._rank, self._link, self._settings = rank, link, settings
        self._rounds, self._keeps = Rounds(rank, inputs.bring), settings.variant == "keep_local"
        self._sharded = rank.layout.zero_stage >= 1
        self._flat = FlatVector(inputs.pieces, rank.device, link.size if self._sharded else 1)
        self._mean = Mean(self._flat, link, self._sharded)
        self._here, self._before = self._mean.own_part(), self._mean.own_part()
        self._momentum = torch.zeros_like(self._here)
        self._begun = self._flat.copy() if self._keeps else None
        places, origin = list(self._mean.parts()), self._mean.start
        parts = [slice(part.start - origin, part.stop - origin) for part in places]
        counts = {id(piece): share for piece, share in zip(inputs.pieces, inputs.shares, strict=True)}
        self._shares = [counts[id(part.piece)] for part in places]
        self._gap = StalenessGap(settings.gap, parts, self._total)
        self._sent = torch.zeros((), dtype=torch.int64)

    def step(self) -> None:
        """After an inner step."""
        if self._rounds.is_over():
            self._turn(keeps=self._keeps)
            self._rounds.next_round()

    def drain(self) -> None:
        """Wait for the mean, and take the outer step that it is for."""
        self._rounds.background.finish()

    def finish(self) -> None:
        """A round that was cut short ends; then the last mean is used at once."""
        if int(self._rounds.since):
            self._turn(keeps=self._keeps)
            self._rounds.next_round()
        waits = self._rounds.background.finish()
        self._flat.map_weights(self._mean.buffer, vector_values)
        self._rounds.bring()
        if int(self._sent):
            self._rounds.report(
                AppliedAverage(int(self._rounds.round), int(self._rounds.round) - 1, 0, waits)
            )
        self._rounds.report_ready(wait=True)

    def publish_weights(self, weights_alone: bool) -> None:
        """Everything begins at the weights; or what the next round begins with is spread again."""
        if not weights_alone:
            self._rounds.background.begin(self._mean.gather_parts(self._here))
            self._rounds.background.finish()
            return
        self._mean.buffer = self._flat.copy()
        for part in (self._here, self._before):
            part.copy_(self._mean.own_part())
        if self._begun is not None:
            self._begun.copy_(self._mean.buffer)

    def vectors(self) -> Iterator[Vector]:
        """Both starts and the momentum; and where this replica's round began."""
        parts, origin = list(self._mean.parts()), self._mean.start
        yield Vector("start", self._here, parts, origin)
        yield Vector("start_before", self._before, parts, origin)
        yield Vector("momentum", self._momentum, parts, origin)
        if self._begun is not None:
            parts = list(self._flat.parts(0, self._flat.size))
            yield Vector("begun", self._begun, parts, shared=False)

    def counters(self) -> dict[str, Tensor]:
        """Where in a round the run is, and typical distances between rounds."""
        rounds, me = self._rounds, self._rank.rank
        return {
            "round": rounds.round,
            "since": rounds.since,
            "sent": self._sent,
            f"typical_distances.{me}": self._gap.typical,
            f"distances.{me}": self._gap.rounds,
        }

    def _turn(self, keeps: bool) -> None:
        """One round ends and the next one begins."""
        waits = self._rounds.background.finish()
        self._settings = self._rounds.settings  # of the mean that is begun below
        round_ = int(self._rounds.round)
        if keeps:
            self._go_on_from_here()
        else:
            self._flat.map_weights(self._mean.buffer, swap_values)
        self._rounds.bring()
        if int(self._sent):
            self._rounds.report(AppliedAverage(round_, round_ - 1, int(self._rounds.since), waits))
        self._gap.measure(self._here, self._before)
        self._sent.fill_(1)
        self._rounds.background.begin(self._mean.work(self._update))

    def _go_on_from_here(self) -> None:
        """Weights become the common start and this round's own progress, which is what is sent."""
        assert self._begun is not None
        begun = self._begun
        for part in self._flat.parts(0, self._flat.size):
            part_slice = slice(part.start, part.stop)
            weight = part.piece.weight.detach().view(-1)
            progress = weight.to(begun.device) - begun[part_slice]
            begun[part_slice] = self._mean.buffer[part_slice] + progress
            weight.copy_(begun[part_slice])
            self._mean.buffer[part_slice] = progress

    def _update(self, mean: Tensor) -> Tensor:
        """The outer step on this rank's part: the start of the round after the running one."""
        settings = self._settings
        pull = mean.neg() if self._keeps else self._before - mean
        self._gap.lessen(pull, self._here, self._before)
        self._momentum.mul_(settings.momentum).add_(pull)
        if settings.clip is not None:
            self._momentum.clamp_(-settings.clip, settings.clip)
        base = self._before if settings.variant == "paper" else self._here
        new = torch.sub(base, self._momentum, alpha=settings.learning_rate)
        self._before, self._here = self._here, self._before
        self._here.copy_(new)
        return new

    def _total(self, squares: list[float]) -> float:
        """Sum over everything that a replica updates, each element once."""
        own_square = sum(share * square for share, square in zip(self._shares, squares, strict=True))
        total = all_reduce_scalar(own_square, self._rank.groups.norm)
        return self._link.total(total, self._rank.device) if self._sharded else total
