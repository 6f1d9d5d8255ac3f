"""What dp and tp divide, matrix by matrix, and what they send for it: as it stands, and with other degrees and lists of
replicated matrices on as many ranks, and if samples and matrices could be divided on one axis.

Memory and computation are not asked: every rank computes as much in each of them. Messages come one after the other, at
the rates and starts that predictions use; starts of gradients' messages, which come in buckets, are left out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from engine.comm.signatures import REPLICATED, Signature
from engine.config.layout import accumulation, layout_of
from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.config.sections import KnobValues, TensorPart
from engine.config.validation.rules import problems
from tuning.predict.model.hardware import Link
from tuning.predict.model.network import reach_on_nodes, ring_rate, tree_start
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
from tuning.predict.placement.signatures.operators import BATCH, Choice, Operator, Price
from tuning.predict.target import Target

DEGREES, REPLICATED_KEY = ("parallel.dp", "parallel.tp"), "parallel.tp_replicated"
#: Signatures cost less only if they save more than this share: the formulas are no closer to what is run.
LEAST_SAVED = 0.01


class MeshSignatures(NamedTuple):
    """How ``matrices`` lie on each of the ``axes``, the outermost first; ``settings`` are those with which the engine
    runs it, None where nothing does. ``bytes_`` are what all ranks of these axes send in a step, ``seconds`` those of
    the messages one after the other, with nothing hidden.
    """

    axes: dict[str, int]
    matrices: dict[TensorPart, tuple[Signature, ...]]
    settings: KnobValues | None
    bytes_: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON; signatures as papers write them."""
        lies = {
            part: [str(signature) for signature in signatures] for part, signatures in self.matrices.items()
        }
        return {
            "axes": self.axes,
            "matrices": lies,
            "settings": self.settings,
            "bytes": self.bytes_,
            "seconds": self.seconds,
        }


class Comparison(NamedTuple):
    """A layout's signatures as they are, ``split`` with all matrices split over tp and ``listed`` with the best list of
    ``parallel.tp_replicated`` (both None without tp), the best of each other pair of degrees that the rules allow, and
    ``mixed`` ones of the same degrees that nothing runs, None where they cost no less than what can be run.
    """

    now: MeshSignatures
    split: MeshSignatures | None
    listed: MeshSignatures | None
    moved: tuple[MeshSignatures, ...]
    mixed: MeshSignatures | None

    @property
    def runnable(self) -> list[MeshSignatures]:
        """What the engine can run, as it stands first, the others by what they take."""
        others = [
            candidate
            for candidate in (self.listed, *self.moved)
            if candidate and candidate.settings != self.now.settings
        ]
        return [self.now, *sorted(others, key=lambda candidate: candidate.seconds)]

    @property
    def best(self) -> MeshSignatures:
        """That takes the least time of those that can be run; as it stands, if none takes noticeably less."""
        least = min(self.runnable, key=lambda candidate: candidate.seconds)
        return least if least.seconds < (1 - LEAST_SAVED) * self.now.seconds else self.now

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "now": self.now.as_dict(),
            "others": [candidate.as_dict() for candidate in self.runnable[1:]],
            "mixed": self.mixed and self.mixed.as_dict(),
        }

    def lists_as_dict(self) -> dict[str, Any] | None:
        """The best list of replicated matrices alone, beside none, for JSON."""
        if self.listed is None or self.split is None:
            return None
        settings = self.listed.settings or {}
        return {
            "replicated": settings.get(REPLICATED_KEY) or [],
            "bytes": self.listed.bytes_,
            "split_bytes": self.split.bytes_,
            "seconds": self.listed.seconds,
            "split_seconds": self.split.seconds,
        }


