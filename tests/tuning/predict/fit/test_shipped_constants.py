"""The constants that ship are those that the shipped tables give."""

from dataclasses import asdict

import pytest

from benchmarks import _published as published
from benchmarks.shipped_constants import measured, tables
from tuning.predict.cluster import catalogue
from tuning.predict.fit import calibrate, shipped_constants


def test_they_are_fitted_to_the_shipped_tables() -> None:
    found, kept = calibrate.calibrate(measured()), shipped_constants.calibrated()
    assert asdict(found.constants) == pytest.approx(asdict(kept.constants), rel=0.01)
    assert (found.low, found.high) == pytest.approx((kept.low, kept.high), abs=0.01)
    assert found.trials == kept.trials
    assert found.ranges == kept.ranges


def test_their_error_is_that_of_a_table_never_seen() -> None:
    whole = measured()
    assert set(whole.groups) == set(tables())
    kept, left = shipped_constants.calibrated(), calibrate.held_out(whole)
    inside = ((left >= kept.low) & (left <= kept.high)).mean()
    assert inside == pytest.approx(0.9, abs=0.01)
    assert kept.low < 0 < kept.high


def test_devices_that_they_are_fitted_on_are_in_the_catalogue() -> None:
    rates = {catalogue.accelerator(name).memory_bandwidth for name in shipped_constants.ACCELERATORS}
    assert {row.device.bandwidth for row in published.each(measured())} == rates
