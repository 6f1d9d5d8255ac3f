"""Compression plans while a run goes: gradients are watched for some steps, then all ranks follow rank 0's choice.

A rank sums its own gradients as they are before compression: what comes back from a sparse average holds zeros for
all that was not sent, and would hide errors. The ranks' errors are averaged; nothing but them is sent. Bytes are those
of the compressors' own formulas.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from engine.checkpoint.resume import ResumePoint
from engine.comm.channel import Group
from engine.comm.context import RankContext
from engine.comm.store import RankStore
from engine.compression.compressor import GradientCompressor, errors_of
from engine.compression.interface import Content, Message, content_of
from engine.compression.l_greco import Row, chosen, means, share_of
from engine.config.compression import NO_PLAN, Plan, Settings, candidates, settings_of, settings_with
from engine.config.compression_methods import Value
from engine.config.sections import Compression
from engine.parallel.data.averaging import AveragedParameters
from engine.parallel.data.replica import Replica
from engine.parallel.data.replicated import DataParallel
from profilers.collectives.wire_bytes import sent_share, wire_bytes


@dataclass(frozen=True, slots=True)
class Price:
    """A layer's bytes with each candidate, and whether it is left alone then."""

    bytes: list[float]
    alone: list[bool]


class Prices:
    """Layers of one shape are priced once. Bytes are a rank's, a step, once compression has started."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...], Value], tuple[float, bool]] = {}

    def of_layer(
        self, group: Group, shape: tuple[int, ...], settings: Settings, values: Sequence[Value]
    ) -> Price:
        """A layer on its own: its payload's part of what is sent, without what the backend adds to a message."""
        found = [self._one(group, shape, replace(settings, value=value, values={})) for value in values]
        return Price([size for size, _ in found], [alone for _, alone in found])

    def of_bucket(self, group: Group, content: Content, settings: Settings) -> float:
        """All that is sent for a bucket."""
        compressor, content = _unsent(group, content, settings)
        return sum(_on_the_wire(group, message) for message in compressor.messages(content))

    def _one(self, group: Group, shape: tuple[int, ...], settings: Settings) -> tuple[float, bool]:
        key = group.size(), shape, settings.value
        if key not in self._known:
            compressor, content = _unsent(group, content_of(0, torch.empty(0), {"layer": shape}), settings)
            size = sum(_payload(group, message) for message in compressor.messages(content))
            self._known[key] = size, bool(compressor.uncompressed(content))
        return self._known[key]


def _unsent(group: Group, content: Content, settings: Settings) -> tuple[GradientCompressor, Content]:
    """A compressor that is only asked; its buffers take no memory."""
    flat = torch.empty(max(part.stop for part in content.parts), device="meta")
    compressor = GradientCompressor(settings, group, 0, lambda: settings.start_step, torch.device("cpu"))
    return compressor, replace(content, flat=flat)


def _payload(group: Group, message: Message) -> float:
    share = sent_share(message.operation, dist.get_backend(group), None, group.size())
    return message.bytes * (1.0 if share is None else share)


def _on_the_wire(group: Group, message: Message) -> float:
    sent = wire_bytes(
        message.operation, dist.get_backend(group), None, group.size(), np.array([message.bytes])
    )
    return float(message.bytes if sent is None else sent[0])


def report_uncompressed(rank: RankContext, replicas: Iterable[Replica]) -> None:
    """The parameters of this rank that are sent as they are though a method is chosen; the last word counts."""
    reasons = {name: reason for replica in replicas for name, reason in replica.uncompressed().items()}
    if rank.config.compression.method != "none":
        rank.writer.event("left_alone", parameters=reasons)


#: Steps whose gradients are summed up; also the step before which there is a first plan.
WATCHED = 10
#: The kind of the event in which rank 0 tells of a plan.
PLAN_EVENT = "plan"


