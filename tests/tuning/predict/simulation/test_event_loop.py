"""Steps played by events: against closed forms, against what queues and credits must give, and at a standstill."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schedules import closed_forms
from engine.schedules import simulate as timing
from engine.schedules.actions import Action, Costs, Plan, Work
from engine.schedules.registry import SCHEDULES, plan
from tests.support.predict.instant import instant, peak_in_flight
from tuning.predict.model.hardware import Accelerator, Cluster, Group, Link
from tuning.predict.simulation.event_loop import DeadlockError, simulate
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.step import OWN, Collective, CollectiveGroup, Pause, RankTraffic, Step
from tuning.predict.simulation.step_result import SimulatedStep
from tuning.predict.traffic.calls import Join

EVEN = Costs(1.0, 2.0, 1.0, 1.0)
DEVICE = Accelerator("a device", {}, 0, 0.0)


def played(kind: str, ranks: int, chunks: int, micro_batches: int, costs: Costs = EVEN) -> SimulatedStep:
    made = plan(kind, ranks, chunks, micro_batches)
    return simulate(Step(made, (costs,) * made.stages), instant(ranks, costs.hop))


def sizes() -> list[tuple[str, int, int, int]]:
    found = product(SCHEDULES, (1, 2, 3, 4, 6), (1, 2, 3), (1, 2, 3, 4, 7, 8, 12))
    return [size for size in found if SCHEDULES[size[0]].chunks_problem(size[2]) is None]


def one_node(rate: float, alpha: float = 0.0, devices: int = 8, nodes: int = 1) -> Cluster:
    link = Link(alpha, rate)
    return Cluster("a cluster", (Group(nodes, devices, DEVICE, link, link, "wire"),))


@pytest.mark.parametrize("kind", SCHEDULES)
def test_in_flight_and_bubble_are_those_of_the_closed_forms(kind: str) -> None:
    for _, ranks, chunks, micro_batches in (size for size in sizes() if size[0] == kind):
        made = played(kind, ranks, chunks, micro_batches)
        assert peak_in_flight(made) == closed_forms.peak_in_flight(kind, ranks, chunks, micro_batches)
        if SCHEDULES[kind].idle is None:
            continue
        fraction = closed_forms.bubble_fraction(kind, ranks, chunks, micro_batches, EVEN)
        assert made.bubble_fraction == pytest.approx(fraction, abs=1e-12)


@given(st.sampled_from(sizes()), st.integers(0, 3), st.integers(1, 4), st.integers(0, 8))
def test_every_span_is_that_of_the_plain_timing(
    size: tuple[str, int, int, int], hop: int, forward: int, seed: int
) -> None:
    made = plan(*size)
    costs = Costs(forward, forward + 1 + seed, forward, 1 + seed, hop / 4)
    assert played(*size, costs).timeline() == timing.simulate(made, costs)
    assert peak_in_flight(played(*size, costs), weight_share=0.5) == timing.peak_in_flight(made, 0.5)


def test_1f1b_with_slow_links_pays_a_round_trip_for_each_group_of_micro_batches() -> None:
    """(m + p - 1)(f + b) + (m / p) 2 (p - 1) d + 2 (p - 2) d: Pipette's form (arXiv 2405.18093), made exact."""
    cases = list(product(range(2, 9), range(1, 9), ((1, 1), (1, 2), (2, 3), (3, 4)), (0.2, 1.0)))
    assert len(cases) > 400
    for p, groups, (f, b), share in cases:
        m, delay = groups * p, share * f
        form = (m + p - 1) * (f + b) + groups * 2 * (p - 1) * delay + 2 * (p - 2) * delay
        assert played("1f1b", p, 1, m, Costs(f, b, hop=delay)).seconds == pytest.approx(form, rel=1e-12)


def test_messages_queue_on_a_link_that_is_slower_than_the_work() -> None:
    made, size, rate = plan("gpipe", 2, 1, 10), 6.0, 2.0
    step = Step(made, (Costs(1.0, 0.0),) * 2, message_bytes=size)
    done = simulate(step, Machine(one_node(rate, alpha=0.5)))
    last = [span.start for span in done.spans(1) if span.action.work is Work.FORWARD][-1]
    assert last == pytest.approx(1.0 + 10 * size / rate + 0.5)


