"""The bars of a call end where its numbers say."""

import pytest

from profilers.collectives.collective_call import CollectiveCall, RankParticipation
from workbench.figures.anatomy.call import call

MET = CollectiveCall(
    step=7,
    axis="dp",
    operation="all_reduce",
    number=1,
    bytes=1000,
    dtype="float32",
    algorithm=None,
    group_size=2,
    began=0.040,
    ended=0.060,
    last_rank=1,
    late_seconds=0.030,
    clock_error_seconds=0.0,
    ranks=[RankParticipation(0, 0.010, 0.059, 0.030, 0.02), RankParticipation(1, 0.040, 0.060, 0.0, 0.02)],
)


def test_a_rank_waits_until_the_last_one_came_and_runs_until_its_own_end() -> None:
    waits, runs = call(MET).data
    assert (list(waits.y), waits.name) == (["rank 0", "rank 1 (last)"], "waits for rank 1")
    assert (list(waits.base), list(waits.x)) == (pytest.approx([10, 40]), pytest.approx([30, 0]))
    assert (list(runs.base), list(runs.x)) == (pytest.approx([40, 40]), pytest.approx([19, 20]))
    assert list(runs.customdata) == [0, 1]
