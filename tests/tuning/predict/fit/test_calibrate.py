"""Constants found again from planted ones, intervals that hold, refused measurements, and the shipped constants."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

import numpy as np
import pytest

from benchmarks import _published as published
from benchmarks.shipped_constants import measured as of_published_tables
from benchmarks.shipped_constants import tables
from engine.config.errors import InputError
from tests.tuning.predict.model.test_step_time import MACHINE, case
from tuning.predict.cluster import catalogue
from tuning.predict.fit import calibrate
from tuning.predict.fit.calibrate import CalibratedConstants, TrialMeasurements
from tuning.predict.fit.least_squares import fit
from tuning.predict.model import constants, step_time
from tuning.predict.model.constants import Constants

TRUE = constants.START.put(block_seconds=1e-3, score_passes=9.0, message_share=0.3, step_seconds=0.02)


def trials(count: int = 120, noise: float = 0.02, seed: int = 3) -> TrialMeasurements:
    """Steps that the true constants take, with noise."""
    draw = np.random.default_rng(seed)
    degrees = {name: 2.0 ** draw.integers(0, 4, count) for name in ("tp", "pp", "dp", "micro_batch")}
    cases = case(**degrees, hidden=draw.choice([512.0, 1024.0, 4096.0], count), heads=8, recompute=2)
    cases = cases.put(ffn_hidden=4 * cases.hidden, micro_batches=2.0 ** draw.integers(3, 6, count))
    seconds = step_time.step(cases, MACHINE, TRUE).seconds * np.exp(draw.normal(0, noise, count))
    return TrialMeasurements(cases, MACHINE, seconds, cases.hidden)


def test_planted_constants_are_found_again() -> None:
    found = calibrate.fit_constants(trials(noise=0.0))
    for name in ("block_seconds", "score_passes", "message_share", "step_seconds"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.15), name


def test_slopes_of_many_constants_at_a_time_are_those_one_by_one() -> None:
    cases, machine, seconds, _ = measured = trials(20)
    slow = fit(
        lambda one: np.log(step_time.step(cases, machine, one).seconds / seconds),
        constants.START,
        constants.FREE,
    )
    found = calibrate.fit_constants(measured)
    for name in constants.FREE:
        assert getattr(found, name) == pytest.approx(getattr(slow.constants, name), rel=1e-6), name


def test_a_few_odd_measurements_do_not_bend_the_rest() -> None:
    measured = trials()
    odd = measured.seconds.copy()
    odd[::10] *= 4
    found = calibrate.fit_constants(measured._replace(seconds=odd))
    error = step_time.step(measured.cases, MACHINE, found).seconds / measured.seconds - 1
    assert np.median(np.abs(error)) < 0.04


def test_the_interval_holds_what_was_held_out_and_widens_outside() -> None:
    measured = trials()
    known = calibrate.calibrate(measured)
    other = trials(seed=4)
    found = step_time.step(other.cases, MACHINE, known.constants).seconds
    low, high = known.interval(other.cases, found)
    assert np.mean((low <= other.seconds) & (other.seconds <= high)) >= 0.8
    far = other.cases.put(tp=other.cases.tp * 16)
    far_low, far_high = known.interval(far, found)
    assert (far_high / far_low > high / low).all()
    assert known.describe_excess(far.take(np.array([int(np.argmax(far.tp))])))[0].startswith(
        "tp 128 was measured from 1 to 8"
    )
    assert not known.describe_excess(measured.cases)


def test_it_is_kept_as_json() -> None:
    known = calibrate.calibrate(trials(40))
    again = CalibratedConstants.from_dict(json.loads(json.dumps(known.as_dict())))
    assert again == known


def test_what_cannot_be_true_is_refused() -> None:
    measured = trials(20)
    bad = measured.seconds.copy()
    bad[3] = -1.0
    with pytest.raises(InputError, match="trial 4"):
        calibrate.check(measured._replace(seconds=bad))
    twice = calibrate.select(measured, np.array([0, 1, 0]))
    with pytest.raises(InputError, match="trials 1 and 3"):
        calibrate.check(twice._replace(seconds=twice.seconds * np.array([1.0, 1.0, 2.0])))
    calibrate.check(twice)


def test_a_fit_needs_something_to_fit() -> None:
    with pytest.raises(ValueError, match="needs observations"):
        fit(lambda _: np.zeros(0), Constants(), {"spread": 1.0})
    with pytest.raises(ValueError, match="needs observations"):
        fit(lambda _: np.zeros(3), Constants(), {})


def test_shipped_constants_are_fitted_to_the_shipped_tables() -> None:
    found, kept = (
        calibrate.calibrate(of_published_tables(), most=published.EFFECTIVE_ROWS),
        calibrate.shipped_constants(),
    )
    assert asdict(found.constants) == pytest.approx(asdict(kept.constants), rel=0.01)
    assert (found.low, found.high) == pytest.approx((kept.low, kept.high), abs=0.01)
    assert found.trials == kept.trials
    assert found.ranges == kept.ranges


def test_the_error_of_shipped_constants_is_that_of_a_table_never_seen() -> None:
    whole = of_published_tables()
    assert set(whole.groups) == set(tables())
    kept, left = calibrate.shipped_constants(), calibrate.cross_validate(whole, most=published.EFFECTIVE_ROWS)
    inside = ((left >= kept.low) & (left <= kept.high)).mean()
    assert inside == pytest.approx(0.9, abs=0.01)
    assert kept.low < 0 < kept.high


def test_devices_that_shipped_constants_are_fitted_on_are_in_the_catalogue() -> None:
    rates = {catalogue.accelerator(name).memory_bandwidth for name in calibrate.SHIPPED_ACCELERATORS}
    assert {row.device.bandwidth for row in published.each(of_published_tables())} == rates


def test_every_constant_has_ends_and_what_ships_lies_between_them() -> None:
    assert set(constants.LIMITS) == {field.name for field in fields(Constants)}
    for known in (constants.START, calibrate.shipped_constants().constants):
        for name, (low, high) in constants.LIMITS.items():
            assert low * (1 - 1e-9) <= getattr(known, name) <= high * (1 + 1e-9), name
    shares = [name for name in constants.LIMITS if name.endswith("_share")]
    assert all(constants.LIMITS[name][1] == 1.0 for name in shares)


@dataclass(frozen=True)
class _Two:
    share: float = 0.5
    offset: float = 1.0


def test_no_constant_leaves_its_ends_and_the_others_make_the_best_of_it() -> None:
    """Rows say a share of 4 and an offset of 2; with the share held at 1 the best offset is told by a fine search."""
    place = np.linspace(1.0, 3.0, 9)
    measured = 2.0 + 4.0 * place

    def left(two: _Two) -> np.ndarray:
        return np.log((two.offset + two.share * place) / measured)

    free = {"share": 100.0, "offset": 100.0}
    loose = fit(left, _Two(), free).constants
    assert (loose.share, loose.offset) == pytest.approx((4.0, 2.0), rel=1e-3)
    held = fit(left, _Two(), free, limits={"share": (0.01, 1.0)}).constants
    assert held.share == pytest.approx(1.0)

    def loss(offset: float) -> float:
        far = np.abs(left(_Two(1.0, offset)))
        return float(np.where(far < 0.03, far**2, 0.03 * (2 * far - 0.03)).sum())

    offsets = np.linspace(1.0, 14.0, 13001)
    assert held.offset == pytest.approx(offsets[np.argmin([loss(one) for one in offsets])], rel=2e-3)


def test_who_starts_outside_may_stay_there() -> None:
    """Shares of what was measured here, not of a data sheet, may be above 1."""
    found = fit(lambda two: np.log(two.share / np.full(4, 3.0)), _Two(share=2.0), {"share": 9.0},
                limits={"share": (0.01, 1.0)}).constants  # fmt: skip
    assert found.share == pytest.approx(2.0)


def test_rows_that_count_as_few_leave_more_to_the_belief() -> None:
    measured = trials(60)
    free, bound = (calibrate.fit_constants(measured, most=most) for most in (60.0, 0.01))
    assert calibrate.fit_constants(measured) == free
    for name in ("block_seconds", "score_passes"):
        believed = getattr(constants.START, name)
        moved = [abs(np.log(getattr(found, name) / believed)) for found in (free, bound)]
        assert moved[1] < 0.5 * moved[0], name
