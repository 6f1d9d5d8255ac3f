"""What the axes of a layout divide, matrix by matrix, and what they send for it: as it stands, with all its ranks on
one axis, and if each matrix could lie as it liked.

Between layers activations lie alike, by samples or along sequences on each axis. Memory and computation are not asked:
every rank computes as much in each of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from engine.comm.signatures import BROADCAST, Signature
from engine.config.layout import accumulation, layout_of
from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.config.sections import TensorPart
from engine.config.validation.rules import problems
from tuning.predict.model.hardware import Link
from tuning.predict.placement.signatures.boxing import Axis
from tuning.predict.placement.signatures.decoder import (
    DATA,
    PARTS,
    TENSOR,
    AxisUse,
    Graph,
    Model,
    Uses,
    data_share,
    matrices,
    sent_again,
    shared_layers,
    sliced,
    widths_of,
)
from tuning.predict.placement.signatures.operators import BATCH, SEQUENCE, Choice, Operator, Price
from tuning.predict.target import Target

DEGREES, REPLICATED = ("parallel.dp", "parallel.tp"), "parallel.tp_replicated"
#: Signatures cost less only if they save more than this share: the formulas are no closer to what is run.
LEAST_SAVED = 0.01


class MeshSignatures(NamedTuple):
    """How ``matrices`` lie on each of the ``axes``, the outermost first; ``settings`` are those with which the engine
    runs it, None where nothing does. ``bytes_`` are what all ranks of these axes send in a step, ``seconds`` those of
    the messages one after the other, with nothing hidden.
    """

    axes: dict[str, int]
    matrices: dict[TensorPart, tuple[Signature, ...]]
    settings: dict[str, Any] | None
    bytes_: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON; signatures as papers write them."""
        lies = {part: [str(one) for one in found] for part, found in self.matrices.items()}
        return {
            "axes": self.axes,
            "matrices": lies,
            "settings": self.settings,
            "bytes": self.bytes_,
            "seconds": self.seconds,
        }


class Comparison(NamedTuple):
    """A layout's signatures as they are, ``split`` with all matrices split over tp and ``listed`` with the best list of
    ``parallel.tp_replicated`` (both None without tp), what the engine can run instead on as many ranks, and the
    cheapest of all, None where none cost less than what can be run.
    """

    now: MeshSignatures
    split: MeshSignatures | None
    listed: MeshSignatures | None
    moved: tuple[MeshSignatures, ...]
    mixed: MeshSignatures | None

    @property
    def runnable(self) -> list[MeshSignatures]:
        """What the engine can run, each once, as it stands first."""
        found = {str(one.settings): one for one in (self.now, self.listed, *self.moved) if one is not None}
        return list(found.values())

    @property
    def best(self) -> MeshSignatures:
        """That takes the least time of those that can be run."""
        return min(self.runnable, key=lambda one: one.seconds)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "now": self.now.as_dict(),
            "others": [one.as_dict() for one in self.runnable[1:]],
            "mixed": self.mixed and self.mixed.as_dict(),
        }

    def lists_as_dict(self) -> dict[str, Any] | None:
        """The best list of replicated matrices alone, beside none, for JSON."""
        if self.listed is None or self.split is None:
            return None
        settings = self.listed.settings or {}
        return {
            "replicated": settings.get(REPLICATED) or [],
            "bytes": self.listed.bytes_,
            "split_bytes": self.split.bytes_,
            "seconds": self.listed.seconds,
            "split_seconds": self.split.seconds,
        }


def compare(config: RunConfig, target: Target) -> Comparison | None:
    """None for what has one data rank and no tp, another model than the decoder, or experts, which are not modelled."""
    layout = layout_of(config)
    ranks = layout.inner * layout.tp
    if not is_decoder(config.model) or config.model.experts is not None or ranks == 1:
        return None
    now, split, listed = _as_run(config, target, choose=False), None, None
    if layout.tp > 1:
        split = _as_run(config.with_values({REPLICATED: None}), target, choose=False)
        listed = _as_run(config, target, choose=True)
    asked = [_with_degrees(config, *degrees) for degrees in ((ranks, 1), (1, ranks))]
    moved = tuple(_as_run(one, target, choose=True) for one in asked if one is not None)
    free = [_solved(config, target, uses, choose=True) for uses in _free(len(now.axes))]
    found = Comparison(now, split, listed, moved, min(free, key=lambda one: one.seconds))
    pays = found.mixed is not None and found.mixed.seconds < (1 - LEAST_SAVED) * found.best.seconds
    return found if pays else found._replace(mixed=None)