def test_both_directions_of_a_link_are_free_of_each_other() -> None:
    """With whole duplex, what goes up does not slow what comes down: as fast as with the latency alone."""
    made = plan("1f1b", 2, 1, 8)
    step = Step(made, (Costs(1.0, 1.0),) * 2, message_bytes=0.25)
    wire = simulate(step, Machine(one_node(1.0)))
    assert wire.seconds == pytest.approx(simulate(step, instant(2, 0.25)).seconds)


def test_devices_of_a_node_may_share_one_card() -> None:
    """Between two nodes a shared card has four devices' rate: four messages take turns, and the last one is there when
    each alone on its own card would be.
    """
    step, cluster = Step(plan("gpipe", 2, 1, 1), (EVEN,) * 2, 2.0, replicas=4), one_node(1.0, 0.0, 4, 2)
    starts = {}
    for card in ("device", "node"):
        done = simulate(step, Machine(cluster, network_card=card))
        starts[card] = [done.spans(place)[0].start for place in range(4, 8)]
    assert starts["device"] == pytest.approx([3.0] * 4)
    assert starts["node"] == pytest.approx([1.5, 2.0, 2.5, 3.0])


def test_messages_and_collectives_share_a_port() -> None:
    """The first pipeline rank's all-reduce of 10 s is on the ports that two activations leave by and two gradients come
    in by: each takes twice its second, and the all-reduce is as much later. Both replicas do so at once, which costs it
    no more than one.
    """
    made = plan("gpipe", 2, 1, 2)
    reduce = Collective("dp", "all_reduce", 2, 10.0, CollectiveGroup(2), tag="gradients")
    sent = (RankTraffic(before=(reduce,), after=(Join("gradients"),)), RankTraffic())
    cluster = one_node(1.0, nodes=4, devices=1)
    step = Step(made, (Costs(1.0, 1.0),) * 2, 1.0, replicas=2, rank_traffic=sent)
    shared = simulate(step, Machine(cluster))
    assert [span.start for span in shared.spans(2)[:2]] == pytest.approx([1.0 + 2.0, 1.0 + 2 * 2.0])
    assert next(shared.calls(0)).seconds == pytest.approx(10.0 + 4 * 1.0)
    alone = simulate(replace(step, rank_traffic=()), Machine(cluster))
    assert [span.start for span in alone.spans(2)[:2]] == pytest.approx([2.0, 3.0])


def test_gradients_do_not_hold_up_the_pipeline() -> None:
    """However long a stage's all-reduce takes, the gradient of its input reaches the stage before in twice its time."""
    made, ranks = plan("1f1b", 8, 1, 8), 8
    bucket = Collective("dp", "all_reduce", 2, 1000.0, CollectiveGroup(2), tag="gradients")
    sent = tuple(
        RankTraffic(actions=(*[()] * 15, (bucket, bucket)), after=(Join("gradients"),)) for _ in range(ranks)
    )
    step = Step(made, (EVEN,) * ranks, 1.0, replicas=2, rank_traffic=sent)
    cluster = one_node(10.0, nodes=16, devices=1)
    alone = simulate(replace(step, rank_traffic=()), Machine(cluster)).timeline().seconds
    assert simulate(step, Machine(cluster)).timeline().seconds <= alone + (ranks - 1) * 0.1 + 1e-9


@pytest.mark.parametrize("quota", [1, 2, 3, 8])
@pytest.mark.parametrize(("make", "use", "way"), [(1.0, 1.0, 0.0), (1.0, 3.0, 0.5), (2.0, 1.0, 2.0)])
def test_credits_set_the_pace(quota: int, make: float, use: float, way: float) -> None:
    """In steady state min(1 / slowest stage, quota / round trip), as OneFlow's actors must (arXiv 2110.15032)."""
    made = plan("gpipe", 2, 1, 64)
    step = Step(made, (Costs(make, 0.0), Costs(use, 0.0)), registers=quota)
    done = simulate(step, instant(2, way))
    ends = [span.end for span in done.spans(1) if span.action.work is Work.FORWARD]
    pace = (ends[63 - 7] - ends[63 - 7 - 24]) / 24
    assert pace == pytest.approx(max(make, use, (make + way + use + way) / quota))


