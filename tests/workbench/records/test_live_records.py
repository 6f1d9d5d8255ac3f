"""What the page Live holds of a run: bounded, with every spike, and with the same figures while nothing is thinned."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.support.workbench.long_run import LongRun
from workbench.figures import host, steps
from workbench.records import live_records
from workbench.records.live_snapshot import LiveRun, LiveRuns, Snapshot

#: Of a run of 8 ranks, with room above what is held; ``benchmarks.dashboard`` tells what the page's process takes.
MOST_BYTES = 60e6


def drawn(seen: Snapshot, phases: steps.PhaseSeries) -> list[object]:
    """The numbers behind the figures of the page Live."""
    return [
        phases,
        steps.rank_series(seen.steps),
        steps.loss_series(seen.steps),
        host.memory_series(seen.memory, 0.0),
        host.panel_series("host", seen.host, 0.0),
        host.panel_series("process", seen.processes, 0.0),
        host.core_series(seen.cores, 0.0),
        host.share_series(seen.processes, seen.host, seen.cores, 0.0),
    ]


def bars(seen: Snapshot) -> steps.PhaseSeries:
    return steps.bars_of(seen.phases[None], "slowest", steps.slowest_rank(seen.steps))


def test_what_is_held_does_not_grow_with_the_run(tmp_path: Path) -> None:
    run = LongRun(tmp_path)
    runs = LiveRuns(clock=iter(range(0, 100_000, 10)).__next__, thinned=True)
    runs.snapshot(run.folder)
    held = dict[int, int]()
    tracemalloc.start()
    try:
        for steps_more in (50_000, 49_950, 50_000, 50_000):
            run.grow(steps_more)
            seen = runs.snapshot(run.folder)
            drawn(seen, bars(seen))
            gc.collect()
            held[run.steps] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert int(seen.steps[7]["step"][-1]) == 199_999
    assert max(held.values()) < MOST_BYTES, held
    assert held[200_000] < 1.05 * held[100_000], held


def test_no_spike_is_lost_and_means_are_those_of_all_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_records, "NEWEST", 500)
    monkeypatch.setattr(live_records, "STRETCHES", 60)
    monkeypatch.setattr(live_records, "BLOCKS", 360)
    run = LongRun(tmp_path)
    live, whole = LiveRun(run.folder, thinned=True), LiveRun(run.folder)
    for more in range(10):
        run.grow(700, spike=(2_500, 9.0) if 2_500 in range(run.steps, run.steps + 700) else None)
        seen, everything = live.read(), whole.read()
        assert seen.steps[0]["step"][-1] == run.steps - 1, more
    assert all(len(columns["step"]) < 3_500 for columns in seen.steps.values())
    at = int(seen.steps[3]["step_seconds"].argmax())
    assert (seen.steps[3]["step"][at], seen.steps[3]["step_seconds"][at]) == (2_500, 9.0)
    for rank, columns in everything.steps.items():
        for name in ("step_seconds", "loss"):
            full, thin = columns[name], seen.steps[rank][name]
            if np.isfinite(full).any():
                assert (np.nanmin(thin), np.nanmax(thin)) == (np.nanmin(full), np.nanmax(full))
        for name in ("peak_rss_bytes", "rss_bytes"):
            assert seen.memory[rank][name].max() == everything.memory[rank][name].max()
        means, start = seen.phases[rank].bars(90), 0
        for first, following in zip(means[0], [*means[0][1:], run.steps], strict=True):
            exact = columns["forward_seconds"][first:following].mean()
            assert means[2]["forward_seconds"][start] == pytest.approx(exact)
            start += 1
        assert 45 <= start <= 90
    slowest = steps.slowest_rank(everything.steps)
    first, per_bar, means_of_slowest = seen.phases[None].bars(90)
    exact = [slowest["step_seconds"][at : at + per_bar].mean() for at in first]
    assert means_of_slowest["step_seconds"] == pytest.approx(exact)
    _same_means_of_the_host(seen, everything)


def _same_means_of_the_host(seen: Snapshot, everything: Snapshot) -> None:
    for columns, full, name in [
        (seen.host, everything.host, "cpu_fraction"),
        (seen.cores, everything.cores, "busy_fraction"),
    ]:
        mean = np.average(columns[live_records.MEAN + name], weights=columns[live_records.WEIGHT])
        assert columns[live_records.WEIGHT].sum() == pytest.approx(len(full[name]))
        assert mean == pytest.approx(full[name].mean())
    assert len(seen.processes["rank"]) < len(everything.processes["rank"]) / 2
    assert seen.processes["time_unix"][-1] == everything.processes["time_unix"][-1]


def test_a_short_run_is_drawn_as_if_all_of_it_was_held(tmp_path: Path) -> None:
    run = LongRun(tmp_path)
    live, whole = LiveRun(run.folder, thinned=True), LiveRun(run.folder)
    for _ in range(3):
        run.grow(300)
        seen, everything = live.read(), whole.read()
        phases = steps.phase_series(steps.slowest_rank(everything.steps), "slowest")
        before, after = drawn(everything, phases), drawn(seen, bars(seen))
        for one, other in zip(before, after, strict=True):
            assert _plain(other) == pytest.approx(_plain(one), nan_ok=True)


def _plain(series: object) -> list[float]:
    """All numbers of a series in order."""
    if isinstance(series, dict):
        series = list(series.values())
    if isinstance(series, (list, tuple)):
        return [number for part in series for number in _plain(part)]
    return [float(series)] if isinstance(series, (int, float)) else [np.nan] if series is None else []


@pytest.mark.parametrize("in_order", [True, False])
def test_of_each_stretch_the_first_lowest_and_highest_reading_stay(in_order: bool) -> None:
    drawn = np.random.default_rng(7)
    for count in (0, 1, 300):
        stretches = drawn.integers(0, 9, count)
        stretches = np.sort(stretches) if in_order else stretches
        readings = [drawn.integers(0, 5, count).astype(float) for _ in range(2)]
        for values in readings:
            values[drawn.random(count) < 0.3] = np.nan
        wanted = np.zeros(count, dtype=bool)
        for values in readings:
            for stretch in np.unique(stretches):
                known = np.flatnonzero((stretches == stretch) & np.isfinite(values))
                if len(known):
                    wanted[known[[np.argmin(values[known]), np.argmax(values[known])]]] = True
        assert live_records.extremes(stretches, readings).tolist() == wanted.tolist()