def _with_degrees(config: RunConfig, dp: int, tp: int) -> RunConfig | None:
    """None where a rule forbids it."""
    replicas = layout_of(config).replicas
    asked = config.with_values(dict(zip(DEGREES, (dp * replicas, tp), strict=True)) | {REPLICATED: None})
    return None if any(True for _ in problems(asked)) else asked


def _as_run(config: RunConfig, target: Target, choose: bool) -> MeshSignatures:
    """By data over dp and by sequences and matrices over tp; with its own replicated matrices, or the best."""
    found = _solved(config, target, _uses(config), choose)
    layout = layout_of(config)
    whole = [part for part, lies in found.matrices.items() if layout.tp > 1 and lies[-1].kind == "broadcast"]
    settings = dict(zip(DEGREES, (layout.data, layout.tp), strict=True))
    return found._replace(settings=settings | {REPLICATED: whole or None})


def _uses(config: RunConfig) -> Uses:
    layout = layout_of(config)
    return tuple(use for use, size in ((DATA, layout.inner), (TENSOR, layout.tp)) if size > 1)


def _free(axes: int) -> list[Uses]:
    return [tuple(map(AxisUse, tokens)) for tokens in product((BATCH, SEQUENCE), repeat=axes)]


def _solved(config: RunConfig, target: Target, uses: Uses, choose: bool) -> MeshSignatures:
    """The cheapest by seconds, or as the configuration's list of replicated matrices has it."""
    layout = layout_of(config)
    degrees = {name: size for name, size in (("dp", layout.inner), ("tp", layout.tp)) if size > 1}
    sizes = widths_of(config)
    sizes = sizes._replace(tokens=sizes.tokens * layout.inner, column=sizes.column * layout.inner)
    model = Model(sizes, tuple(degrees.values()), shared_layers(config), again=sent_again(config))
    graphs = model.graphs(uses)
    if not choose and layout.tp > 1:
        graphs = [_with_list(graph, config.parallel.tp_replicated or ()) for graph in graphs]
    shares = {"dp": data_share(config), "tp": sliced(config)}
    links, ranks = _links(config, target), layout.inner * layout.tp
    timed = tuple(Axis.on_link(size, links[name], ranks, shares[name]) for name, size in degrees.items())
    counted = tuple(Axis(size, matrix_share=shares[name]) for name, size in degrees.items())
    seconds, bytes_ = (Price(axes, accumulation(config)) for axes in (timed, counted))
    chosen = [graph.solve(seconds) for graph in graphs]
    sums = (sum(graph.cost(price) for graph in chosen) for price in (bytes_, seconds))
    return MeshSignatures(degrees, matrices(chosen), None, *sums)


def _links(config: RunConfig, target: Target) -> dict[str, Link]:
    """What a ring over an axis has: of ``together`` ranks on a node each brings its own link to other nodes, as in
    ``tuning.predict.model.network``.
    """
    layout, group = layout_of(config), target.group
    found = {}
    for name, ranks, apart in (("tp", layout.tp, 1), ("dp", layout.inner, layout.tp * layout.cp)):
        together = min(ranks, max(1, group.devices // apart))
        rate = min(group.inside.bytes_per_second, group.between.bytes_per_second * together)
        across = Link(group.between.alpha_seconds, rate)
        found[name] = group.inside if together == ranks else across
    return found


def _with_list(graph: Graph, whole: Collection[str]) -> Graph:
    """With matrices whole on the innermost axis as listed, and the others split."""

    def as_listed(one: Operator) -> tuple[Choice, ...]:
        asked = one.name in whole
        return tuple(c for c in one.choices if c.matrix and (c.matrix[-1] == BROADCAST) == asked)

    operators = [
        replace(one, choices=as_listed(one)) if one.name in PARTS else one for one in graph.operators
    ]
    return graph._replace(operators=operators)
