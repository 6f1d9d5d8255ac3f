"""Ranks that share cores: what all of them take together, what each has alone, and what messages cost."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.published.shared_cores import Cores, simulate_shared
from engine.schedules.actions import Costs
from engine.schedules.registry import SCHEDULES, plan
from tests.support.predict.instant import instant
from tuning.predict.simulation.event_loop import simulate
from tuning.predict.simulation.step import OWN, Collective, CollectiveGroup, RankTraffic, Step
from tuning.predict.traffic.calls import Join

EVEN = Costs(1.0, 2.0, 1.0, 1.0)


def pipeline(kind: str, ranks: int, micro_batches: int, replicas: int = 1) -> Step:
    made = plan(kind, ranks, SCHEDULES[kind].chunks[0], micro_batches)
    return Step(made, (EVEN,) * made.stages, replicas=replicas)


def core_seconds(step: Step) -> float:
    return step.replicas * sum(
        step.seconds[one.stage].seconds(one.work) for actions in step.plan.actions for one in actions
    )


@pytest.mark.parametrize(("kind", "ranks"), list(product(SCHEDULES, (1, 2, 4))))
def test_with_a_core_for_each_rank_nothing_is_shared(kind: str, ranks: int) -> None:
    step, machine = pipeline(kind, ranks, 4), instant(ranks, 0.25)
    for cores in (ranks, 2 * ranks):
        assert simulate_shared(step, machine, cores).seconds == pytest.approx(simulate(step, machine).seconds)


@pytest.mark.parametrize(("kind", "ranks", "replicas"), list(product(SCHEDULES, (2, 4), (1, 3))))
def test_one_core_does_all_the_work_and_never_rests(kind: str, ranks: int, replicas: int) -> None:
    step = pipeline(kind, ranks, 3, replicas)
    assert simulate_shared(step, instant(ranks * replicas), 1).seconds == pytest.approx(core_seconds(step))


@pytest.mark.parametrize("cores", [1.0, 1.5, 2.0, 3.0])
def test_fewer_cores_are_slower_and_no_faster_than_their_work(cores: float) -> None:
    step, machine = pipeline("1f1b", 4, 8), instant(4)
    alone, shared = simulate(step, machine).seconds, simulate_shared(step, machine, cores).seconds
    assert shared >= max(alone, core_seconds(step) / cores) - 1e-9
    assert shared <= alone * 4 / cores + 1e-9


def test_equal_ranks_have_equal_parts_of_the_cores() -> None:
    played = simulate_shared(pipeline("1f1b", 1, 1, replicas=4), instant(4), 2)
    assert [ends[-1] for ends in played.ends] == pytest.approx([6.0] * 4)


def test_a_rank_computes_faster_while_another_waits() -> None:
    """Two stages, one micro-batch: in turn, so that each has a core of the one and a half to itself."""
    assert simulate_shared(pipeline("1f1b", 2, 1), instant(2), 1.5).seconds == pytest.approx(6.0)


def test_ranks_of_a_place_wait_for_each_other_without_a_core() -> None:
    """Two ranks on one core: 2 x 1 s forward, 1 s for the message, 2 x 2 s backward."""
    call = Collective("tp", "all_gather", 2, 8.0, OWN, seconds=1.0)
    made = plan("1f1b", 1, 1, 1)
    step = Step(made, (EVEN,), width=2, rank_traffic=(RankTraffic(actions=((call,), ())),))
    played = simulate_shared(step, instant(2), 1)
    assert played.seconds == pytest.approx(7.0)
    assert played.seconds == pytest.approx(simulate_shared(step, instant(2), 1, lambda one: 0.25).seconds)


def test_messages_beside_computation_take_cores_from_it() -> None:
    """Of two cores, messages of two ranks take one for 4 s: two forwards of 2 s on the other one take all of them."""
    call = Collective("dp", "all_reduce", 2, 8.0, CollectiveGroup(2), seconds=4.0, tag="gradients")
    sent = RankTraffic(before=(call,), after=(Join("gradients"),))
    step = Step(plan("1f1b", 1, 1, 1), (Costs(2.0, 0.0),), replicas=2, rank_traffic=(sent,))
    assert simulate_shared(step, instant(2), 2).spans(0)[0].end == pytest.approx(2.0)
    shared = simulate_shared(step, instant(2), 2, lambda one: 2.0)
    assert shared.spans(0)[0].end == shared.seconds == pytest.approx(4.0)


def test_messages_among_a_places_ranks_share_the_link_with_others() -> None:
    """1 s of work, then 1 s of messages on half of the link, which has 4 s of gradients on it: those take 5 s."""
    gradients = Collective("dp", "all_reduce", 2, 8.0, CollectiveGroup(2), seconds=4.0, tag="gradients")
    inner = Collective("tp", "all_gather", 2, 8.0, OWN, seconds=1.0)
    sent = RankTraffic(before=(gradients,), actions=((inner,), ()), after=(Join("gradients"),))
    step = Step(plan("1f1b", 1, 1, 1), (Costs(1.0, 0.0),), replicas=2, width=2, rank_traffic=(sent,))
    played = simulate_shared(step, instant(4), 4)
    assert played.spans(0)[0].end == pytest.approx(3.0)
    assert played.seconds == pytest.approx(5.0)


def test_the_pace_follows_who_computes_and_what_messages_take() -> None:
    cores = Cores(2, width=2)
    assert cores.pace == 1.0
    cores.begin(0, 1.0, 0.0)
    assert (cores.pace, cores.end) == (1.0, 1.0)
    cores.begin(1, 1.0, 0.5)
    assert (cores.pace, cores.end) == (0.5, 1.5)
    cores.take(1.0, 1.0)
    assert (cores.pace, cores.end) == (0.25, 2.0)
    assert cores.finish(2.0) == 0
    cores.take(-1.0, 2.0)
    assert (cores.pace, cores.end) == (1.0, pytest.approx(2.5))


def test_no_cores_are_refused() -> None:
    with pytest.raises(ValueError, match="cores: 0"):
        simulate_shared(pipeline("1f1b", 2, 2), instant(2), 0)
