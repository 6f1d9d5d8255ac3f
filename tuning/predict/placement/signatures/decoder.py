"""The decoder's operators on its tp axis, as the engine can run them, and which matrices had better be replicated.

Between blocks a rank has a slice of the sequence, so a layer can be judged by itself, and so can both ends. Counted are
bytes of all ranks of an axis in a step: of activations and the loss with every micro-batch, and of what is replicated
its gradients over tp, and what ranks with other data send each other more of it, since each then holds all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple, get_args

from engine.comm.signatures import BROADCAST, PARTIAL
from engine.config.knobs.tied_parameters import sharing_of
from engine.config.layout import accumulation, layout_of
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.sections import TensorPart
from engine.footprint.activations import FP32_BYTES, sizes_of
from tuning.predict.model.cases import computed_again, gathers_once
from tuning.predict.model.hardware import Link
from tuning.predict.placement.signatures import operators as ways
from tuning.predict.placement.signatures.assignment import Assignment, cheapest
from tuning.predict.placement.signatures.operators import (
    COLUMN,
    DATA,
    ROW,
    SEQUENCE,
    WIDTH,
    Choice,
    Message,
    Operator,
    Price,
)
from tuning.predict.target import Target

PARTS: tuple[TensorPart, ...] = get_args(TensorPart)


class Sizes(NamedTuple):
    """Of one micro-batch in a model: its tokens, bytes of a whole activation of width 1, and the widths."""

    tokens: int
    column: float
    hidden: int
    key_value: int
    ffn_hidden: int
    vocabulary: int


class Again(NamedTuple):
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
_ONCE = Again()


def block(sizes: Sizes, weight: float = 1.0, again: Again = _ONCE) -> list[Operator]:
    """One layer: attention and feed-forward, each with its norm, on a stream of slices."""
    hidden, wide, heads = sizes.hidden, sizes.ffn_hidden, sizes.hidden + 2 * sizes.key_value
    stream = ways.same(1, SEQUENCE)
    build = _Build(sizes.column, weight)
    found = [
        build.plain("stream", (Choice((), SEQUENCE),), (), hidden),
        build.plain("attention_norm", stream, (0,), hidden),
        build.product("query_key_value", (COLUMN, DATA), 1, hidden, heads),
        build.plain("attention", ways.same(1, WIDTH), (2,), hidden),
        build.product("attention_output", (ROW, DATA), 3, hidden, hidden),
        build.plain("attended", ways.same(2, SEQUENCE), (0, 4), hidden),
        build.plain("feed_forward_norm", stream, (5,), hidden),
        build.product("gate_up", (COLUMN, DATA), 6, hidden, 2 * wide),
        build.plain("activation", ways.POINTWISE[:2], (7,), wide),
        build.product("down", (ROW, DATA), 8, wide, hidden),
        build.plain("fed", ways.same(2, SEQUENCE), (5, 9), hidden),
    ]
    return [replace(one, forwards=again.forwards(one.name)) for one in found]


def ends(sizes: Sizes, ranks: int, weight: float = 1.0, again: Again = _ONCE) -> list[Operator]:
    """Embedding, head and loss, with what is between them left out. Looking words up is a product with their one-hot
    rows. The loss has no choice of its own: it reads logits as the head gives them.
    """
    build, heads = _Build(sizes.column, weight), _heads(sizes.tokens, ranks)
    words = (Choice((), PARTIAL, ways.ROWS), Choice((), SEQUENCE, BROADCAST))
    return [
        build.product("embedding", words, None, sizes.vocabulary, sizes.hidden),
        build.plain("stream", ways.same(1, SEQUENCE), (0,), sizes.hidden),
        build.plain("norm", ways.same(1, SEQUENCE), (1,), sizes.hidden),
        replace(
            build.product("head", heads, 2, sizes.hidden, sizes.vocabulary),
            forwards=1.0 + again.regathers,
        ),
    ]


def _heads(tokens: int, ranks: int) -> tuple[Choice, Choice]:
    """Of a head in columns the loss gathers three fp32 numbers a token from each rank (its highest logit, its sum of
    exponentials, its target's logit); of a whole one it sums the ranks' means. Backward sends nothing for either.
    """
    parts = Message(SEQUENCE, BROADCAST, 3 * FP32_BYTES * tokens * ranks)
    mean = Message(PARTIAL, BROADCAST, FP32_BYTES)
    return replace(COLUMN, sends=parts), replace(DATA, sends=mean)


def replicated_matrices(operators: Sequence[Operator], found: Assignment) -> list[TensorPart]:
    """The matrices that every rank has whole, in the order of the configuration's names."""
    whole = {
        operator.name
        for operator, number in zip(operators, found.chosen, strict=True)
        if operator.choices[number].matrix == BROADCAST
    }
    return [part for part in PARTS if part in whole]


class ReplicatedMatrices(NamedTuple):
    """Matrices that had better be replicated, with the bytes that all ranks of tp send in a step then and otherwise:
    norms' gradients are left out, and what the data ranks send is in it only as far as it differs. Seconds are those of
    a known link, one message after the other, with nothing hidden.
    """

    parts: tuple[TensorPart, ...]
    bytes_: float
    split_bytes: float
    seconds: float | None = None
    split_seconds: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "replicated": list(self.parts),
            "bytes": self.bytes_,
            "split_bytes": self.split_bytes,
            "seconds": self.seconds,
            "split_seconds": self.split_seconds,
        }


