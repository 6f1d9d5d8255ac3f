"""From counters of the host to the numbers of its figures, and the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profilers.analysis.memory import memory_rows
from profilers.records.reader import RunRecords
from profilers.records.schema import HostSample, ProcessSample, live_panels
from profilers.records.writer import RecordWriter
from tests.support.samples import memory_sample
from workbench.figures import host as host_figures
from workbench.figures.host import (
    OTHERS,
    CoreSeries,
    MemorySeries,
    Peak,
    RateSeries,
    ShareSeries,
    core_series,
    disk_series,
    interface_series,
    memory_series,
    network_series,
    readings,
    readings_label,
    share_series,
)
from workbench.figures.steps import Line

START = 1000.0
TIMES = START + np.arange(0.0, 10.05, 0.1)
HOST = {"time_unix": TIMES, "cpu_fraction": np.full(len(TIMES), 0.75)}


def processes(*cpu_per_second: float) -> dict[str, Any]:
    ranks = np.repeat(np.arange(len(cpu_per_second)), len(TIMES))
    seconds = np.concatenate([(TIMES - START) * rate for rate in cpu_per_second])
    return {"time_unix": np.tile(TIMES, len(cpu_per_second)), "rank": ranks, "cpu_seconds": seconds}


def cores(count: int) -> dict[str, Any]:
    return {
        "time_unix": np.repeat(TIMES, count),
        "core": np.tile(np.arange(count), len(TIMES)),
        "busy_fraction": np.tile(np.arange(count) / 10, len(TIMES)),
    }


def test_cores_are_rows_and_half_seconds_columns() -> None:
    found = core_series(cores(3), START)
    assert found.cores == [0, 1, 2]
    assert len(found.seconds) == 20
    assert found.seconds[0] == pytest.approx(0.25, abs=0.01)
    assert [row[5] for row in found.percent] == pytest.approx([0.0, 10.0, 20.0])


def test_a_core_that_was_offline_has_gaps() -> None:
    given = cores(2)
    given["busy_fraction"][(given["core"] == 1) & (given["time_unix"] > START + 5)] = np.nan
    found = core_series(given, START)
    assert found.percent[1][2] is not None
    assert found.percent[1][-1] is None


def test_ranks_and_the_rest_make_up_what_was_busy() -> None:
    found = share_series(processes(1.0, 0.5), HOST, cores(4), START)
    assert [line.name for line in found.lines] == ["rank 0", "rank 1", OTHERS]
    assert [line.y[3] for line in found.lines] == pytest.approx([25.0, 12.5, 37.5])


def test_a_time_without_a_reading_is_left_out_of_a_stack() -> None:
    """Where a line has a gap, a stack drops to nothing, as if all cores had been idle."""
    paused = {name: np.delete(values, slice(30, 45)) for name, values in HOST.items()}
    paused["cpu_fraction"][30] = np.nan
    found = share_series(processes(1.0), paused, cores(4), START)
    for line in found.lines:
        assert None not in line.y and len(line.x) == len(line.y) < 20


def test_a_rank_that_started_later_has_no_share_before() -> None:
    late = {name: values[50:] for name, values in processes(1.0).items()}
    (rank, rest) = share_series(late, HOST, cores(4), START).lines
    assert (rank.y[2], rest.y[2]) == (None, pytest.approx(75.0))
    assert rank.y[-2] == pytest.approx(25.0)


def network(*rows: tuple[float, str, int]) -> dict[str, Any]:
    times, names, sent = zip(*rows, strict=True)
    return {
        "time_unix": START + np.array(times),
        "interface": np.array(names),
        "sent_bytes": np.array(sent, dtype=float),
        "received_bytes": np.zeros(len(rows)),
    }


def test_a_burst_after_a_silence_is_not_spread_over_it() -> None:
    rows = [(0.0, "eth0", 0), (0.0, "lo", 9), (8.0, "eth0", 0), (9.0, "eth0", 4_000_000)]
    (line,) = network_series(network(*rows), HOST, START).lines
    assert line.name == "eth0 sent"
    assert [line.y[0], line.y[10], line.y[17]] == pytest.approx([0.0, 0.0, 4.0])
    assert line.y[-1] == pytest.approx(0.0)


def test_a_counter_that_starts_anew_is_a_gap() -> None:
    rows = [(0.0, "eth0", 0), (4.9, "eth0", 4_900_000), (5.1, "eth0", 0), (10.0, "eth0", 4_900_000)]
    (line,) = network_series(network(*rows), HOST, START).lines
    assert None in line.y[9:11]
    assert line.y[3] == pytest.approx(1.0)


def test_disk_counters_are_rates() -> None:
    reads = np.floor((TIMES - START) / 0.5) * 1_000_000
    host = HOST | {"disk_read_bytes": reads, "disk_written_bytes": np.zeros(len(TIMES))}
    (line,) = disk_series(host, START).lines
    assert line.name == "disk read"
    assert np.mean([value for value in line.y if value is not None]) == pytest.approx(2.0, rel=0.1)


def memory(*peaks: int, gpu: bool = False) -> dict[str, Any]:
    count = len(peaks)
    values = np.array(peaks, dtype=float) * 2**30
    return {
        "step": np.arange(count) // 2,
        "time_unix": START + np.arange(count),
        "rss_bytes": values,
        "peak_rss_bytes": np.maximum.accumulate(values),
        "cuda_allocated_bytes": values * 2 if gpu else np.full(count, np.nan),
        "cuda_peak_bytes": np.maximum.accumulate(values * 2) if gpu else np.full(count, np.nan),
        "phase": np.array(["forward", "backward"] * count)[:count],
    }


def test_the_peak_of_memory_has_a_rank_a_step_and_a_phase() -> None:
    found = memory_series({0: memory(1, 2, 1, 2), 1: memory(1, 2, 1, 3, 3)}, START)
    assert (found.kind, [line.name for line in found.lines]) == ("resident set", ["rank 0", "rank 1"])
    assert found.lines[1].x == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert found.peak == Peak(1, 3.0, 3.0, 1, "backward")
    assert found.peak.text == "peak 3.000 GiB: rank 1, backward of step 1"


def test_the_peak_is_reached_in_the_phase_that_the_summary_names(tmp_path: Path) -> None:
    """What creeps up by less than a hundredth later says nothing of a phase, on the run's page and on Live."""
    columns = memory(1, 199, 200)
    found = memory_series({0: columns}, START)
    assert found.peak == Peak(0, 1.0, 200.0, 0, "backward")
    with RecordWriter(tmp_path, "rank-0") as writer:
        for step, phase, peak in zip(
            columns["step"], columns["phase"], columns["peak_rss_bytes"], strict=True
        ):
            writer.write(memory_sample(step=int(step), phase=str(phase), peak_rss_bytes=int(peak)))
    (told,) = memory_rows(RunRecords(tmp_path))
    assert (told.phase, told.step, told.peak_bytes / 2**30) == (
        found.peak.phase,
        found.peak.step,
        found.peak.gib,
    )


