"""Compression plans while a run goes: gradients are watched for some steps, then all ranks follow rank 0's choice.

A rank sums its own gradients as they are before compression: what comes back from a sparse average holds zeros for
all that was not sent, and would hide errors. The ranks' errors are averaged; nothing but them is sent. Bytes are those
of the compressors' own formulas.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.checkpoint.resume import ResumePoint
from engine.comm.context import RankContext
from engine.comm.store import RankStore
from engine.compression.compressor import layer_errors
from engine.compression.interface import Content, Part
from engine.compression.plan_table import Row, choose_values, means, share_of
from engine.compression.randomness import sum_of_squares
from engine.config.compression import NO_PLAN, Plan, Settings, candidates, settings_of, settings_with
from engine.config.sections import Compression
from engine.parallel.data.replica import CompressedGradients, Replica
from engine.rank.compression_prices import Prices


def report_uncompressed(rank: RankContext, replicas: Iterable[Replica]) -> None:
    """The parameters of this rank that are sent as they are though a method is chosen; the last word counts."""
    reasons = {
        name: reason for replica in replicas for name, reason in replica.uncompressed_reasons().items()
    }
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
        self._parts = [part for replica in replicas for part in replica.compressible_gradients()]
        self._watched, self._steps = GradientSums(), 0

    def adopt(self, point: ResumePoint) -> None:
        """Go on with the plan of the checkpoint that the run continues from, if it was made for these settings."""
        saved = point.manifest.plan
        plan = Plan(**saved) if saved else NO_PLAN
        if self._config.plan == "none" or not plan.fits(settings_of(self._config)):
            return
        self.follow(plan)
        if self._rank.rank == 0 and plan != NO_PLAN:
            facts = {"method": plan.method, "default": plan.default, "layers": dict(plan.values)}
            self._rank.writer.event(PLAN_EVENT, step=point.manifest.step, **facts, taken_from=point.run)

    def watch(self, step: int) -> None:
        """Sum up the gradients of ``step``, if it is one of the last before a plan."""
        config = self._config
        soon = config.plan != "none" and next_plan(step, config.plan_every) - step <= WATCHED
        if not soon:
            self._watched, self._steps = GradientSums(), 0
        for part in self._parts:
            part.watch = self._add if soon else None
        self._steps += soon

    def plan_if_due(self, step: int) -> None:
        """Plan if it is time; ``step`` is the next one to do."""
        if self._steps and next_plan(step - 1, self._config.plan_every) == step:
            self._plan(step)
            self._watched, self._steps = GradientSums(), 0

    @property
    def _config(self) -> Compression:
        return self._rank.config.compression

    def _add(self, content: Content) -> None:
        self._watched.add(content, settings_of(self._config))

    def _plan(self, step: int) -> None:
        began, store, prices = time.monotonic(), self._store, Prices()
        self._rank.state("planning")
        config, settings = self._config, settings_of(self._config)
        rows = store.gather(f"{step}.rows", self._rows(settings, prices))
        choice = store.broadcast(f"{step}.plan", lambda: self._choice(rows))
        plan = Plan(settings.method, settings.value, choice["layers"])
        own_bytes = [self._bytes(candidate, prices) for candidate in (NO_PLAN, self._rank.plan, plan)]
        totals = store.gather(f"{step}.bytes", own_bytes)
        uniform, before, after = store.broadcast(f"{step}.total", lambda: means(totals))
        if config.plan_alpha >= 1 and after >= uniform:
            plan, after = NO_PLAN, uniform
            choice |= {"layers": {}} | {key: choice[f"{key}_uniform"] for key in ("error", "effect")}
        self.follow(plan)
        if self._rank.rank == 0:
            sizes = {"bytes_uniform": uniform, "bytes_before": before, "bytes_after": after}
            facts = {"method": settings.method, "default": settings.value} | choice | sizes
            self._rank.writer.event(PLAN_EVENT, step=step, **facts, seconds=time.monotonic() - began)

    def _choice(self, rows: list[dict[str, Row]]) -> dict[str, Any]:
        config = self._config
        return choose_values(rows, settings_of(config), config.plan_alpha, config.plan_budget)

    def _rows(self, settings: Settings, prices: Prices) -> dict[str, Row]:
        """This rank's share of the table, of the layers that some candidate compresses."""
        rows = dict[str, Row]()
        for part in self._parts:
            for name, slices in (
                parts_by_layer
                for content in part.contents
                for parts_by_layer in group_by_layer(content).items()
            ):
                if name in self._watched.sums:
                    row = self._row(part, slices, self._watched.sums[name], settings, prices)
                    rows |= {} if row is None else {name: row}
        return rows

    def _row(
        self,
        part: CompressedGradients,
        slices: list[Part],
        gradient: Tensor,
        settings: Settings,
        prices: Prices,
    ) -> Row | None:
        """A slice that is left alone loses nothing."""
        values = candidates(settings)
        price = prices.layer_price(part, tuple(slice.shape for slice in slices), settings, values)
        if all(map(all, price.alone)):
            return None
        squares = np.zeros(len(values))
        for place, (slice, part_values) in enumerate(
            zip(slices, gradient.split([s.count for s in slices]), strict=True)
        ):
            coded = [candidate for candidate, alone in enumerate(price.alone) if not alone[place]]
            errors = (
                layer_errors(part_values, slice.shape, settings, [values[candidate] for candidate in coded])
                if coded
                else []
            )
            squares[coded] += np.square(errors)
        energy, magnitude = float(sum_of_squares(gradient)), float(torch.linalg.vector_norm(gradient, 1))
        return share_of(squares.tolist(), price.bytes, energy, magnitude, part.copies)

    def _bytes(self, plan: Plan, prices: Prices) -> float:
        """Sent by this rank in a step under a plan."""
        settings = settings_with(self._config, plan)
        return sum(
            prices.bucket_price(part, content, settings) for part in self._parts for content in part.contents
        )

    def follow(self, plan: Plan) -> None:
        """Compress by this plan from the next step on."""
        if plan != self._rank.plan:
            self._rank.plan = plan
            for part in self._parts:
                part.follow(plan)
            report_uncompressed(self._rank, self._replicas)


class GradientSums:
    """A rank's gradients, summed over steps, each layer whole and flat: slices of it in the order of ranks."""

    def __init__(self) -> None:
        self.sums = dict[str, Tensor]()

    def add(self, content: Content, settings: Settings) -> None:
        """A bucket's gradients, of layers whose values ``settings`` leave open."""
        for name, slices in group_by_layer(content).items():
            if settings.gives(name):
                continue
            views = [content.flat[slice.start : slice.stop] for slice in slices]
            if name not in self.sums:
                self.sums[name] = torch.cat(views)
                continue
            for part, view in zip(
                self.sums[name].split([slice.count for slice in slices]), views, strict=True
            ):
                part.add_(view)


def group_by_layer(content: Content) -> dict[str, list[Part]]:
    """A bucket's parts by name: one, or where slices go to their owners one for each rank that gets some."""
    parts_by_layer = dict[str, list[Part]]()
    for part in content.parts:
        parts_by_layer.setdefault(part.name, []).append(part)
    return parts_by_layer


def next_plan(step: int, every: int) -> int:
    """The first step after ``step`` before which there is a plan: every so many steps, and before step ``WATCHED``."""
    regular = (step // every + 1) * every
    return min(regular, WATCHED) if step < WATCHED else regular