def choose_by_seconds(config: RunConfig, target: Target) -> ReplicatedMatrices | None:
    """The same by the seconds that messages of tp take on a cluster, as it was calibrated or described."""
    group = target.group
    return best(config, group.inside if config.parallel.tp <= group.devices else group.between)


def best(config: RunConfig, link: Link | None = None) -> ReplicatedMatrices | None:
    """The signatures of a configuration's matrices with which least is sent, or with which that takes least over a
    ``link`` of each rank; None where the engine splits nothing, or sorts tokens to experts. ``parallel.tp_replicated``
    is not asked.
    """
    if not is_decoder(config.model) or config.parallel.tp == 1 or config.model.experts is not None:
        return None
    shape, sizes, layout = resolve(config.model), sizes_of(config), layout_of(config)
    widths = Sizes(
        sizes.tokens,
        sizes.element * sizes.tokens,
        shape.hidden,
        shape.kv_heads * shape.head_dim,
        shape.ffn_hidden,
        shape.vocabulary,
    )
    sharing = sharing_of(config.model)
    shared = SharedLayers(shape.layers, sharing.layers_each, sharing.tied is not None)
    weight, again = _weight(config), _sent_again(config)
    return _best(widths, layout.tp, accumulation(config), weight, shared, again, link)


def _weight(config: RunConfig) -> float:
    """What all ranks send of a replicated matrix in a step, in all-reduces of it over tp: its own, of a slice where
    ZeRO made slices; and on tp - 1 ranks more an all-reduce over the data ranks, or what ZeRO gathers and scatters.
    """
    layout, ranks = layout_of(config), layout_of(config).inner
    gathers = scatters = 1.0
    if layout.zero_stage == 3:
        gathers = 2.0 * (1 if gathers_once(config) else accumulation(config))
    if layout.zero_stage >= 2:
        gathers *= sizes_of(config).element / FP32_BYTES
        scatters *= accumulation(config) if config.parallel.reduce_every_micro_batch else 1
    return 1 / (ranks if layout.zero_stage else 1) + (ranks - 1) / ranks * (gathers + scatters) / 2


def _sent_again(config: RunConfig) -> Again:
    share = computed_again(config, "full")
    return Again(share, share if config.overlap.tp_chunks > 1 else 0.0, config.parallel.tp_regather)


class SharedLayers(NamedTuple):
    """Of ``layers`` so many in a row have the same matrices; embedding and head are ``tied`` into one."""

    layers: int
    layers_each: int = 1
    tied: bool = False


@lru_cache(maxsize=4096)
def _best(
    sizes: Sizes,
    tp: int,
    micro_batches: int,
    weight: float,
    shared: SharedLayers,
    again: Again,
    link: Link | None,
) -> ReplicatedMatrices:
    by_bytes = Price(tp, micro_batches=micro_batches)
    by_seconds = (
        None
        if link is None
        else Price(tp, 1 / (tp * link.bytes_per_second), link.alpha_seconds, micro_batches)
    )
    parts, sums = set[TensorPart](), dict[tuple[str, str], float]()
    last = ends(sizes, tp, weight / 2 if shared.tied else weight, again)
    for operators, times in ((block(sizes, weight / shared.layers_each, again), shared.layers), (last, 1)):
        together = operators is last and shared.tied
        offered = [_with_way(operators, way) for way in (0, 1)] if together else [operators]
        found, chosen = min(
            ((cheapest(one, by_seconds or by_bytes), one) for one in offered), key=lambda both: both[0].cost
        )
        parts |= set(replicated_matrices(chosen, found))
        ways = {"split": _with_way(operators, 0), "best": _as_chosen(chosen, found)}
        for (way, these), (unit, price) in product(
            ways.items(), (("bytes", by_bytes), ("seconds", by_seconds))
        ):
            cost = 0.0 if price is None else times * micro_batches * cheapest(these, price).cost
            sums[way, unit] = sums.get((way, unit), 0.0) + cost
    told = (None, None) if link is None else (sums["best", "seconds"], sums["split", "seconds"])
    named = tuple(part for part in PARTS if part in parts)
    return ReplicatedMatrices(named, sums["best", "bytes"], sums["split", "bytes"], *told)


def _as_chosen(operators: Sequence[Operator], found: Assignment) -> list[Operator]:
    """With no other choices."""
    return [
        replace(one, choices=(one.choices[number],))
        for one, number in zip(operators, found.chosen, strict=True)
    ]


def _with_way(operators: Sequence[Operator], way: int) -> list[Operator]:
    """With all matrices split (0) or replicated (1); other choices follow."""
    return [
        replace(one, choices=one.choices[way : way + 1]) if one.choices[0].matrix else one
        for one in operators
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