def test_memory_is_the_allocators_where_there_is_one() -> None:
    found = memory_series({0: memory(1, 2, gpu=True)}, START)
    assert (found.kind, found.lines[0].y) == ("CUDA allocator", [2.0, 4.0])
    assert found.peak is not None
    assert found.peak.gib == 4.0


def test_of_many_ranks_those_with_most_memory_are_shown() -> None:
    found = memory_series({rank: memory(rank + 1) for rank in range(20)}, START)
    assert [line.name for line in found.lines] == [f"rank {rank}" for rank in range(12, 20)]


def test_old_records_have_no_phase() -> None:
    old = {name: values for name, values in memory(1, 2).items() if name != "phase"}
    found = memory_series({0: old}, START)
    assert found.peak is not None
    assert found.peak.text == "peak 2.000 GiB: rank 0, step 0"


EMPTY: dict[str, Any] = {}


def test_nothing_gives_empty_series_and_figures_that_say_so() -> None:
    assert core_series(EMPTY, START) == CoreSeries([], [], [])
    assert share_series(EMPTY, EMPTY, EMPTY, START) == ShareSeries([])
    assert network_series(EMPTY, EMPTY, START) == RateSeries([])
    assert disk_series(EMPTY, START) == RateSeries([])
    assert memory_series({}, START) == MemorySeries([], "resident set", None)
    drawings = [
        host_figures.cores(core_series(EMPTY, START)),
        host_figures.shares(ShareSeries([])),
        host_figures.traffic(RateSeries([]), RateSeries([])),
        host_figures.memory(memory_series({}, START)),
    ]
    assert all(drawing.layout.annotations[0].text for drawing in drawings)
    assert all(not drawing.data for drawing in drawings)


