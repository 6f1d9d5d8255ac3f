"""Which rank of a pipeline owns which stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.schedules.actions import Size


@dataclass(frozen=True)
class StagePlacement:
    """Which rank owns which stage; ``title`` is for people.

    Stages come in rounds of one for each rank: ``owners`` are the ranks of a round, by its number and that of ranks.
    With ``wraps`` each round begins at the first rank again, which follows on the last one; without it at the rank
    where the round before ended. All other steps from stage to stage are between neighbours.
    """

    title: str
    owners: Callable[[int, int], tuple[int, ...]]
    wraps: bool

    def rank_of_stages(self, size: Size) -> tuple[int, ...]:
        """Stage -> rank."""
        rounds = (self.owners(number, size.ranks) for number in range(size.chunks))
        return tuple(rank for owners in rounds for rank in owners)


def _down(number: int, ranks: int) -> tuple[int, ...]:
    return tuple(range(ranks))


def _down_and_up(number: int, ranks: int) -> tuple[int, ...]:
    return tuple(reversed(range(ranks))) if number % 2 else tuple(range(ranks))


#: Stages 0 1 2 3 4 5 on ranks 0 1 2 0 1 2, and on ranks 0 1 2 2 1 0.
LOOP, V = StagePlacement("loop", _down, wraps=True), StagePlacement("v", _down_and_up, wraps=False)
