"""Operators, and how their tensors may lie on the ranks of each axis, after OneFlow's SBP (arXiv 2110.15032, tables 1
and 3).

Activations are [sequence, batch, width], matrices [in, out]. A tensor that lies as S has a gradient that lies as
``S.of_gradient``, so what an operator asks of gradients follows from what it asks of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from engine.comm.signatures import PARTIAL, REPLICATED, Signature, bytes_between, split
from tuning.predict.placement.signatures.boxing import Axis, Signatures, boxing_cost, size_beside

SEQUENCE, BATCH, WIDTH = split(0), split(1), split(2)
#: Of a matrix.
ROWS, COLUMNS = split(0), split(1)


class Message(NamedTuple):
    """A tensor of so many bytes, brought from one signature to another."""

    source: Signature
    target: Signature
    whole_bytes: float


@dataclass(frozen=True, slots=True)
class OperatorSharding:
    """How an operator works on one axis: how it reads its inputs and its matrix, how its output lies then, and what is
    sent because of it once in a micro-batch, beside those.
    """

    inputs: tuple[Signature, ...]
    output: Signature
    matrix: Signature | None = None
    sends: Message | None = None

    @property
    def divides(self) -> bool:
        """Whether each rank computes only its part."""
        lies = [*self.inputs, self.output, *((self.matrix,) if self.matrix else ())]
        return any(signature.kind == "split" for signature in lies)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run an operator: a way for each axis, the outermost first."""

    ways: tuple[OperatorSharding, ...]

    @property
    def inputs(self) -> tuple[Signatures, ...]:
        """How it reads each input."""
        return tuple(zip(*(way.inputs for way in self.ways), strict=True))

    @property
    def output(self) -> Signatures:
        """How its output lies then."""
        return tuple(way.output for way in self.ways)

    @property
    def matrix(self) -> Signatures | None:
        """How its matrix lies; None of an operator without one."""
        lies = tuple(way.matrix for way in self.ways if way.matrix is not None)
        return lies or None


def choices(*ways: Sequence[OperatorSharding]) -> tuple[Choice, ...]:
    """All combinations of the ways on each axis."""
    return tuple(Choice(combined) for combined in product(*ways))


@dataclass(frozen=True, slots=True)
class Operator:
    """``inputs`` are places of other operators in the list. They come to it ``forwards`` times: once more where
    backward brings them again. ``bytes_`` are those of its whole output, ``matrix_bytes`` those of its matrix's whole
    gradient, ``seconds`` what forward and backward take undivided.
    """

    name: str
    choices: tuple[Choice, ...]
    inputs: tuple[int, ...] = ()
    bytes_: float = 0.0
    matrix_bytes: float = 0.0
    seconds: float = 0.0
    forwards: float = 1.0


#: Ways of a product with a matrix that divide its columns, and its rows.
COLUMN = OperatorSharding((REPLICATED,), WIDTH, COLUMNS)
ROW = OperatorSharding((WIDTH,), PARTIAL, ROWS)


def same_signatures(inputs: int, *signatures: Signature) -> tuple[OperatorSharding, ...]:
    """Of an operator that reads all inputs, and gives its output, as one of these."""
    return tuple(OperatorSharding((signature,) * inputs, signature) for signature in signatures)


@dataclass(frozen=True, slots=True)
class Price:
    """What all that is sent costs, in the unit of the ``axes``. The gradient of a matrix is brought together once in
    ``micro_batches``, on each axis on which the matrix is whole, one axis after the other, and in buckets with others,
    so that no start of a message is its own.
    """

    axes: tuple[Axis, ...]
    micro_batches: int = 1

    def edge(
        self, source: Signatures, target: Signatures, whole_bytes: float, forwards: float = 1.0
    ) -> float:
        """Of a tensor on its way to an operator, ``forwards`` times, and of its gradient on the way back."""
        forth = boxing_cost(self.axes, source, target, whole_bytes)
        back = boxing_cost(self.axes, of_gradient(target), of_gradient(source), whole_bytes)
        return forwards * forth + back

    def operator_cost(self, operator: Operator, choice: Choice) -> float:
        """Computation, what the choice sends by itself, and the gradient of the matrix."""
        parts, sent = 1, 0.0
        for place, (axis, way) in enumerate(zip(self.axes, choice.ways, strict=True)):
            parts *= axis.ranks if way.divides else 1
            if way.sends is not None:
                source, target, whole_bytes = way.sends
                whole_bytes *= size_beside(self.axes, _tokens(choice.output), place)
                sent += axis.cost(bytes_between(source, target, whole_bytes, axis.ranks))
        return operator.seconds / parts + sent + self._gradient(operator, choice) / self.micro_batches

    def _gradient(self, operator: Operator, choice: Choice) -> float:
        lies, cost = choice.matrix, 0.0
        for place, axis in enumerate(self.axes if lies else ()):
            assert lies is not None
            if lies[place] == REPLICATED:
                size = operator.matrix_bytes * axis.matrix_share * size_beside(self.axes, lies, place)
                cost += bytes_between(PARTIAL, REPLICATED, size, axis.ranks) * axis.per_byte
        return cost


def of_gradient(lies: Signatures) -> Signatures:
    """How the gradient of a tensor that lies so does."""
    return tuple(signature.of_gradient for signature in lies)


def _tokens(lies: Signatures) -> Signatures:
    """How something lies that has the tokens of an activation, but not its width."""
    return tuple(REPLICATED if signature == WIDTH else signature for signature in lies)
