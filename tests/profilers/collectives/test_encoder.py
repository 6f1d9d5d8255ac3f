"""Waits that outlast the end of what was waited for: planted calls whose noticing is known."""

from __future__ import annotations

from profilers.collectives.encoder import Kind, Span, TimedCall, extend_to_noticed
from tests.support.approximate import about

KIND = Kind(("all_reduce", None, None, 8, None, None))


def call(begin: float, end: float | None, exposed: float | None) -> TimedCall:
    return TimedCall(KIND, begin, None if end is None else end - begin, exposed)


def noticed(
    calls: list[TimedCall], *waits: tuple[float, float, list[Span]]
) -> list[tuple[float | None, float | None]]:
    """Seconds and exposed seconds of each call."""
    extend_to_noticed(calls, waits)
    return [(one.seconds, one.exposed) for one in calls]


def test_a_call_lasts_until_its_waiter_goes_on() -> None:
    assert noticed([call(1.0, 5.0, 2.0)], (3.0, 5.5, [])) == [(about(4.5), about(2.5))]


def test_only_the_last_one_to_end_in_a_wait_was_waited_for_until_then() -> None:
    calls = [call(1.0, 5.0, 2.0), call(2.0, 4.0, 1.0)]
    assert noticed(calls, (3.0, 6.0, [])) == [(about(5.0), about(3.0)), (about(2.0), about(1.0))]


def test_a_call_that_ended_beside_computation_stays_as_it_is() -> None:
    assert noticed([call(1.0, 2.0, 0.0)], (3.0, 4.0, [])) == [(about(1.0), 0.0)]


def test_each_wait_has_its_own() -> None:
    calls = [call(1.0, 3.0, 1.0), call(1.5, 7.0, 2.0)]
    found = noticed(calls, (2.0, 3.5, []), (6.0, 7.25, []))
    assert found == [(about(2.5), about(1.5)), (about(5.75), about(1.25 + 1.0))]


def test_a_call_that_ends_while_another_blocks_was_not_waited_for() -> None:
    assert noticed([call(1.0, 4.0, 1.0)], (3.0, 5.0, [(3.0, 5.0)])) == [(about(3.0), about(1.0))]


def test_the_next_call_that_blocks_ends_the_wait_for_the_one_before() -> None:
    found = noticed([call(1.0, 4.0, 1.0)], (3.0, 6.0, [(3.0, 3.5), (4.5, 6.0)]))
    assert found == [(about(3.5), about(1.5))]


def test_a_call_of_unknown_end_is_left_alone() -> None:
    assert noticed([call(1.0, None, None)], (3.0, 6.0, [])) == [(None, None)]
