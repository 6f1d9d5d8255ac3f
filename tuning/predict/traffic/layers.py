"""The parameters of a stage, and what its layers send, forward and backward: tp, cp and ep.

Parameters are in the order in which the engine's decoder has them.

Autograd runs the nodes of a backward in the reverse order of their making, and takes over a complete gradient at once.
So a backward is the list of pieces from the last to the first, each with what it sends in return.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from engine.config.formulas.tied_parameters import sharing_of
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import TensorPart
from engine.footprint.activations import Part, Recompute
from engine.footprint.side_factors import SideFactor, adapts, side_factors
from engine.footprint.weights import column_ranks, is_replicated, tensor_ranks
from engine.schedules.registry import SCHEDULES
from profilers.records.operations import ALL_GATHER, REDUCE_SCATTER
from tuning.predict.traffic.calls import FLOAT32, GradientCompletion, Item, Wire

#: What lies outside of blocks.
ROOT = -1


class Parameter(NamedTuple):
    """A parameter as one rank holds it before ZeRO splits it.

    ``block`` is its unit's place in the stage, that of its block or of several that share parameters, or ``ROOT``.
    Gradients of ``partial`` ones are partial over tp, those of ``late`` ones are taken by W, and ``wide`` ones compute
    in fp32 whatever the precision. ``shared`` ones are called so in the whole model. No other rank has one that
    ``is_rank_local``. ``trained_share`` is the share of it that a step trains, and of whose gradient is sent.
    """

    name: str
    shape: tuple[int, ...]
    block: int = ROOT
    partial: bool = False
    expert: bool = False
    late: bool = False
    wide: bool = False
    shared: str = ""
    is_rank_local: bool = False
    trained_share: float = 1.0

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def slice_elements(self, ranks: int, rank: int) -> int:
        """Values of a rank's slice of rows, dealt out as ``torch.chunk`` does."""
        rank_rows = -(-self.shape[0] // ranks)
        return max(0, min(rank_rows, self.shape[0] - rank * rank_rows)) * (self.elements // self.shape[0])

    def padded_elements(self, ranks: int) -> int:
        """Values of the slices of all ranks, which are equally long."""
        return -(-self.shape[0] // ranks) * ranks * (self.elements // self.shape[0])


def parameters_of(config: RunConfig, part: Part) -> list[Parameter]:
    """Embedding, blocks, last norm and head, as far as the stage has them; beside a frozen model what is trained."""
    if adapts(config):
        return [
            _factor(factor) for factor in side_factors(config, range(part.start, part.start + part.layers))
        ]
    shape, late = resolve(config.model), splits(config)
    sharing = sharing_of(config.model)
    tied = sharing.tied[0] if sharing.tied is not None else ""
    parameters = [_words(config, "embedding", False, tied)] if part.is_first else []
    for number, same in enumerate(sets_of(config, part)):
        block = f"blocks.{sharing.first(same.start)}." if sharing.layers_each > 1 else ""
        of_first = _block(config, shape, same.start - part.start, late)
        parameters += [parameter._replace(block=number, shared=block) for parameter in of_first]
    if part.is_last:
        parameters.append(_norm("norm", shape, ROOT))
        parameters += [] if tied and part.is_first else [_words(config, "head", late, tied)]
    return parameters


def _factor(factor: SideFactor) -> Parameter:
    return Parameter(f"{factor.layer}.{factor.name}", (factor.rows, factor.columns), factor.layer)


def sets_of(config: RunConfig, part: Part) -> list[range]:
    """A stage's layers by their numbers in the model, those together that share parameters."""
    return sharing_of(config.model).sets(range(part.start, part.start + part.layers))


def _words(config: RunConfig, name: Literal["embedding", "head"], late: bool, tied: str) -> Parameter:
    shape, rows = resolve(config.model), resolve(config.model).vocabulary // tensor_ranks(config, name)
    partial, ranks = is_replicated(config, name), column_ranks(config, name)
    sizes = rows, shape.hidden // ranks
    return Parameter(name, sizes, late=late, partial=partial, shared=tied, is_rank_local=ranks > 1)


def splits(config: RunConfig) -> bool:
    """Whether gradients of matrices are taken apart from those of inputs."""
    return SCHEDULES[config.schedule.kind].splits_backward and config.parallel.pp * config.schedule.chunks > 1


def _norm(name: str, shape: ModelShape, place: int) -> Parameter:
    return Parameter(name, (shape.hidden,), place, partial=True, wide=True)


def _block(config: RunConfig, shape: ModelShape, place: int, late: bool) -> Iterator[Parameter]:
    hidden, width, narrow = shape.hidden, shape.ffn_hidden, shape.kv_heads * shape.head_dim
    keep = config.train.slice_keep if config.compression.method == "none" else 1.0
    yield _norm(f"{place}.attention_norm", shape, place)
    yield _norm(f"{place}.feed_forward_norm", shape, place)

    def matrix(name: str, part: TensorPart, outputs: int, inputs: int) -> Parameter:
        ranks, partial = tensor_ranks(config, part), is_replicated(config, part)
        split = (
            (outputs, inputs // ranks) if part in ("attention_output", "down") else (outputs // ranks, inputs)
        )
        return Parameter(f"{place}.{name}", split, place, partial, late=late, trained_share=keep)

    for name, outputs in {"query": hidden, "key": narrow, "value": narrow}.items():
        yield matrix(name, "query_key_value", outputs, hidden)
    yield matrix("output", "attention_output", hidden, hidden)
    if config.model.experts is not None:
        yield from _experts(config, shape, place)
        return
    yield matrix("gate", "gate_up", width, hidden)
    yield matrix("up", "gate_up", width, hidden)
    yield matrix("down", "down", hidden, width)


def _experts(config: RunConfig, shape: ModelShape, place: int) -> Iterator[Parameter]:
    model, parallel = config.model, config.parallel
    experts, width = model.experts or 1, (model.expert_ffn_hidden or shape.ffn_hidden) // parallel.tp
    own_experts, hidden = experts // parallel.ep, shape.hidden
    yield Parameter(f"{place}.router", (experts, hidden), place, partial=True, wide=True)
    yield Parameter(f"{place}.gate", (own_experts, width, hidden), place, expert=True)
    yield Parameter(f"{place}.up", (own_experts, width, hidden), place, expert=True)
    yield Parameter(f"{place}.down", (own_experts, hidden, width), place, expert=True)


Items = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some operations in a row: what they send forward, and in backward."""

    forward: Items = ()
    backward: Items = ()


def forward_items(pieces: Iterable[Piece]) -> Items:
    """What pieces send in their forward."""
    return tuple(item for piece in pieces for item in piece.forward)


def backward_items(pieces: Sequence[Piece]) -> Items:
    """What they send in their backward."""
    return tuple(item for piece in reversed(pieces) for item in piece.backward)


@dataclass(frozen=True)
class Layers:
    """The pieces of a stage: ``first`` in front of its blocks, ``block``, and ``last`` behind them."""

    wire: Wire
    part: Part

    @cached_property
    def late(self) -> bool:
        """Whether gradients of matrices are taken by W."""
        return splits(self.wire.config)

    def first(self) -> list[Piece]:
        """The embedding."""
        if not self.part.is_first:
            return []
        if self.wire.layout.columns:
            words, rows = self.wire.embedding_calls()
            return [Piece((words, rows), (rows, GradientCompletion("embedding")))]
        if self._is_whole("embedding"):
            return [Piece(backward=(GradientCompletion("embedding"),))]
        scatter = Piece(self.wire.tp(REDUCE_SCATTER.name), self.wire.tp(ALL_GATHER.name))
        return [Piece(backward=(GradientCompletion("embedding"),)), scatter]

    def last(self) -> list[Piece]:
        """The last norm, the head and the loss."""
        if not self.part.is_last:
            return []
        columns = self._columns(ROOT, "head", ("head",), self._regathers)
        return [_ready("norm"), columns, Piece(self.wire.loss())]

    def recompute(self, place: int) -> Recompute:
        """What a block forgets."""
        memory = self.wire.config.memory
        if memory.block_actions is not None:
            action = memory.block_actions[self.part.start + place]
            return action if action in ("selective", "full") else "none"
        forgets = memory.recompute_layers is None or place < memory.recompute_layers
        return memory.recompute if forgets else "none"

    def block(self, place: int) -> Piece:
        """A whole block, with what it computes again in its backward. Beside a frozen one, which is on one rank,
        nothing is sent.
        """
        if adapts(self.wire.config):
            layer = self.part.start + place
            factors = side_factors(self.wire.config, range(layer, layer + 1))
            return Piece(
                backward=tuple(GradientCompletion(_factor(factor).name) for factor in reversed(factors))
            )
        recompute = self.recompute(place)
        pieces = self._attention(place, recompute) + self._feed_forward(place, recompute)
        if recompute != "full":
            return Piece(forward_items(pieces), backward_items(pieces))
        gathered = 0 if self._ends_inside else len(self.wire.tp(ALL_GATHER.name))
        sent = backward_items(pieces)
        regathers = forward_items(pieces if self._ends_inside else pieces[:-1])
        return Piece(forward_items(pieces), (*sent[:gathered], *regathers, *sent[gathered:]))

    @property
    def _regathers(self) -> bool:
        return self.wire.config.parallel.tp_regather

    @property
    def _chunks(self) -> int:
        return self.wire.config.overlap.tp_chunks

    @property
    def _ends_inside(self) -> bool:
        """Whether the last message of a block is in front of something that is computed again."""
        in_chunks = self._chunks > 1 and self.wire.config.model.experts is None
        return in_chunks or self._is_whole("down")

    def _attention(self, place: int, recompute: Recompute) -> list[Piece]:
        regathers, shape = self._regathers and recompute != "full", self.wire.sizes.shape
        columns = self._columns(place, "query_key_value", ("query", "key", "value"), regathers)
        forth = self._exchange_slices("query_key_value", shape.head_dim * (shape.heads + 2 * shape.kv_heads))
        home = self._exchange_slices("attention_output", shape.hidden)
        alone = self.late or self._is_whole("attention_output")
        mixed = self._context(recompute == "selective" and alone)
        rows = self._rows(place, "attention_output", "output")
        if recompute == "selective" and not alone:
            ready, scatter = rows if self._chunks == 1 else self._plain_rows(place, "output")
            ready = Piece(backward=(*mixed.forward, *ready.backward))
            rows = [ready, scatter]
        return [_ready(f"{place}.attention_norm"), columns, forth, mixed, home, *rows]

    def _exchange_slices(self, matrices: str, width: int) -> Piece:
        """Slices of the sequence and heads, of an activation so wide, exchanged where matrices know slices alone."""
        call = self.wire.exchange_slices(width) if self._is_whole(matrices) else ()
        return Piece(call, call)

    def _context(self, is_recomputed: bool) -> Piece:
        """Attention over cp; ``is_recomputed`` where it is computed again by itself in backward."""
        cp, shape, wire = self.wire.layout.cp, self.wire.sizes.shape, self.wire
        if cp == 1:
            return Piece()
        if wire.config.parallel.cp_method == "ring":
            keys, sums = wire.hop(wire.dtype), wire.hop(FLOAT32)
            forward = keys * (cp - 1)
            backward = keys + (keys + sums) * (cp - 2) + sums
            return Piece(forward, (*forward, *backward) if is_recomputed else backward)
        forth, home = wire.heads(shape.heads + 2 * shape.kv_heads), wire.heads(shape.heads)
        return Piece((forth, home), (home, *((forth,) if is_recomputed else ()), forth))

    def _feed_forward(self, place: int, recompute: Recompute) -> list[Piece]:
        norm = _ready(f"{place}.feed_forward_norm")
        if self.wire.config.model.experts is not None:
            return [norm, *self._mixture(place)]
        regathers = self._regathers and recompute != "full"
        columns = self._columns(place, "gate_up", ("gate", "up"), regathers)
        has_slices, takes_slices = self._is_whole("gate_up"), self._is_whole("down")
        width = self.wire.sizes.shape.ffn_hidden
        turned = self.wire.exchange_slices(width) if has_slices != takes_slices else ()
        return [norm, columns, Piece(turned, turned), *self._rows(place, "down", "down")]

    def _mixture(self, place: int) -> list[Piece]:
        """Router, balance, rows to their experts and back, between a gather and a scatter of the sequence."""
        wire = self.wire
        names = tuple(f"{place}.{name}" for name in ("down", "up", "gate"))
        return [
            Piece(wire.tp(ALL_GATHER.name), wire.tp(REDUCE_SCATTER.name)),
            _ready(f"{place}.router"),
            Piece(wire.balance()),
            *self._exchange_tokens(Piece(backward=tuple(map(GradientCompletion, names)))),
            Piece(wire.tp(REDUCE_SCATTER.name), wire.tp(ALL_GATHER.name)),
        ]

    def _exchange_tokens(self, experts: Piece) -> list[Piece]:
        """What a rank has is known; what comes from others to its experts is not, without a capacity."""
        wire = self.wire
        if wire.layout.ep == 1:
            return [experts]
        counts = () if wire.slots is not None else wire.counts()
        return [
            Piece((*counts, *wire.dispatch_rows()), wire.combine_rows()),
            experts,
            Piece(wire.combine_rows(), wire.dispatch_rows()),
        ]

    def _is_whole(self, matrices: str) -> bool:
        """Whether every rank of tp has all of them."""
        return matrices in self.wire.sizes.replicated

    def _columns(self, place: int, matrices: str, names: Sequence[str], regathers: bool) -> Piece:
        """Matrices split by columns behind one gather."""
        wire, chunks = self.wire, self._chunks
        ready = self._matrices(place, names)
        if wire.layout.tp == 1 or self._is_whole(matrices):
            return Piece(backward=ready)
        gather, scatter = wire.tp(ALL_GATHER.name, chunks), wire.tp(REDUCE_SCATTER.name, chunks)
        if chunks > 1:
            return Piece(gather, (*scatter, *(gather if regathers else ()), *ready))
        return Piece(gather, (*gather, *scatter, *ready) if regathers else (*ready, *scatter))

    def _rows(self, place: int, matrices: str, name: str) -> list[Piece]:
        """A matrix split by rows, and the scatter behind it."""
        ready = Piece(backward=self._matrices(place, (name,)))
        if self._is_whole(matrices):
            return [ready]
        if self._chunks == 1:
            return self._plain_rows(place, name)
        wire, chunks = self.wire, self._chunks
        return [ready, Piece(wire.tp(REDUCE_SCATTER.name, chunks), wire.tp(ALL_GATHER.name, chunks))]

    def _plain_rows(self, place: int, name: str) -> list[Piece]:
        ready = Piece(backward=self._matrices(place, (name,)))
        return [ready, Piece(self.wire.tp(REDUCE_SCATTER.name), self.wire.tp(ALL_GATHER.name))]

    def _matrices(self, place: int, names: Sequence[str]) -> Items:
        """Their gradients, where backward takes them."""
        inside = "" if place == ROOT else f"{place}."
        return () if self.late else tuple(GradientCompletion(inside + name) for name in reversed(names))


def _ready(name: str) -> Piece:
    return Piece(backward=(GradientCompletion(name),))
