"""The decoder's operators on the axes of its ranks, as the engine can run them, and which matrices had better be
replicated over tp.

Between blocks a rank has a slice of the sequence, so a layer can be judged by itself, and so can both ends. Counted are
bytes of all ranks of an axis in a step: of activations and the loss with every micro-batch, and of what is replicated
its gradients over tp, and what ranks with other data send each other more of it, since each then holds all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, get_args

from engine.comm.signatures import PARTIAL, REPLICATED, Signature
from engine.config.formulas.tied_parameters import sharing_of
from engine.config.layout import accumulation, layers_of_stages, layout_of
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import TensorPart
from engine.footprint.activations import FP32_BYTES, sizes_of
from engine.schedules.registry import rank_of_stages
from tuning.predict.model.cases import computed_again, gathers_once
from tuning.predict.placement.signatures import operators as ways
from tuning.predict.placement.signatures.assignment import Assignment, cheapest
from tuning.predict.placement.signatures.boxing import Axis, Signatures
from tuning.predict.placement.signatures.operators import (
    BATCH,
    COLUMN,
    ROW,
    SEQUENCE,
    WIDTH,
    Choice,
    Message,
    Operator,
    OperatorSharding,
    Price,
    choices,
)

PARTS: tuple[TensorPart, ...] = get_args(TensorPart)


class Sizes(NamedTuple):
    """Of one micro-batch in a model: its tokens, bytes of a whole activation of width 1, and the widths."""

    tokens: int
    column: float
    hidden: int
    key_value: int
    ffn_hidden: int
    vocabulary: int


class RepeatedMessages(NamedTuple):
    """What backward sends again of forward's activations: ``block`` is the share of the layers that are computed anew,
    ``last`` that of their last message. With ``regathers`` what is gathered in front of matrices is gathered anew.
    """

    block: float = 0.0
    last: float = 0.0
    regathers: bool = False

    def forwards(self, name: str) -> float:
        """How often an operator of a block gets its inputs."""
        gathered = self.regathers and name in _GATHERED
        return 1 + (self.last if name == "fed" else self.block) + gathered * (1 - self.block)


#: Those of a block's matrices that ``parallel.tp_regather`` is about.
_GATHERED = ("query_key_value", "gate_up")
_ONCE = RepeatedMessages()


class AxisUse(NamedTuple):
    """What the ranks of an axis divide: between blocks the ``tokens`` of activations, by samples or along sequences;
    inside of blocks also ``matrices`` and what they give, where that is allowed.
    """

    tokens: Signature
    matrices: bool = True

    def plain(self, inputs: int) -> tuple[OperatorSharding, ...]:
        """Of what works on each token by itself, and needs its whole width."""
        return ways.same_signatures(inputs, self.tokens)

    def pointwise(self) -> tuple[OperatorSharding, ...]:
        """Of what works on each value by itself."""
        return ways.same_signatures(1, self.tokens, *([WIDTH] if self.matrices else []))

    def attention(self) -> tuple[OperatorSharding, ...]:
        """Over whole sequences, head by head."""
        samples = [BATCH] if self.tokens == BATCH else []
        return ways.same_signatures(1, *([WIDTH] if self.matrices else []), *samples)

    def product(self, split: OperatorSharding) -> tuple[OperatorSharding, ...]:
        """With a matrix, ``split`` or whole on every rank."""
        whole = OperatorSharding((self.tokens,), self.tokens, REPLICATED)
        return (split, whole) if self.matrices else (whole,)

    def words(self) -> tuple[OperatorSharding, ...]:
        """Looking words up: a product with their one-hot rows."""
        whole = OperatorSharding((), self.tokens, REPLICATED)
        return (OperatorSharding((), PARTIAL, ways.ROWS), whole) if self.matrices else (whole,)

    def head(self, tokens: int, ranks: int) -> tuple[OperatorSharding, ...]:
        """Of a head in columns the loss gathers three fp32 numbers a token from each rank (its highest logit, its sum
        of exponentials, its target's logit); of a whole one the ranks of tp sum their means. Backward sends nothing
        for either.
        """
        parts = Message(SEQUENCE, REPLICATED, 3 * FP32_BYTES * tokens * ranks)
        mean = Message(PARTIAL, REPLICATED, FP32_BYTES) if self.tokens == SEQUENCE else None
        *split, whole = self.product(COLUMN)
        return (*(replace(signature, sends=parts) for signature in split), replace(whole, sends=mean))


#: What the engine divides over tp, and over data ranks.
TENSOR, DATA = AxisUse(SEQUENCE), AxisUse(BATCH, matrices=False)
Uses = tuple[AxisUse, ...]


def block(
    sizes: Sizes, weight: float = 1.0, repeats: RepeatedMessages = _ONCE, uses: Uses = (TENSOR,)
) -> list[Operator]:
    """One layer: attention and feed-forward, each with its norm, on a stream that lies alike between all layers."""
    hidden, wide, heads = sizes.hidden, sizes.ffn_hidden, sizes.hidden + 2 * sizes.key_value
    build = _Build(sizes.column, weight)
    unary, binary = (choices(*(use.plain(inputs) for use in uses)) for inputs in (1, 2))
    columns, rows = (choices(*(use.product(split) for use in uses)) for split in (COLUMN, ROW))
    operators = [
        build.plain("stream", choices(*(use.plain(0) for use in uses)), (), hidden),
        build.plain("attention_norm", unary, (0,), hidden),
        build.product("query_key_value", columns, 1, hidden, heads),
        build.plain("attention", choices(*(use.attention() for use in uses)), (2,), hidden),
        build.product("attention_output", rows, 3, hidden, hidden),
        build.plain("attended", binary, (0, 4), hidden),
        build.plain("feed_forward_norm", unary, (5,), hidden),
        build.product("gate_up", columns, 6, hidden, 2 * wide),
        build.plain("activation", choices(*(use.pointwise() for use in uses)), (7,), wide),
        build.product("down", rows, 8, wide, hidden),
        build.plain("fed", binary, (5, 9), hidden),
    ]
    return [replace(operator, forwards=repeats.forwards(operator.name)) for operator in operators]


def ends(
    sizes: Sizes,
    ranks: Sequence[int],
    weight: float = 1.0,
    repeats: RepeatedMessages = _ONCE,
    uses: Uses = (TENSOR,),
) -> list[Operator]:
    """Embedding, head and loss, with what is between them left out. The loss has no choice of its own: it reads logits
    as the head gives them.
    """
    build = _Build(sizes.column, weight)
    stream = choices(*(use.plain(1) for use in uses))
    heads = choices(*(use.head(sizes.tokens, size) for use, size in zip(uses, ranks, strict=True)))
    words = choices(*(use.words() for use in uses))
    head = build.product("head", heads, 2, sizes.hidden, sizes.vocabulary)
    return [
        build.product("embedding", words, None, sizes.vocabulary, sizes.hidden),
        build.plain("stream", stream, (0,), sizes.hidden),
        build.plain("norm", stream, (1,), sizes.hidden),
        replace(head, forwards=1.0 + repeats.regathers),
    ]


def replicated(graphs: Iterable[Graph]) -> tuple[TensorPart, ...]:
    """The matrices that every rank of the innermost axis has whole, in the order of the configuration's names."""
    return tuple(part for part, lies in matrices(graphs).items() if lies[-1] == REPLICATED)


def matrices(graphs: Iterable[Graph]) -> dict[TensorPart, Signatures]:
    """How each matrix lies where choices were made, in the order of the configuration's names."""
    lies = {operator.name: operator.choices[0].matrix for graph in graphs for operator in graph.operators}
    return {part: signatures for part in PARTS if (signatures := lies[part]) is not None}


class ReplicatedMatrices(NamedTuple):
    """Matrices that had better be replicated, with the bytes that all ranks of tp send in a step then and otherwise:
    norms' gradients are left out, and what the data ranks send is in it only as far as it differs.
    """

    parts: tuple[TensorPart, ...]
    bytes_: float
    split_bytes: float


def best(config: RunConfig) -> ReplicatedMatrices | None:
    """The signatures of a configuration's matrices with which least is sent; None where the engine splits nothing, or
    sorts tokens to experts. ``parallel.tp_replicated`` is not asked.
    """
    if not is_decoder(config.model) or config.parallel.tp == 1 or config.model.experts is not None:
        return None
    ranks = (config.parallel.tp,)
    model = Model(widths_of(config), ranks, shared_layers(config), _weight(config), sent_again(config))
    return _best(model, accumulation(config))


def widths_of(config: RunConfig) -> Sizes:
    """The sizes that a configuration gives a rank."""
    shape, sizes = resolve(config.model), sizes_of(config)
    return Sizes(
        sizes.tokens,
        sizes.element * sizes.tokens,
        shape.hidden,
        shape.kv_heads * shape.head_dim,
        shape.ffn_hidden,
        shape.vocabulary,
    )


def _weight(config: RunConfig) -> float:
    """What all ranks send of a replicated matrix in a step, in all-reduces of it over tp: its own, of a slice where
    ZeRO made slices; and on tp - 1 ranks more what the data ranks send of it.
    """
    ranks = layout_of(config).inner
    return sliced(config) + (ranks - 1) / ranks * data_share(config)


def sliced(config: RunConfig) -> float:
    """The share of a gradient that a rank sums over tp: ZeRO made slices of it before."""
    layout = layout_of(config)
    return 1 / layout.inner if layout.zero_stage else 1.0


def data_share(config: RunConfig) -> float:
    """What the data ranks send of a matrix in a step, in all-reduces of its gradient: one, or what ZeRO gathers and
    scatters.
    """
    layout = layout_of(config)
    gathers = scatters = 1.0
    if layout.zero_stage == 3:
        gathers = 2.0 * (1 if gathers_once(config) else accumulation(config))
    if layout.zero_stage >= 2 or (layout.zero_stage and config.memory.parameters == "bf16"):
        gathers *= sizes_of(config).element / FP32_BYTES
    if layout.zero_stage >= 2:
        scatters *= accumulation(config) if config.parallel.reduce_every_micro_batch else 1
    return (gathers + scatters) / 2


def sent_again(config: RunConfig) -> RepeatedMessages:
    """What a configuration's backward sends again."""
    share = computed_again(config, "full")
    return RepeatedMessages(
        share, share if config.overlap.tp_chunks > 1 else 0.0, config.parallel.tp_regather
    )


class SharedLayers(NamedTuple):
    """Of ``layers`` so many at a time have the same matrices on a rank of the pipeline; embedding and head are ``tied``
    into one, of which there are ``copies``: one on each end of a pipeline.
    """

    layers: int
    layers_each: float = 1.0
    tied: bool = False
    copies: int = 1


def shared_layers(config: RunConfig) -> SharedLayers:
    """Those of a configuration's decoder. Each rank of a pipeline sums the gradient of its own copy over tp."""
    sharing, layers, pp = sharing_of(config.model), resolve(config.model).layers, config.parallel.pp
    schedule = config.schedule
    stages = layers_of_stages(layers, pp * schedule.chunks, schedule.stage_layers)
    owners = rank_of_stages(schedule.kind, pp, schedule.chunks)
    matrices = {
        (place, layer // sharing.layers_each)
        for place, stage in zip(owners, stages, strict=True)
        for layer in stage
    }
    return SharedLayers(layers, layers / len(matrices), sharing.tied is not None, min(pp, 2))


class Graph(NamedTuple):
    """Operators that are in a model so many ``times``; if ``tied``, their matrices lie all alike."""

    operators: list[Operator]
    times: int
    tied: bool = False

    def solve(self, price: Price) -> Graph:
        """With the cheapest choice of each operator, and no other."""
        offered = [self.operators]
        if self.tied:
            ways = next(len(operator.choices) for operator in self.operators if operator.choices[0].matrix)
            offered = [self.with_way(way).operators for way in range(ways)]
        solved, operators = min(
            ((cheapest(operators, price), operators) for operators in offered), key=lambda both: both[0].cost
        )
        return self._replace(operators=_as_chosen(operators, solved))

    def with_way(self, way: int) -> Graph:
        """With all matrices run by the choice of that number; other operators' choices follow."""
        return self._replace(
            operators=[
                replace(operator, choices=operator.choices[way : way + 1])
                if operator.choices[0].matrix
                else operator
                for operator in self.operators
            ]
        )

    def cost(self, price: Price) -> float:
        """Of a step, with the cheapest choices there are."""
        return self.times * price.micro_batches * cheapest(self.operators, price).cost


class Model(NamedTuple):
    """A decoder on axes of so many ``ranks``; a matrix counts as ``weight`` times its fp32 gradient."""

    sizes: Sizes
    ranks: tuple[int, ...]
    shared: SharedLayers
    weight: float = 1.0
    repeats: RepeatedMessages = _ONCE

    def graphs(self, uses: Uses) -> list[Graph]:
        """A layer, and both ends."""
        shared, repeats = self.shared, self.repeats
        # Two copies are summed over both ends, too: a whole matrix from each rank of tp.
        tied_weight = self.weight * shared.copies + shared.copies - 1
        of_ends = tied_weight / 2 if shared.tied else self.weight
        return [
            Graph(block(self.sizes, self.weight / shared.layers_each, repeats, uses), shared.layers),
            Graph(ends(self.sizes, self.ranks, of_ends, repeats, uses), 1, shared.tied),
        ]


@lru_cache(maxsize=4096)
def _best(model: Model, micro_batches: int) -> ReplicatedMatrices:
    (tp,), split = model.ranks, 0
    price, graphs = Price((Axis(tp),), micro_batches), model.graphs((TENSOR,))
    chosen = [graph.solve(price) for graph in graphs]
    sums = (
        sum(graph.cost(price) for graph in some) for some in (chosen, [g.with_way(split) for g in graphs])
    )
    return ReplicatedMatrices(replicated(chosen), *sums)


def _as_chosen(operators: Sequence[Operator], solved: Assignment) -> list[Operator]:
    """With no other choices."""
    return [
        replace(operator, choices=(operator.choices[number],))
        for operator, number in zip(operators, solved.choices, strict=True)
    ]


class _Build(NamedTuple):
    """Makes operators whose activations have so many bytes for each column of width, and whose matrices count as so
    many times their fp32 gradients.
    """

    column: float
    weight: float

    def plain(self, name: str, choices: tuple[Choice, ...], inputs: tuple[int, ...], width: int) -> Operator:
        return Operator(name, choices, inputs, self.column * width)

    def product(
        self, name: str, choices: tuple[Choice, ...], place: int | None, inputs: int, outputs: int
    ) -> Operator:
        gradient = FP32_BYTES * inputs * outputs * self.weight
        return Operator(name, choices, () if place is None else (place,), self.column * outputs, gradient)