def test_a_slow_consumer_stops_its_producer() -> None:
    """At most as many results as registers are made and not used up; without a bound they pile up."""
    made = plan("gpipe", 2, 1, 32)

    def most(registers: int | None) -> int:
        done = simulate(Step(made, (Costs(1.0, 0.0), Costs(5.0, 0.0)), registers=registers), instant(2))
        begins = [span.start for span in done.spans(0) if span.action.work is Work.FORWARD]
        used = [span.end for span in done.spans(1) if span.action.work is Work.FORWARD]
        return max(sum(one <= time for one in begins) - sum(one <= time for one in used) for time in begins)

    assert most(3) == 3
    assert most(None) > 20


@given(
    st.sampled_from(("1f1b", "gpipe", "zb_h1")),
    st.integers(2, 5),
    st.integers(1, 12),
    st.lists(st.integers(1, 9), min_size=5, max_size=5),
    st.integers(0, 3),
)
def test_more_registers_never_make_a_step_longer(
    kind: str, ranks: int, micro_batches: int, works: list[int], way: int
) -> None:
    made = plan(kind, ranks, 1, micro_batches)
    costs = tuple(Costs(work, 2 * work, work, work) for work in works[:ranks])
    steps = [Step(made, costs, registers=quota) for quota in (1, 2, 4, None)]
    seconds = [simulate(step, instant(ranks, way)).seconds for step in steps]
    assert seconds == sorted(seconds, reverse=True)


def test_too_few_registers_for_a_loop_end_in_a_deadlock() -> None:
    """Breadth-first takes all micro-batches of a chunk before anybody reads what the last rank gave back."""
    step = Step(plan("breadth_first", 2, 2, 8), (EVEN,) * 4, registers=1)
    with pytest.raises(DeadlockError, match=r"rank 0 waits at F2 for one of 1 registers .* rank 1"):
        simulate(step, instant(2))
    simulate(replace(step, registers=8), instant(2))


def test_lists_that_wait_for_each_other_end_in_a_deadlock() -> None:
    first = (
        Action(Work.FORWARD, 0),
        Action(Work.BACKWARD, 0),
        Action(Work.FORWARD, 1),
        Action(Work.BACKWARD, 1),
    )
    second = tuple(Action(work, number, 1) for number in (1, 0) for work in (Work.FORWARD, Work.BACKWARD))
    with pytest.raises(DeadlockError, match="pipeline rank 0 waits at B0 for its message; pipeline rank 1"):
        simulate(Step(Plan("mine", 2, 2, 2, (0, 1), (first, second)), (EVEN,) * 2), instant(2))


def test_a_rank_cannot_use_what_it_has_not_made() -> None:
    backwards = (Action(Work.BACKWARD, 0, 0), Action(Work.FORWARD, 0, 0), Action(Work.FORWARD, 0, 1))
    with pytest.raises(ValueError, match="before its own"):
        simulate(Step(Plan("mine", 1, 2, 1, (0, 0), (backwards,)), (EVEN,) * 2), instant(1))


def test_everybody_waits_for_the_slowest_in_a_collective() -> None:
    reduce = Collective("dp", "all_reduce", 4, 8.0, CollectiveGroup(4), seconds=0.5)
    step = Step(
        plan("gpipe", 1, 1, 2), (EVEN,), replicas=4, rank_traffic=(RankTraffic(after=(reduce, Pause(0.25))),)
    )
    done = simulate(step, replace(instant(4), slower={2: 1.5}))
    assert done.seconds == pytest.approx(6.0 * 1.5 + 0.5 + 0.25 * 1.5)
    assert [next(done.calls(place)).exposed for place in range(4)] == pytest.approx([3.5, 3.5, 0.5, 3.5])


def test_gradients_travel_beside_the_rest_of_the_backward() -> None:
    """Three buckets in one backward of 3 s: at 1, 2 and 3 s; one at a time on the link, the last one ends at 4 s."""
    bucket = Collective("dp", "all_reduce", 2, 0.0, CollectiveGroup(2), seconds=1.0, tag="gradients")
    actions = ((), (bucket,) * 3)
    sent = (RankTraffic(actions=actions, after=(Join("gradients"),)),)
    step = Step(plan("gpipe", 1, 1, 1), (Costs(1.0, 3.0),), replicas=2, rank_traffic=sent)
    done = simulate(step, instant(2))
    calls = list(done.calls(0))
    assert [call.begin for call in calls] == pytest.approx([2.0, 3.0, 4.0])
    assert done.seconds == pytest.approx(5.0)
    assert [call.exposed for call in calls] == pytest.approx([0.0, 0.0, 1.0])
    slow = replace(step, rank_traffic=(replace(sent[0], actions=((), (bucket._replace(seconds=2.0),) * 3)),))
    assert simulate(slow, instant(2)).seconds == pytest.approx(2.0 + 3 * 2.0)


