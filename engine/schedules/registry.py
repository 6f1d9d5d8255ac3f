"""Schedules by the names that configurations use, and what each of them asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.schedules import algorithms, skip_pipe
from engine.schedules.actions import Action, Costs, Plan, Schedule, Size, Work
from engine.schedules.algorithms import (
    breadth_first,
    gpipe,
    interleaved,
    layered,
    one_f_one_b,
    zero_bubble,
    zero_bubble_v,
)
from engine.schedules.skip_pipe import Skips
from engine.schedules.stage_placement import LOOP, StagePlacement, V


@dataclass(frozen=True)
class ScheduleFacts:
    """Facts about a schedule: where it comes from, which stages a rank owns, what it does to backwards.

    ``schedule`` makes the list of one rank, for any number of ranks and of micro-batches and each legal number of
    chunks; :mod:`engine.schedules.actions` says what a legal list is. ``placement``
    deals stages to ranks. ``chunks`` are the legal numbers of stages per rank, without gaps; a ``range`` without
    a practical end means any. With ``chunk_by_chunk`` a chunk takes all micro-batches before another one, so its
    sharded parameters are gathered once a pass. ``idle`` and ``peak`` are the closed forms of the seconds that each
    rank waits and of the activations that a rank keeps; without one the lists are simulated and counted.
    ``idle_of_any_costs`` says whether that form holds for any. With ``skips`` micro-batches can leave out stages.
    ``offered`` schedules are in the space of a study that names none, ``compared`` ones beside a prediction and in
    plans.
    """

    schedule: Schedule
    paper: str
    chunks: range
    placement: StagePlacement = LOOP
    splits_backward: bool = False
    chunk_by_chunk: bool = False
    idle: Callable[[Size, Costs], float] | None = None
    idle_of_any_costs: bool = True
    peak: Callable[[int, Size], int] | None = None
    skips: bool = False
    offered: bool = False
    compared: bool = False

    def chunks_problem(self, chunks: int) -> str | None:
        """What is wrong with a number of stages per rank, with the nearest legal one."""
        if chunks in self.chunks:
            return None
        least, most = self.chunks[0], self.chunks[-1]
        rule = f"exactly {least}" if least == most else f"at least {least}"
        rule += f" and at most {most}" if least < most < ANY[-1] else ""
        return f"must be {rule} with this schedule; nearest legal: {min(max(chunks, least), most)}"

    @property
    def shown_chunks(self) -> int:
        """Stages per rank where nobody asks for a number: two show what several do, else the fewest that are legal."""
        return 2 if 2 in self.chunks else self.chunks[0]

    @property
    def chunks_words(self) -> str:
        """The legal numbers of stages per rank in words."""
        least, most = self.chunks[0], self.chunks[-1]
        if least == most:
            return str(least)
        return f"{least} or more" if most == ANY[-1] else f"{least} to {most}"


ANY, ONE, TWO = range(1, 1_000_000), range(1, 2), range(2, 3)

#: By the names that configurations use. The order is a choice, too: the best known first. Of schedules that come to
#: the same lists a study measures the one that stands first, under its name (``best_known`` in
#: ``tuning/space/points.py``), and predictions name compared ones in this order. A new schedule goes to the end.
SCHEDULES: dict[str, ScheduleFacts] = {
    "1f1b": ScheduleFacts(
        one_f_one_b,
        "2006.09503",
        ONE,
        idle=algorithms.idle_one_f_one_b,
        peak=algorithms.peak_one_f_one_b,
        skips=True,
        offered=True,
        compared=True,
    ),
    "gpipe": ScheduleFacts(
        gpipe, "1811.06965", ONE, idle=algorithms.idle_chunk_by_chunk, peak=algorithms.peak_all, offered=True
    ),
    "interleaved": ScheduleFacts(
        interleaved,
        "2104.04473",
        ANY,
        idle=algorithms.idle_interleaved,
        peak=algorithms.peak_interleaved,
        skips=True,
        offered=True,
        compared=True,
    ),
    "zb_h1": ScheduleFacts(
        zero_bubble,
        "2401.10241",
        ONE,
        splits_backward=True,
        idle=algorithms.idle_zero_bubble,
        peak=algorithms.peak_zero_bubble,
        offered=True,
    ),
    "zb_v": ScheduleFacts(
        zero_bubble_v,
        "2401.10241",
        TWO,
        placement=V,
        splits_backward=True,
        idle=algorithms.idle_zero_bubble_v,
        idle_of_any_costs=False,
        peak=algorithms.peak_zero_bubble_v,
    ),
    "breadth_first": ScheduleFacts(
        breadth_first,
        "2211.05953",
        ANY,
        chunk_by_chunk=True,
        idle=algorithms.idle_chunk_by_chunk,
        peak=algorithms.peak_all,
        offered=True,
    ),
    "layered": ScheduleFacts(
        layered,
        "2106.02679",
        ANY,
        chunk_by_chunk=True,
        idle=algorithms.idle_chunk_by_chunk,
        peak=algorithms.peak_all,
    ),
}


def compared(chunks: int) -> list[str]:
    """The schedules of ``chunks`` stages a rank that predictions compare, the best known first: with several those that
    allow so many, with one those that allow no other number.
    """
    return [
        name
        for name, facts in SCHEDULES.items()
        if facts.compared and chunks in facts.chunks and (chunks > 1 or len(facts.chunks) == 1)
    ]


def rank_of_stages(kind: str, ranks: int, chunks: int) -> tuple[int, ...]:
    """Stage -> rank of the pipeline, by the schedule of that name."""
    return SCHEDULES[kind].placement.rank_of_stages(Size(ranks, chunks, 1))


def peak_activations(actions: Sequence[Action]) -> int:
    """The most micro-batches of stages whose activations one rank's list keeps at a time, from F to B or W."""
    most = now = 0
    for action in actions:
        now += (action.work is Work.FORWARD) - (action.work in (Work.BACKWARD, Work.WEIGHT))
        most = max(most, now)
    return most


def plan(kind: str, ranks: int, chunks: int, micro_batches: int, skips: Skips | None = None) -> Plan:
    """The whole schedule of one step; with ``skips`` micro-batches leave out stages.

    On one rank with one chunk all kinds shrink to one: each micro-batch forward, then its whole backward, so
    that accumulation never keeps more than one micro-batch of activations.

    Raises:
        KeyError: the kind is unknown.
        ValueError: a number that the kind cannot use.
    """
    facts, size = SCHEDULES[kind], Size(ranks, chunks, micro_batches)
    for name, problem in (
        ("ranks", None if ranks >= 1 else "must be at least 1; nearest legal: 1"),
        ("chunks", facts.chunks_problem(chunks)),
        ("micro_batches", None if micro_batches >= 1 else "must be at least 1; nearest legal: 1"),
    ):
        if problem:
            raise ValueError(f"{kind}: {name}={getattr(size, name)} {problem}")
    schedule = one_f_one_b if size.stages == 1 else facts.schedule
    actions = tuple(tuple(schedule(rank, size)) for rank in range(ranks))
    whole = Plan(kind, ranks, size.stages, micro_batches, facts.placement.rank_of_stages(size), actions)
    return whole if skips is None else skip_pipe.skip_stages(whole, skips)
