"""Stalls: planted waits are found, with a pipeline and without one."""

import numpy as np
import pytest

from benchmarks.published import nanotron, playbook
from benchmarks.published.columns import cases, take
from benchmarks.published.peaks import fit_peaks
from benchmarks.published.stalls import (
    BEFORE,
    LEAST,
    MOST,
    Waits,
    collectives,
    crowded,
    fit_stalls,
    messages,
    stalled,
)
from tuning.predict.model.cases import Cases


def _layouts() -> Cases:
    trials = playbook.trials()
    return nanotron.dealt(cases(take(trials, ~trials["failed"])))


def test_messages_are_counted_where_a_stage_has_neighbours() -> None:
    own = _layouts()
    each = (messages(own) - np.where(own.pp > 1, own.pp - 1, 0)) / own.micro_batches
    assert (each[own.pp == 1] == 0).all()
    assert (each[own.pp == 2] == 2).all()
    assert (each[own.pp > 2] == 4).all()


def _one(**columns: float) -> Cases:
    """3B, whose 28 layers have eight collectives of tp each, on nodes of eight devices, without a pipeline."""
    trials = playbook.trials()
    first = np.flatnonzero((trials["model"] == "3B") & (trials["pp"] == 1))[:1]
    return cases(take(trials, first)).put(micro_batches=2.0, dp=1.0, **columns)


def test_collectives_of_tp_count_again_for_each_doubling_of_their_nodes() -> None:
    counts = [float(collectives(_one(tp=tp, zero_stage=1.0))[0]) for tp in (1.0, 8.0, 16.0, 32.0)]
    assert counts == [0, 8 * 28 * 2, 2 * 8 * 28 * 2, 3 * 8 * 28 * 2]


def test_buckets_of_gradients_are_waited_for_where_they_are_summed() -> None:
    def buckets(**columns: float) -> float:
        return float(collectives(_one(tp=8.0).put(**columns))[0]) - 8 * 28 * 2

    assert buckets(zero_stage=0.0, dp=64.0) == pytest.approx(buckets(zero_stage=0.0, dp=2.0) * 7 / 2)
    assert 40 < buckets(zero_stage=0.0, dp=2.0) / 2 < 80  # of 25 MB, an eighth of the model in fp32
    assert buckets(zero_stage=1.0, dp=64.0) == 0
    assert (collectives(_layouts())[_layouts().pp > 1] == 0).all()


def _planted(waits: Waits) -> tuple[Cases, np.ndarray, np.ndarray]:
    """Layouts, seconds without stalls, and with those of wide tp."""
    own, random_ = _layouts(), np.random.default_rng(2)
    without = random_.uniform(1, 10, len(own))
    longer = np.where(own.tp >= 32, waits.of(own), 0.0)
    return own, without, (without + longer) * random_.normal(1, 0.01, len(own))


def test_planted_waits_are_found_where_they_were_planted() -> None:
    own, without, seconds = _planted(Waits(0.3, 0.004))
    none = np.zeros(len(own), np.bool_)
    found = fit_stalls(own, seconds, without, none)
    assert found.waits == pytest.approx((0.3, 0.004), rel=0.05)
    many, wide = own.world > own.devices_per_node, own.tp >= 32
    likely = found.likely(own, none)
    assert likely[many & wide].min() > 0.5
    assert likely[many & ~wide].max() < 0.3
    assert (likely[~many] == 0).all()
    half = found.median(own, without, none)
    assert (half[many & wide] == found.slow(own, without)[many & wide]).all()
    assert (half[many & ~wide] == without[many & ~wide]).all()
    off = np.abs(np.log(found.slowed(own, without, none) / seconds))
    assert np.median(off[many]) < 0.1


def test_waits_stay_between_what_a_host_can_wait() -> None:
    own, without, seconds = _planted(Waits(30.0, 0.5))
    assert fit_stalls(own, seconds, without, np.zeros(len(own), np.bool_)).waits == MOST
    assert all(least < before < most for least, before, most in zip(LEAST, BEFORE, MOST, strict=True))
    unseen = fit_stalls(own, without, without, np.zeros(len(own), np.bool_))
    assert unseen.waits == BEFORE


def test_nodes_never_seen_stall_as_often_as_fewer_ones_did() -> None:
    own = _layouts()
    without, nodes = np.full(len(own), 2.0), own.world / own.devices_per_node
    seconds = np.where((nodes == 32) & (own.pp > 1), without + BEFORE.of(own), without)
    none, seen = np.zeros(len(own), np.bool_), nodes < 64
    found = fit_stalls(own.take(seen), seconds[seen], without[seen], none[seen])
    likely = found.likely(own, none)
    assert likely[(nodes == 64) & (own.pp > 1)].min() > 0.7
    assert likely[(nodes == 16) & (own.pp > 1)].max() < 0.3


def test_runs_that_stall_are_told_by_their_time() -> None:
    own = _layouts()
    without = np.full(len(own), 2.0)
    slow, waits = stalled(own, without + BEFORE.of(own), without), BEFORE.of(own) > 0.12 * without
    assert (slow == waits).all() and waits.mean() > 0.9
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