def unknown(config: RunConfig) -> str:
    """Why it is not known what dp and tp send; empty where it is. Of what has neither nothing need be said."""
    layout, shape, sends = layout_of(config), config.model, config.compression
    pp_shares = config.parallel.pp > 1 and (shape.tied_embeddings or shape.layer_groups is not None)
    reasons = {
        "another workload than the decoder says itself what it sends": not is_decoder(shape),
        "experts' tokens go where a router sends them": shape.experts is not None,
        "cp divides sequences, too": layout.cp > 1,
        "an outer loop sends at a rhythm of its own": config.outer.method != "none",
        "of an adapted model only the side parameters are sent": config.train.adapt != "none",
        "compressed gradients are shorter": (sends.method, sends.plan, sends.weights) != ("none",) * 3
        or bool(sends.layers),
        "slices of matrices are sent (train.slice_keep)": config.train.slice_keep < 1,
        "the embedding's columns lie on data ranks": config.parallel.embedding != "replicated",
        "parameters are sharded over part of the data ranks": config.parallel.shard_ranks is not None,
        "micro-batches skip stages": config.schedule.skip_share > 0,
        "tasks are dealt to data ranks": bool(config.data.tasks),
        "documents have lengths of their own": config.data.documents == "whole",
        "stages that share parameters send them to each other": pp_shares,
        "ranks stand in another order (parallel.placement)": config.parallel.placement is not None,
        "links of a lab are not priced": (config.lab.hosts or 1) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def compare(config: RunConfig, target: Target) -> Comparison | None:
    """None where it is not known (:func:`unknown`), and for what has one data rank and no tp."""
    layout = layout_of(config)
    ranks = layout.inner * layout.tp
    if ranks == 1 or unknown(config):
        return None
    now, split, listed = _as_run(config, target, choose=False), None, None
    if layout.tp > 1:
        split = _as_run(config.with_values({REPLICATED_KEY: None}), target, choose=False)
        listed = _as_run(config, target, choose=True)
    configs = [_with_degrees(config, ranks // tp, tp) for tp in range(1, ranks + 1) if ranks % tp == 0]
    moved = tuple(_as_run(changed, target, choose=True) for changed in configs if changed is not None)
    comparison = Comparison(now, split, listed, moved, _mixed(config, target))
    pays = (
        comparison.mixed is not None
        and comparison.mixed.seconds < (1 - LEAST_SAVED) * comparison.best.seconds
    )
    return comparison if pays else comparison._replace(mixed=None)


def _with_degrees(config: RunConfig, dp: int, tp: int) -> RunConfig | None:
    """None where a rule forbids it, and for the degrees that it has."""
    if tp == config.parallel.tp:
        return None
    changed = config.with_values(dict(zip(DEGREES, (dp, tp), strict=True)) | {REPLICATED_KEY: None})
    return None if any(True for _ in problems(changed)) else changed


def _as_run(config: RunConfig, target: Target, choose: bool) -> MeshSignatures:
    """By data over dp and by sequences and matrices over tp; with its own replicated matrices, or the best."""
    layout = layout_of(config)
    uses = tuple(use for use, size in ((DATA, layout.inner), (TENSOR, layout.tp)) if size > 1)
    solved = _solved(config, target, uses, choose)
    whole = [part for part, lies in solved.matrices.items() if layout.tp > 1 and lies[-1].kind == "broadcast"]
    settings = dict(zip(DEGREES, (layout.dp, layout.tp), strict=True))
    return solved._replace(settings=settings | {REPLICATED_KEY: whole or None})


def _mixed(config: RunConfig, target: Target) -> MeshSignatures | None:
    """On the axis of tp samples are divided where that is cheaper, and matrices where those are: nothing runs that.

    Asked of what has whole samples for each rank, and whose gradients nobody slices.
    """
    layout = layout_of(config)
    if layout.tp == 1 or layout.zero_stage or config.batch.micro_batch % layout.tp:
        return None
    uses = (*((DATA,) if layout.inner > 1 else ()), AxisUse(BATCH))
    solved = _solved(config, target, uses, choose=True)
    return solved if len({lies[-1].kind for lies in solved.matrices.values()}) > 1 else None


def _solved(config: RunConfig, target: Target, uses: Uses, choose: bool) -> MeshSignatures:
    """The cheapest by seconds, or as the configuration's list of replicated matrices has it."""
    layout = layout_of(config)
    degrees = {name: size for name, size in (("dp", layout.inner), ("tp", layout.tp)) if size > 1}
    sizes = widths_of(config)
    sizes = sizes._replace(tokens=sizes.tokens * layout.inner, column=sizes.column * layout.inner)
    model = Model(sizes, tuple(degrees.values()), shared_layers(config), repeats=sent_again(config))
    graphs = model.graphs(uses)
    if not choose and layout.tp > 1:
        graphs = [_with_list(graph, config.parallel.tp_replicated or ()) for graph in graphs]
    shares = {"dp": data_share(config), "tp": sliced(config)}
    links, ranks = _links(config, target), layout.world_size
    timed = tuple(Axis.on_link(size, links[name], ranks, shares[name]) for name, size in degrees.items())
    counted = tuple(Axis(size, matrix_share=shares[name]) for name, size in degrees.items())
    seconds, bytes_ = (Price(axes, accumulation(config)) for axes in (timed, counted))
    chosen = [graph.solve(seconds) for graph in graphs]
    sums = (sum(graph.cost(price) for graph in chosen) for price in (bytes_, seconds))
    return MeshSignatures(degrees, matrices(chosen), None, *sums)


def _links(config: RunConfig, target: Target) -> dict[str, Link]:
    """What a ring over an axis has. Stages of a pipeline send at the same time, so each has a share of the starts."""
    layout, constants = layout_of(config), target.calibrated.constants
    links, devices = target.machine(config.precision).links, np.asarray(float(target.devices_per_node))
    links_by_axis = {}
    for name, ranks, apart in (("tp", layout.tp, 1), ("dp", layout.inner, layout.tp)):
        group = reach_on_nodes(devices, np.asarray(float(ranks)), np.asarray(float(apart)))
        start = float(tree_start(group, constants)) / layout.pp
        links_by_axis[name] = Link(start, float(ring_rate(group, links, constants)))
    return links_by_axis


def _with_list(graph: Graph, whole: Collection[str]) -> Graph:
    """With matrices whole on the innermost axis as listed, and the others split."""

    def as_listed(operator: Operator) -> tuple[Choice, ...]:
        is_whole = operator.name in whole
        return tuple(c for c in operator.choices if c.matrix and (c.matrix[-1] == REPLICATED) == is_whole)

    operators = [
        replace(operator, choices=as_listed(operator)) if operator.name in PARTS else operator
        for operator in graph.operators
    ]
    return graph._replace(operators=operators)