def test_figures_show_the_numbers_with_their_units() -> None:
    heat = host_figures.cores(core_series(cores(2), START))
    assert heat.data[0].type == "heatmap"
    assert (heat.data[0].zmin, heat.data[0].zmax, heat.layout.yaxis.autorange) == (0, 100, "reversed")
    stacked = host_figures.shares(share_series(processes(1.0), HOST, cores(2), START))
    assert {trace.stackgroup for trace in stacked.data} == {"cores"}
    lines = [Line("eth0 sent", [0.0], [1.0])]
    both = host_figures.traffic(RateSeries(lines), RateSeries([]))
    assert both.layout.yaxis.title.text == "network, MB/s"
    drawn = host_figures.memory(memory_series({0: memory(1, 2)}, START))
    assert drawn.data[-1].text[0] == "peak 2.000 GiB: rank 0, backward of step 0"
    assert (drawn.data[-1].x, drawn.data[-1].y) == ((1.0,), (2.0,))


def test_interfaces_of_a_lab_are_named_by_the_rank_that_reads_them() -> None:
    """On a time axis of their own, 3 and 6 MB/s; the rank reads nothing before its first measured step."""

    def readings(rate: float) -> dict[str, Any]:
        times = TIMES[40:]
        sent = (times - times[0]) * rate * 1e6
        names = np.full(len(times), "data")
        return {
            "time_unix": times,
            "interface": names,
            "sent_bytes": sent,
            "received_bytes": np.zeros(len(times)),
        }

    found = interface_series({0: readings(3.0), 1: readings(6.0)}, START, 2)
    assert [line.name for line in found.lines] == ["rank 0: data sent", "rank 1: data sent"]
    assert [line.y for line in found.lines] == [[pytest.approx(3.0)] * 12, [pytest.approx(6.0)] * 12]
    assert found.lines[0].x[0] == pytest.approx(4.25)
    shared = interface_series({0: readings(3.0), 2: readings(6.0)}, START, 4)
    assert [line.name for line in shared.lines] == ["host of rank 0: data sent", "host of rank 2: data sent"]


def test_readings_of_the_host_and_of_its_ranks_have_a_panel_each() -> None:
    """Percent and GiB of how much, a counter as its growth per second; of many ranks those that reach highest."""
    ranks, count = 12, len(TIMES)
    host = {name: np.full(count, np.nan) for name in HostSample.__dataclass_fields__} | HOST
    host |= {"memory_used_bytes": np.full(count, 2.0**32), "memory_total_bytes": np.full(count, 2.0**35)}
    host["load_1_minute"] = np.where(np.arange(count) % 5, np.nan, 3.5)
    mine = {name: np.full(count * ranks, np.nan) for name in ProcessSample.__dataclass_fields__} | {
        "time_unix": np.repeat(TIMES, ranks),
        "rank": np.tile(np.arange(ranks), count),
        "involuntary_switches": np.outer(TIMES - START, np.arange(ranks) * 10.0).ravel(),
    }
    drawn = readings(host, mine, START)
    by_title: dict[str, list[Any]] = {}
    for trace in drawn.data:
        by_title.setdefault(drawn.layout[trace.yaxis.replace("y", "yaxis")].title.text, []).append(trace)
    assert by_title.keys() >= {
        "CPU, %", "memory, GiB of 32", "load over a minute, processes", "involuntary switches, per second"
    }  # fmt: skip
    assert set(by_title["CPU, %"][0].y) == {75.0}
    assert set(by_title["memory, GiB of 32"][0].y) == {4.0}
    (load,) = by_title["load over a minute, processes"]
    assert (len(load.x), set(load.y)) == (-(-count // 5), {3.5})
    switches = by_title["involuntary switches, per second"]
    assert [trace.name for trace in switches] == [f"rank {rank}" for rank in range(4, 12)]
    assert switches[-1].y == pytest.approx(np.full(len(switches[-1].y), 110.0))
    first, _, last = readings_label().removesuffix(" of the host").rpartition(" and ")
    panels = [panel.title for stream in ("host", "process") for panel in live_panels(stream).values()]
    assert [*first.split(", "), last] == panels


def test_readings_that_are_not_there_say_so() -> None:
    assert "no reading" in readings({}, {}, START).layout.annotations[0].text
