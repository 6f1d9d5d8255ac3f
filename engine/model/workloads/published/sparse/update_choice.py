"""Which layers, and which share of their output channels, are trained within so many bytes: formulas and the choice.

After arXiv 2206.15472: biases move from some layer on, some of these layers' weights are trained too, the head always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

#: Shares of a layer's output channels that a choice may take.
SHARES = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class LayerShape:
    """What bytes depend on; places are those of one sample's channel. The head's ``reads`` is a mean: one place."""

    name: str
    inputs: int
    outputs: int
    size: int
    reads: int
    gives: int
    head: bool = False

    def rows(self, share: float) -> int:
        """Output channels of a share."""
        return math.ceil(share * self.outputs)

    @property
    def row(self) -> int:
        """Weights of an output channel."""
        return self.inputs * self.size**2


class Update(NamedTuple):
    """Biases move from layer ``since`` on; of the layers in ``shares`` weights are trained too."""

    since: int
    shares: Mapping[int, float]


@dataclass(frozen=True)
class Costs:
    """Bytes of training in int8 with micro-batches of so many ``samples``, and ``state`` numbers to each that is
    trained.
    """

    layers: Sequence[LayerShape]
    samples: int
    state: int

    def parts(self, update: Update) -> dict[str, int]:
        """By what they are for: a weight is a byte, a channel has a bias and a worth, a layer two steps."""
        trained = self.numbers(update)
        return {
            "weights": sum(layer.outputs * (layer.row + 8) + 8 for layer in self.layers),
            "activations": self._of_loss() + self._of_passing(update.since)
            + sum(self._of_reading(place) for place in update.shares),
            "gradients": 4 * trained,
            "optimizer": 4 * self.state * trained,
            "channels": sum(self._listed_channels(place, share) for place, share in update.shares.items()),
        }  # fmt: skip

    def total(self, update: Update) -> int:
        """All of them."""
        return sum(self.parts(update).values())

    def numbers(self, update: Update) -> int:
        """That are trained; a float32 of each is what data ranks average."""
        weights = sum(
            self.layers[number].rows(share) * self.layers[number].row
            for number, share in update.shares.items()
        )
        return weights + sum(layer.outputs for layer in self.layers[update.since :])

    def more(self, place: int, share: float) -> int:
        """What a layer's weights add."""
        layer = self.layers[place]
        numbers = layer.rows(share) * layer.row
        return 4 * (1 + self.state) * numbers + self._of_reading(place) + self._listed_channels(place, share)

    def _of_reading(self, place: int) -> int:
        layer = self.layers[place]
        return self.samples * layer.inputs * layer.reads

    def _of_passing(self, since: int) -> int:
        """A bit of each output that a gradient passes."""
        passed = (
            self.samples * layer.outputs * layer.gives for layer in self.layers[since:] if not layer.head
        )
        return sum(math.ceil(count / 8) for count in passed)

    def _of_loss(self) -> int:
        """Logarithms of all classes' probabilities, the classes, and a number."""
        return self.samples * (4 * self.layers[-1].outputs + 8) + 4

    def _listed_channels(self, place: int, share: float) -> int:
        """Numbers of channels that are not all."""
        layer = self.layers[place]
        rows = layer.rows(share)
        return 0 if rows == layer.outputs else rows


@dataclass(frozen=True)
class Gains:
    """How much lower the held-out loss gets beside training the head alone: by moving biases from each layer on, and
    by training a share of a layer's weights with these.
    """

    biases: Sequence[float]
    weights: Mapping[tuple[int, float], float]


def choose_best(costs: Costs, gains: Gains, budget: int) -> Update | None:
    """The update of the highest sum of gains in so many bytes, None if not even the head fits; exact.

    For each first layer it is a knapsack with one share of each layer; states that cost no less and gain no more than
    another are dropped.
    """
    head = len(costs.layers) - 1
    best: tuple[float, Update] | None = None
    for since in range(head + 1):
        fixed = costs.total(Update(since, {head: 1.0}))
        if fixed > budget:
            continue
        chosen_layers = _knapsack(costs, gains, range(since, head), budget - fixed)
        gain = gains.biases[since] + chosen_layers[0]
        if best is None or gain > best[0]:
            best = gain, Update(since, {**chosen_layers[1], head: 1.0})
    return None if best is None else best[1]


def _knapsack(costs: Costs, gains: Gains, places: range, room: int) -> tuple[float, dict[int, float]]:
    states: list[tuple[int, float, dict[int, float]]] = [(0, 0.0, {})]
    for place in places:
        items = [(costs.more(place, share), gains.weights[place, share], share) for share in SHARES]
        wider = [
            (used + bytes_, gained + gain, {**chosen, place: share})
            for used, gained, chosen in states
            for bytes_, gain, share in items
            if used + bytes_ <= room
        ]
        states = _worth_keeping([*states, *wider])
    return states[-1][1:]


def _worth_keeping(
    states: list[tuple[int, float, dict[int, float]]],
) -> list[tuple[int, float, dict[int, float]]]:
    """The cheapest first, each gaining more than all before it."""
    undominated: list[tuple[int, float, dict[int, float]]] = []
    for state in sorted(states, key=lambda state: (state[0], -state[1])):
        if not undominated or state[1] > undominated[-1][1]:
            undominated.append(state)
    return undominated


def choose_last_layers(costs: Costs, budget: int) -> Update | None:
    """As many last layers as fit, whole, and the largest share of the one before them."""
    head = len(costs.layers) - 1
    update: Update | None = None
    for since in range(head, -1, -1):
        whole = dict.fromkeys(range(since, head + 1), 1.0)
        for share in reversed(SHARES if since < head else SHARES[-1:]):
            wider = Update(since, whole | {since: share})
            if costs.total(wider) <= budget:
                update = wider
                break
        if update is None or update.shares.get(since) != 1.0:
            return update
    return update
