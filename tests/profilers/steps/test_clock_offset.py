"""A clock's offset from messages, with planted delays and drift."""

from __future__ import annotations

import numpy as np
import pytest

from profilers.steps.clock_offset import DRIFT, ClockOffset, Exchange, Offset, estimate

OFFSET = 12.5


def exchange(at: float, out: float, back: float, own: float = 0.01) -> Exchange:
    """One at true time ``at``; the asker's clock is ``OFFSET`` ahead."""
    return Exchange(at + OFFSET, at + out, at + out + own, at + out + own + back + OFFSET)


def test_even_ways_give_the_offset_exactly() -> None:
    found = estimate([exchange(100.0, 0.002, 0.002)])
    assert found.offset_seconds == pytest.approx(OFFSET, abs=1e-9)
    assert found.error_seconds == pytest.approx(0.002, abs=1e-9)


def test_the_quickest_exchange_counts() -> None:
    slow = [exchange(100.0 + n, 0.5, 0.001) for n in range(5)]
    found = estimate([*slow[:3], exchange(200.0, 0.001, 0.002), *slow[3:]])
    assert found.offset_seconds == pytest.approx(OFFSET, abs=0.001)
    assert found.error_seconds == pytest.approx(0.0015, abs=1e-9)


def test_the_error_covers_any_unevenness() -> None:
    random = np.random.default_rng(5)
    for _ in range(200):
        out, back = random.exponential(0.01, size=2)
        found = estimate([exchange(50.0, float(out), float(back))])
        assert abs(found.offset_seconds - OFFSET) <= found.error_seconds + 1e-12


def test_no_exchange_is_no_estimate() -> None:
    with pytest.raises(ValueError, match="no exchange"):
        estimate([])


def test_between_two_estimates_drift_is_followed() -> None:
    clock = ClockOffset([Offset(200.0, 3.0, 0.3), Offset(100.0, 1.0, 0.1)])
    found = clock.estimate(150.0)
    assert found == pytest.approx((150.0, 2.0, 0.2))
    assert clock.align(np.array([100.0, 150.0, 250.0])).tolist() == pytest.approx([99.0, 148.0, 247.0])


def test_away_from_an_estimate_the_error_grows() -> None:
    clock = ClockOffset([Offset(100.0, 1.0, 0.1)])
    assert clock.estimate(1100.0) == pytest.approx((1100.0, 1.0, 0.1 + 1000 * DRIFT))
    assert clock.estimate(0.0) == pytest.approx((0.0, 1.0, 0.1 + 100 * DRIFT))


def test_the_reference_has_neither_offset_nor_error() -> None:
    assert ClockOffset().estimate(9.0) == (9.0, 0.0, 0.0)
    assert ClockOffset([Offset(1.0, 0.0, 0.0)]).estimate(9e9) == (9e9, 0.0, 0.0)
    assert ClockOffset().align(np.array([4.0])).tolist() == [4.0]