class Planner:
    """One rank's part; every rank makes the same calls. It does nothing without ``compression.plan``."""

    def __init__(self, rank: RankContext, replicas: Collection[Replica]) -> None:
        self._rank, self._replicas, self._store = rank, replicas, RankStore(rank, "plans")
        whole = [replica for replica in replicas if isinstance(replica, DataParallel)]
        self._parts = [part for replica in whole for part in replica.parts if part.compressor is not None]
        self._sums, self._steps = dict[str, Tensor](), 0

    def adopt(self, point: ResumePoint) -> None:
        """Go on with the plan of the checkpoint that the run continues from, if it was made for these settings."""
        saved = point.manifest.plan
        plan = Plan(**saved) if saved else NO_PLAN
        if self._config.plan == "none" or not plan.fits(settings_of(self._config)):
            return
        self._follow(plan)
        if self._rank.rank == 0 and plan != NO_PLAN:
            about = {"method": plan.method, "default": plan.default, "layers": dict(plan.values)}
            self._rank.writer.event(PLAN_EVENT, step=point.manifest.step, **about, taken_from=point.run)

    def watch(self, step: int) -> None:
        """Sum up the gradients of ``step``, if it is one of the last before a plan."""
        config = self._config
        soon = config.plan != "none" and next_plan(step, config.plan_every) - step <= WATCHED
        if not soon:
            self._sums, self._steps = {}, 0
        for part in self._parts:
            part.watch = self._add if soon else None
        self._steps += soon

    def after(self, step: int) -> None:
        """Plan if it is time; ``step`` is the next one to do."""
        if self._steps and next_plan(step - 1, self._config.plan_every) == step:
            self._plan(step)
            self._sums, self._steps = {}, 0

    @property
    def _config(self) -> Compression:
        return self._rank.config.compression

    def _add(self, content: Content) -> None:
        settings = settings_of(self._config)
        for part in content.parts:
            gradient = content.flat[part.start : part.stop]
            if part.name in self._sums:
                self._sums[part.name].add_(gradient)
            elif not settings.gives(part.name):
                self._sums[part.name] = gradient.clone()

    def _plan(self, step: int) -> None:
        began, store, prices = time.monotonic(), self._store, Prices()
        self._rank.state("planning")
        settings, alpha = settings_of(self._config), self._config.plan_alpha
        rows = store.gather(f"{step}.rows", self._rows(settings, prices))
        choice = store.broadcast(f"{step}.plan", lambda: chosen(rows, settings, alpha))
        plan = Plan(settings.method, settings.value, choice["layers"])
        mine = [self._bytes(one, prices) for one in (NO_PLAN, self._rank.plan, plan)]
        totals = store.gather(f"{step}.bytes", mine)
        uniform, before, after = store.broadcast(f"{step}.total", lambda: means(totals))
        if alpha >= 1 and after >= uniform:
            plan, after = NO_PLAN, uniform
            choice |= {"layers": {}, "error": choice["error_uniform"]}
        self._follow(plan)
        if self._rank.rank == 0:
            sizes = {"bytes_uniform": uniform, "bytes_before": before, "bytes_after": after}
            about = {"method": settings.method, "default": settings.value} | choice | sizes
            self._rank.writer.event(PLAN_EVENT, step=step, **about, seconds=time.monotonic() - began)

    def _rows(self, settings: Settings, prices: Prices) -> dict[str, Row]:
        """This rank's share of the table, of the layers that some candidate compresses."""
        rows = dict[str, Row]()
        for part in self._parts:
            for one in (one for content in part.contents for one in content.parts):
                if one.name in self._sums:
                    row = self._row(part, one.shape, self._sums[one.name], settings, prices)
                    rows |= {} if row is None else {one.name: row}
        return rows

    def _row(
        self,
        part: AveragedParameters,
        shape: tuple[int, ...],
        gradient: Tensor,
        settings: Settings,
        prices: Prices,
    ) -> Row | None:
        """A layer that is left alone loses nothing."""
        values = candidates(settings)
        price = prices.of_layer(_group(part), shape, settings, values)
        coded = [value for value, alone in zip(values, price.alone, strict=True) if not alone]
        if not coded:
            return None
        errors = iter(errors_of(gradient, shape, settings, coded))
        return share_of(
            [0.0 if alone else next(errors) for alone in price.alone], price.bytes, part.shared.ranks
        )

    def _bytes(self, plan: Plan, prices: Prices) -> float:
        """Sent by this rank in a step under a plan."""
        settings = settings_with(self._config, plan)
        return sum(
            prices.of_bucket(_group(part), content, settings)
            for part in self._parts
            for content in part.contents
        )

    def _follow(self, plan: Plan) -> None:
        if plan != self._rank.plan:
            self._rank.plan = plan
            for part in self._parts:
                part.follow(plan)
            report_uncompressed(self._rank, self._replicas)


def next_plan(step: int, every: int) -> int:
    """The first step after ``step`` before which there is a plan: every so many steps, and before step ``WATCHED``."""
    regular = (step // every + 1) * every
    return min(regular, WATCHED) if step < WATCHED else regular


def _group(part: AveragedParameters) -> Any:
    assert part.shared.group is not None, "without a group nothing is compressed"
    return part.shared.group
