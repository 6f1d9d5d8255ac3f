"""Calls on links of a known rate: bytes of the formula, messages one after the other, and what the engine chooses."""

from __future__ import annotations

import pytest

from benchmarks.published import gloo
from benchmarks.published.gloo import START, load_of, payload_rate, rounds, seconds_of
from engine.comm import gloo_exchange
from tuning.predict.traffic.calls import Call

KNOWN = START.put(latency_seconds=1e-3, link_share=0.5, opposed=1.0, paired=0.5)
RATE, LARGE = 1e6, 4_000_000


def call(operation: str, ranks: int, size: int = LARGE, tag: str | None = None) -> Call:
    return Call(operation, "dp", "float32", ranks, size, tag)


def test_borders_of_algorithms_are_the_engines_own() -> None:
    assert gloo_exchange.SMALL == gloo.SMALL
    assert payload_rate(100) == pytest.approx(12.5e6 * 1448 / 1514)


@pytest.mark.parametrize(
    ("operation", "ranks", "tag", "passes", "messages"),
    [
        ("all_reduce", 4, None, 1.5, 6),
        ("all_reduce", 2, "gradients", 1.0 * 1.5, 2),
        ("all_gather", 4, None, 0.75, 3),
        ("reduce_scatter", 4, None, 0.75, 1),
        ("reduce_scatter", 2, "gradients", 0.5 * 2, 1),
        ("reduce_scatter", 4, "gradients", 0.75 * 4 / 3, 1),
        ("send", 2, None, 1.0, 1),
    ],
)
def test_a_call_takes_its_bytes_and_its_messages_in_turn(
    operation: str, ranks: int, tag: str | None, passes: float, messages: int
) -> None:
    made = call(operation, ranks, tag=tag)
    assert rounds(made) == messages
    expected = messages * 1e-3 + passes * LARGE / (RATE * 0.5)
    assert seconds_of(made, RATE, KNOWN) == pytest.approx(expected, rel=1e-3)


def test_small_calls_are_one_exchange() -> None:
    for operation in ("all_reduce", "all_gather"):
        assert rounds(call(operation, 4, gloo.SMALL // 4)) == 1
        assert rounds(call(operation, 4, gloo.SMALL + 4)) > 1


def test_both_ends_of_a_message_handle_it_and_one_sends_it() -> None:
    ends = [load_of(call(name, 2)) for name in ("send", "recv")]
    assert sum(one.sent for one in ends) == pytest.approx(LARGE, rel=1e-3)
    assert [one.handled for one in ends] == [LARGE / 2, LARGE / 2]
    assert sum(one.messages for one in ends) == 1.0
    assert seconds_of(call("recv", 2), RATE, KNOWN) == 0.0


def test_nothing_is_sent_alone() -> None:
    assert load_of(call("all_reduce", 1)) == (0.0, 0.0, 0.0)
    assert seconds_of(call("all_reduce", 1), RATE, KNOWN) == 0.0
