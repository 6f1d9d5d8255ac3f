"""Schedules by the names that configurations use, and what each of them asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.schedules.actions import Action, Plan, Schedule, Size
from engine.schedules.classic import breadth_first, gpipe, interleaved, layered, one_f_one_b
from engine.schedules.zero_bubble import zero_bubble, zero_bubble_v


@dataclass(frozen=True)
class Kind:
    """Facts about a schedule: where it comes from, which stages a rank owns, what it does to backwards.

    ``loop`` deals stages to ranks in rounds, ``v`` down the ranks and up again. ``chunks`` are the legal numbers
    of stages per rank; a ``range`` without a practical end means any.
    """

    schedule: Schedule
    paper: str
    chunks: range
    placement: Literal["loop", "v"] = "loop"
    splits_backward: bool = False

    def chunks_problem(self, chunks: int) -> str | None:
        """What is wrong with a number of stages per rank, with the nearest legal one."""
        if chunks in self.chunks:
            return None
        least, most = self.chunks[0], self.chunks[-1]
        rule = f"exactly {least}" if least == most else f"at least {least}"
        return f"must be {rule} with this schedule; nearest legal: {min(max(chunks, least), most)}"

    def micro_batches_problem(self, micro_batches: int) -> str | None:
        """What is wrong with a number of micro-batches per step, with the nearest legal one.

        Every schedule here runs any positive number; fewer micro-batches than ranks leave the largest bubbles.
        """
        return None if micro_batches >= 1 else "must be at least 1; nearest legal: 1"


ANY, ONE, TWO = range(1, 1_000_000), range(1, 2), range(2, 3)

KINDS: dict[str, Kind] = {
    "gpipe": Kind(gpipe, "1811.06965", ONE),
    "1f1b": Kind(one_f_one_b, "2006.09503", ONE),
    "interleaved": Kind(interleaved, "2104.04473", ANY),
    "zb_h1": Kind(zero_bubble, "2401.10241", ONE, splits_backward=True),
    "zb_v": Kind(zero_bubble_v, "2401.10241", TWO, placement="v", splits_backward=True),
    "breadth_first": Kind(breadth_first, "2211.05953", ANY),
    "layered": Kind(layered, "2106.02679", ANY),
}


def plan(kind: str, ranks: int, chunks: int, micro_batches: int) -> Plan:
    """The whole schedule of one step.

    On one rank with one chunk all kinds shrink to one: each micro-batch forward, then its whole backward, so
    that accumulation never keeps more than one micro-batch of activations.

    Raises:
        KeyError: the kind is unknown.
        ValueError: a number that the kind cannot use.
    """
    facts, size = KINDS[kind], Size(ranks, chunks, micro_batches)
    for name, problem in (
        ("ranks", None if ranks >= 1 else "must be at least 1; nearest legal: 1"),
        ("chunks", facts.chunks_problem(chunks)),
        ("micro_batches", facts.micro_batches_problem(micro_batches)),
    ):
        if problem:
            raise ValueError(f"{kind}: {name}={getattr(size, name)} {problem}")
    schedule = one_f_one_b if size.stages == 1 else facts.schedule
    actions = tuple(tuple(schedule(rank, size)) for rank in range(ranks))
    return Plan(kind, ranks, size.stages, micro_batches, placed(facts.placement, size), actions)


def placed(placement: Literal["loop", "v"], size: Size) -> tuple[int, ...]:
    """Stage -> rank: in rounds (0 1 2 0 1 2), or down and up again (0 1 2 2 1 0)."""
    around = tuple(range(size.ranks))
    rounds = [around[::-1] if placement == "v" and chunk % 2 else around for chunk in range(size.chunks)]
    return tuple(rank for turn in rounds for rank in turn)


def actions_for(kind: str, stage: int, stages: int, micro_batches: int) -> list[Action]:
    """The list that one stage executes when every rank has one."""
    return list(plan(kind, stages, 1, micro_batches).actions[stage])