def test_a_layers_parameters_are_gathered_beside_the_layer_before_it() -> None:
    """Three layers of 1 s: their gathers of 0.5 s are hidden but for the first, those of 2 s but for 1 s each."""
    made = plan("gpipe", 1, 1, 1)

    def seconds(gather: float) -> float:
        call = Collective("dp", "all_gather", 2, 0.0, CollectiveGroup(2), seconds=gather)
        layers = [(call._replace(tag=name), Join(name)) for name in ("first", "second", "third")]
        sent = (RankTraffic(actions=(tuple(item for layer in layers for item in layer), ())),)
        return simulate(Step(made, (Costs(3.0, 1.0),), replicas=2, rank_traffic=sent), instant(2)).seconds

    assert seconds(0.5) == pytest.approx(0.5 + 3 * 1.0 + 1.0)
    assert seconds(2.0) == pytest.approx(3 * 2.0 + 1.0 + 1.0)


def test_what_lockstep_ranks_send_among_themselves_is_part_of_their_work() -> None:
    """Two gathers of four ranks over 1 byte/s: each 3 / 4 of 4 bytes."""
    gather = Collective("tp", "all_gather", 4, 4.0, OWN)
    sent = (RankTraffic(actions=((gather,) * 2, ())),)
    step = Step(plan("gpipe", 1, 1, 1), (Costs(1.0, 2.0),), width=4, rank_traffic=sent)
    done = simulate(step, Machine(one_node(1.0)))
    assert done.seconds == pytest.approx(3.0 + 2 * 3.0)
    assert [call.begin for call in done.calls(0)] == pytest.approx([0.5, 4.0])
    assert [call.seconds for call in done.calls(0)] == pytest.approx([3.0, 3.0])


def test_phases_cover_every_place_without_gaps() -> None:
    reduce = Collective("dp", "all_reduce", 2, 3.0, CollectiveGroup(2), tag="gradients")
    norm = Collective("world", "all_reduce", 8, 8.0, CollectiveGroup(2, whole_pipeline=True))
    made = plan("1f1b", 4, 1, 6)
    actions = (*[()] * 11, (reduce,))
    sent = (RankTraffic(actions=actions, after=(Join("gradients"), norm, Pause(0.5))),) * 4
    step = Step(made, (EVEN,) * 4, 1.0, replicas=2, rank_traffic=sent)
    done = simulate(step, Machine(one_node(4.0, 0.1), jitter=0.1, seed=3))
    for place in range(8):
        phases = list(done.phases(place))
        assert phases[0].start == 0.0
        assert all(one.end == other.start for one, other in pairwise(phases))
        busy = sum(span.end - span.start for span in done.spans(place))
        compute = sum(one.end - one.start for one in phases if one.phase in ("forward", "backward"))
        assert compute == pytest.approx(busy)


def test_jitter_is_a_seeds() -> None:
    step, machine = Step(plan("1f1b", 4, 1, 40), (EVEN,) * 4), replace(instant(4), jitter=0.2)
    same = [simulate(step, machine).seconds for _ in range(2)]
    other = simulate(step, replace(machine, seed=1))
    assert same[0] == same[1] != other.seconds
    spans = [span.end - span.start for span in other.spans(0) if span.action.work is Work.FORWARD]
    assert sum(spans) / len(spans) == pytest.approx(1.0, abs=0.15)
    assert max(spans) > min(spans)


def test_bad_input_names_its_field() -> None:
    made = plan("gpipe", 2, 1, 2)
    with pytest.raises(ValueError, match="seconds: 1 entries for 2 stages"):
        Step(made, (EVEN,))
    with pytest.raises(ValueError, match="registers: 0 is not at least 1"):
        Step(made, (EVEN,) * 2, registers=0)
    with pytest.raises(ValueError, match="device_of: 2 ranks need a device each"):
        simulate(Step(made, (EVEN,) * 2), instant(1))
