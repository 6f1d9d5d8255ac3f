"""Local steps, DiLoCo and streaming DiLoCo: replicas average their weights once a round, in one piece or in fragments.

Local SGD (arXiv 1805.09767) goes on from the mean. DiLoCo (arXiv 2311.08105) takes the way from the last common
weights, the anchor y, to the mean x of all replicas for a gradient, and takes a Nesterov step:

    g = y - x;  m = beta m + g;  y = y - eta (g + beta m)

Streaming DiLoCo (arXiv 2501.18512) does so for each fragment of layers at steps of its own: fragment p of P is sent
(p + 1) H / P steps into a round of H. Its step is taken ``overlap`` steps later, while training goes on, and weights
become ``mixing`` of what they are by then and 1 - mixing of the new y. Layers are dealt to fragments in
turn (the paper's strided fragments); the embedding is in the first one, the last norm and the head in the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine.parallel.data.replica import Piece
from engine.parallel.local_sgd.replica_comm import Link
from engine.parallel.local_sgd.rounds import (
    AppliedAverage,
    FlatVector,
    LoopInput,
    Mean,
    Rounds,
    Settings,
    Vector,
    vector_values,
)

_LAYER = re.compile(r"^blocks\.(\d+)\.")


class Fragment:
    """Some of the pieces, with their anchor and momentum, of which a rank may hold a slice."""

    def __init__(self, flat: FlatVector, link: Link, settings: Settings, sharded: bool) -> None:
        self.flat, self._settings = flat, settings
        self.mean = Mean(flat, link, sharded)
        empty = torch.empty(0, device=self.mean.buffer.device)
        self.anchor = empty if settings.only_averages else self.mean.own_part()
        self.momentum = torch.zeros_like(self.anchor)

    def update(self, mean: Tensor) -> Tensor:
        """The new anchor from this rank's part of the mean."""
        if self._settings.only_averages:
            return mean
        pull = self.anchor - mean
        self.momentum.mul_(self._settings.momentum).add_(pull)
        pull.add_(self.momentum, alpha=self._settings.momentum)
        return self.anchor.sub_(pull, alpha=self._settings.learning_rate)

    def use(self, settings: Settings) -> None:
        """For the updates that are begun from now on."""
        self._settings = settings

    def begin_anew(self) -> None:
        """The anchor is where the weights are."""
        self.mean.buffer = self.flat.copy()
        if not self._settings.only_averages:
            self.anchor.copy_(self.mean.own_part())

    def vectors(self) -> Iterator[Vector]:
        """Anchor and momentum."""
        if not self._settings.only_averages:
            parts, origin = list(self.mean.parts()), self.mean.start
            yield Vector("anchor", self.anchor, parts, origin)
            yield Vector("momentum", self.momentum, parts, origin)


class FragmentLoop:
    """An outer loop over one or several fragments."""

    def __init__(self, inputs: LoopInput) -> None:
        rank, link, settings = inputs.rank, inputs.link, inputs.settings
        self._rounds = Rounds(rank, inputs.bring)
        sharded, layers = rank.layout.zero_stage >= 1, settings.fragments
        ranks = link.size if sharded else 1
        dealt = (
            FlatVector(pieces, rank.device, ranks) for pieces in _split_into_fragments(inputs.pieces, layers)
        )
        self._fragments = [Fragment(flat, link, settings, sharded) if flat.size else None for flat in dealt]
        #: The fragment that is under way, counted from 1 (0: none), the round it was sent in, and for how many steps.
        self._under_way, self._sent_in, self._age = (torch.zeros((), dtype=torch.int64) for _ in range(3))

    def step(self) -> None:
        """After an inner step."""
        rounds, over, settings = self._rounds, self._rounds.is_over(), self._rounds.settings
        if int(self._under_way):
            self._age += 1
            if int(self._age) >= settings.overlap:
                self._take(settings.mixing)
        for place in range(len(self._fragments)):
            if self._is_due(place):
                self._take(settings.mixing)
                self._send(place)
                if not settings.overlap:
                    self._take(settings.mixing)
        if over:
            rounds.next_round()

    def drain(self) -> None:
        """Wait for the fragment that is under way."""
        self._rounds.background.finish()

    def finish(self) -> None:
        """Every fragment once more, with nothing of a replica's own; there is no need to after a whole round of one."""
        self._take(0.0)
        if len(self._fragments) > 1 or int(self._rounds.since):
            for place in range(len(self._fragments)):
                self._send(place)
                self._take(0.0)
        self._rounds.report_ready(wait=True)

    def publish_weights(self, weights_alone: bool) -> None:
        """Anchors begin at the weights; or what was under way is spread again from the anchor that it had made."""
        for fragment in filter(None, self._fragments):
            if weights_alone:
                fragment.begin_anew()
        if not weights_alone and int(self._under_way):
            under_way = self._fragments[int(self._under_way) - 1]
            if under_way is not None:
                self._rounds.background.begin(under_way.mean.gather_parts(under_way.anchor))
                self._rounds.background.finish()

    def vectors(self) -> Iterator[Vector]:
        for fragment in filter(None, self._fragments):
            yield from fragment.vectors()

    def counters(self) -> dict[str, Tensor]:
        """Where in a round the run is, and what is under way."""
        rounds = self._rounds
        return {
            "round": rounds.round,
            "since": rounds.since,
            "under_way": self._under_way,
            "sent_in": self._sent_in,
            "age": self._age,
        }

    def _is_due(self, place: int) -> bool:
        """Also the last one where a period got shorter than the steps that a round has behind it."""
        rounds, period, count = self._rounds, self._rounds.period, len(self._fragments)
        offset = (place + 1) * period // count
        return int(rounds.since) == offset or (offset == period and int(rounds.since) > period)

    def _send(self, place: int) -> None:
        fragment = self._fragments[place]
        self._under_way.fill_(place + 1)
        self._sent_in.copy_(self._rounds.round)
        self._age.zero_()
        if fragment is not None:
            fragment.use(self._rounds.settings)
            fragment.mean.buffer.copy_(fragment.flat.copy())
            self._rounds.background.begin(fragment.mean.work(fragment.update))

    def _take(self, mixing: float) -> None:
        """Put what is under way into the weights."""
        if not int(self._under_way):
            return
        place, fragment = int(self._under_way) - 1, self._fragments[int(self._under_way) - 1]
        self._under_way.zero_()
        waits = self._rounds.background.finish()
        if fragment is not None:
            fragment.flat.map_weights(
                fragment.mean.buffer,
                (lambda weights, new: torch.lerp(new, weights, mixing)) if mixing else vector_values,
            )
            self._rounds.bring()
        average = AppliedAverage(int(self._rounds.round), int(self._sent_in), int(self._age), waits, place)
        self._rounds.report(average)


def _split_into_fragments(pieces: Sequence[Piece], fragments: int) -> list[list[Piece]]:
    dealt: list[list[Piece]] = [[] for _ in range(fragments)]
    for piece in pieces:
        layer = _LAYER.match(piece.name)
        last = not piece.name.startswith(("embedding", "first"))
        place = int(layer.group(1)) % fragments if layer else (fragments - 1) * last
        dealt[place].append(piece)
    return dealt
