"""Operators, and how their tensors may lie on the ranks of one axis, after OneFlow's SBP (arXiv 2110.15032, table 1).

Activations are [sequence, batch, width], matrices [in, out]. A tensor that lies as S has a gradient that lies as
``S.of_gradient``, so what an operator asks of gradients follows from what it asks of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.comm.signatures import BROADCAST, PARTIAL, Signature, bytes_between, split

SEQUENCE, WIDTH = split(0), split(2)
#: Of a matrix.
ROWS, COLUMNS = split(0), split(1)


class Message(NamedTuple):
    """A tensor of so many bytes, brought from one signature to another."""

    source: Signature
    target: Signature
    whole_bytes: float


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run an operator: how it reads its inputs and its matrix, how its output lies then, and what is sent
    because of it once in a micro-batch, beside those.
    """

    inputs: tuple[Signature, ...]
    output: Signature
    matrix: Signature | None = None
    sends: Message | None = None

    @property
    def divides(self) -> bool:
        """Whether each rank computes only its part."""
        lies = [*self.inputs, self.output, *((self.matrix,) if self.matrix else ())]
        return any(one.kind == "split" for one in lies)


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


#: Ways of a product with a matrix: rows of the input, columns of the matrix, both along what is summed; or on every
#: rank alike, and with a sum that is put off.
DATA = Choice((SEQUENCE,), SEQUENCE, BROADCAST)
COLUMN = Choice((BROADCAST,), WIDTH, COLUMNS)
ROW = Choice((WIDTH,), PARTIAL, ROWS)
ALIKE = Choice((BROADCAST,), BROADCAST, BROADCAST)
PUT_OFF = Choice((PARTIAL,), PARTIAL, BROADCAST)
PRODUCT = (DATA, COLUMN, ROW, ALIKE, PUT_OFF)


def same(inputs: int, *signatures: Signature) -> tuple[Choice, ...]:
    """Of an operator that reads all inputs, and gives its output, as one of these."""
    return tuple(Choice((one,) * inputs, one) for one in signatures)


#: Value by value; of what is linear a partial one will do.
POINTWISE, SUM = same(1, SEQUENCE, WIDTH, BROADCAST), same(2, SEQUENCE, WIDTH, BROADCAST, PARTIAL)
#: Over the width of each token.
NORM = same(1, SEQUENCE, BROADCAST)
#: Over the sequence, head by head.
ATTENTION = same(1, WIDTH, BROADCAST)


@dataclass(frozen=True, slots=True)
class Price:
    """What a byte that is sent and a message cost, in seconds, on an axis of so many ranks. A gradient of a matrix is
    brought together once in ``micro_batches``.
    """

    ranks: int
    per_byte: float = 1.0
    per_message: float = 0.0
    micro_batches: int = 1

    def transition_price(self, source: Signature, target: Signature, whole_bytes: float) -> float:
        """Of one transition; bytes are those of all ranks together."""
        bytes_ = bytes_between(source, target, whole_bytes, self.ranks)
        return bytes_ * self.per_byte + (self.per_message if bytes_ else 0.0)

    def edge(self, source: Signature, target: Signature, whole_bytes: float, forwards: float = 1.0) -> float:
        """Of a tensor on its way to an operator, ``forwards`` times, and of its gradient on the way back."""
        back = self.transition_price(target.of_gradient, source.of_gradient, whole_bytes)
        return forwards * self.transition_price(source, target, whole_bytes) + back

    def own(self, operator: Operator, choice: Choice) -> float:
        """Computation, what the choice sends by itself, and the gradient of the matrix."""
        own = operator.seconds / (self.ranks if choice.divides else 1)
        if choice.sends is not None:
            own += self.transition_price(*choice.sends)
        if choice.matrix is None:
            return own
        gradient = self.transition_price(choice.matrix.of_gradient, choice.matrix, operator.matrix_bytes)
        return own + gradient / self.micro_batches


def total(operators: Sequence[Operator], chosen: Sequence[int], price: Price) -> float:
    """Cost of all operators together, each with one of its choices by number: seconds of a micro-batch."""
    found = 0.0
    for operator, number in zip(operators, chosen, strict=True):
        choice = operator.choices[number]
        found += price.own(operator, choice)
        for place, target in zip(operator.inputs, choice.inputs, strict=True):
            source = operators[place]
            found += price.edge(
                source.choices[chosen[place]].output, target, source.bytes_, operator.forwards
            )
    return found
