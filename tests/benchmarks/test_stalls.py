"""Stalls: planted waits are found, with a pipeline and without one."""

import numpy as np
import pytest

from benchmarks.published import nanotron, playbook
from benchmarks.published.columns import cases, take
from benchmarks.published.peaks import fit_peaks
from benchmarks.published.stalls import crowded, fit_stalls, messages, stalled
from tuning.predict.model.cases import Cases


def _layouts() -> Cases:
    trials = playbook.trials()
    return nanotron.dealt(cases(take(trials, ~trials["failed"])))


def test_messages_are_counted_where_a_stage_has_neighbours() -> None:
    own = _layouts()
    each = messages(own) / own.micro_batches
    assert (each[own.pp == 1] == 4).all()
    assert (each[own.pp == 2] == 2).all()
    assert (each[own.pp > 2] == 4).all()


def test_a_planted_wait_is_found_where_it_was_planted() -> None:
    own, random_ = _layouts(), np.random.default_rng(2)
    without = random_.uniform(1, 10, len(own))
    wide = own.tp >= 32
    seconds = (without + np.where(wide, 0.3, 0.0) * messages(own)) * random_.normal(1, 0.01, len(own))
    none = np.zeros(len(own), np.bool_)
    found = fit_stalls(own, seconds, without, none)
    assert found.seconds == pytest.approx(0.3, rel=0.05)
    many = own.world > own.devices_per_node
    likely = found.likely(own, none)
    assert likely[many & wide].min() > 0.7
    assert likely[many & ~wide].max() < 0.3
    assert (likely[~many] == 0).all()
    half = found.median(own, without, none)
    assert (half[many & wide] == found.slow(own, without)[many & wide]).all()
    assert (half[many & ~wide] == without[many & ~wide]).all()
    off = np.abs(np.log(found.slowed(own, without, none) / seconds))
    assert np.median(off[many]) < 0.1


def test_runs_that_stall_are_told_by_their_time() -> None:
    own = _layouts()
    without = np.full(len(own), 2.0)
    slow = stalled(own, without + 0.3 * messages(own), without)
    assert (slow == 1).all()
    assert (stalled(own, without, without) == 0).all()


def test_crowded_runs_of_the_playbook_took_several_times_as_long() -> None:
    trials = playbook.trials()
    ran = take(trials, ~trials["failed"])
    own = nanotron.dealt(cases(ran))
    full = crowded(own, fit_peaks(own, ran["memory_bytes"]))
    usual = (own.pp > 1) & (ran["nodes"] <= 16) & (own.tp <= 16) & (own.zero_stage == 1)
    per_flop = ran["iteration_seconds"] * ran["devices"] / own.model_flops
    assert 5 < (full & usual).sum() < 60
    assert np.median(per_flop[full & usual]) > 2 * np.median(per_flop[~full & usual])
