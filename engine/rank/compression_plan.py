"""Compression plans while a run goes: gradients are watched for some steps, then all ranks follow rank 0's choice.

A rank sums its own gradients as they are before compression: what comes back from a sparse average holds zeros for
all that was not sent, and would hide errors. The ranks' errors are averaged; nothing but them is sent.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor

from engine.checkpoint.resume import Found
from engine.comm.context import RankContext
from engine.comm.store import Meeting
from engine.compression.interface import Content
from engine.compression.l_greco import Row, chosen, means, share_of
from engine.compression.registry import errors_of
from engine.compression.wire_cost import Prices
from engine.config.compression import NO_PLAN, Plan, Settings, candidates, settings_of, settings_with
from engine.config.sections import Compression
from engine.parallel.data.averaging import Averaged
from engine.parallel.data.replica import Replica
from engine.parallel.data.replicated import DataParallel


def tell_left_alone(rank: RankContext, replicas: Iterable[Replica]) -> None:
    """The parameters of this rank that are sent as they are though a method is chosen; the last word counts."""
    found = {name: reason for replica in replicas for name, reason in replica.left_alone().items()}
    if rank.config.compression.method != "none":
        rank.writer.event("left_alone", parameters=found)


#: Steps whose gradients are summed up; also the step before which there is a first plan.
WATCHED = 10
#: The kind of the event in which rank 0 tells of a plan.
EVENT = "plan"


class Planner:
    """One rank's part; every rank makes the same calls. It does nothing without ``compression.plan``."""

    def __init__(self, rank: RankContext, replicas: Collection[Replica]) -> None:
        self._rank, self._replicas, self._meeting = rank, replicas, Meeting(rank, "plans")
        whole = [replica for replica in replicas if isinstance(replica, DataParallel)]
        self._parts = [part for replica in whole for part in replica.parts if part.compressor is not None]
        self._sums, self._steps = dict[str, Tensor](), 0

    def adopt(self, found: Found) -> None:
        """Go on with the plan of the checkpoint that the run continues from, if it was made for these settings."""
        saved = found.manifest.plan
        plan = Plan(**saved) if saved else NO_PLAN
        if self._config.plan == "none" or not plan.fits(settings_of(self._config)):
            return
        self._follow(plan)
        if self._rank.rank == 0 and plan != NO_PLAN:
            about = {"method": plan.method, "default": plan.default, "layers": dict(plan.values)}
            self._rank.writer.event(EVENT, step=found.manifest.step, **about, taken_from=found.run)

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
        began, meeting, prices = time.monotonic(), self._meeting, Prices()
        self._rank.state("planning")
        settings, alpha = settings_of(self._config), self._config.plan_alpha
        rows = meeting.gather(f"{step}.rows", self._rows(settings, prices))
        found = meeting.tell(f"{step}.plan", lambda: chosen(rows, settings, alpha))
        plan = Plan(settings.method, settings.value, found["layers"])
        mine = [self._bytes(one, prices) for one in (NO_PLAN, self._rank.plan, plan)]
        totals = meeting.gather(f"{step}.bytes", mine)
        uniform, before, after = meeting.tell(f"{step}.total", lambda: means(totals))
        if alpha >= 1 and after >= uniform:
            plan, after = NO_PLAN, uniform
            found |= {"layers": {}, "error": found["error_uniform"]}
        self._follow(plan)
        if self._rank.rank == 0:
            sizes = {"bytes_uniform": uniform, "bytes_before": before, "bytes_after": after}
            about = {"method": settings.method, "default": settings.value} | found | sizes
            self._rank.writer.event(EVENT, step=step, **about, seconds=time.monotonic() - began)

    def _rows(self, settings: Settings, prices: Prices) -> dict[str, Row]:
        """This rank's share of the table, of the layers that some candidate compresses."""
        found = dict[str, Row]()
        for part in self._parts:
            for one in (one for content in part.contents for one in content.parts):
                if one.name in self._sums:
                    row = self._row(part, one.shape, self._sums[one.name], settings, prices)
                    found |= {} if row is None else {one.name: row}
        return found

    def _row(
        self, part: Averaged, shape: tuple[int, ...], gradient: Tensor, settings: Settings, prices: Prices
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
            tell_left_alone(self._rank, self._replicas)


def next_plan(step: int, every: int) -> int:
    """The first step after ``step`` before which there is a plan: every so many steps, and before step ``WATCHED``."""
    regular = (step // every + 1) * every
    return min(regular, WATCHED) if step < WATCHED else regular


def _group(part: Averaged) -> Any:
    assert part.shared.group is not None, "without a group nothing is compressed"
    return part.shared.group
