"""The panel of a GPU: its numbers, its figures, and the line in text output."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profilers.records import schema
from profilers.records.reader import RunRecords
from profilers.records.schema import KEEP_EXTREMES, GpuSample
from profilers.records.writer import RecordWriter
from tests.support.samples import gpu_sample
from workbench.figures import gpu
from workbench.figures.base import panels_in_a_row
from workbench.figures.gpu import GpuDetail, ThrottleSpan
from workbench.figures.host import panel_series
from workbench.figures.steps import Line
from workbench.records import live_records
from workbench.records.columns import Array, Columns

NOTHING = GpuDetail([], [], [], [], [], [], [])


def columns(**known: Any) -> Columns:
    """Four samples of GPU 1 at 100 s to 103 s, and one of GPU 0 between them."""
    made: dict[str, Array] = {name: np.full(5, np.nan) for name in GpuSample.__dataclass_fields__}
    made["time_unix"] = np.array([100.0, 101.0, 101.5, 102.0, 103.0])
    made["gpu"] = np.array([1, 1, 0, 1, 1])
    return made | {name: np.array(values, dtype=float) for name, values in known.items()}


def test_only_what_was_read_has_a_line() -> None:
    seen = columns(power_watts=[400, 500, 9, 600, 700], power_limit_watts=[700, np.nan, 9, np.nan, 700])
    found = gpu.detail(seen, 1, 100.0)
    assert found.power == [
        Line("power", [0.0, 1.0, 2.0, 3.0], [400.0, 500.0, 600.0, 700.0]),
        Line("limit", [0.0, 3.0], [700.0, 700.0]),
    ]
    assert not (found.activity or found.traffic or found.throttled)
    assert gpu.gpus(seen) == [0, 1]
    assert gpu.gpus({}) == []


def test_a_reason_holds_until_the_next_reading() -> None:
    """0x1 is idle, which slows nothing; 0x88 is a power brake within a hardware slowdown."""
    found = gpu.detail(columns(throttle_reasons=[0x4, 0x4, 0, 0x1, 0x88]), 1, 100.0)
    assert found.throttled == [ThrottleSpan("power cap", 0.0, 2.0), ThrottleSpan("power brake", 3.0, 4.0)]


def test_many_short_stretches_are_drawn_as_few() -> None:
    seconds = np.arange(10_000.0)
    found = gpu.throttled_spans(seconds, np.where(np.arange(10_000) % 7 == 0, 4.0, 0.0))
    assert found == [ThrottleSpan("power cap", 0.0, 9997.0)]
    assert gpu.throttled_spans(seconds, np.full(10_000, np.nan)) == []
    assert gpu.throttled_spans(np.empty(0), np.empty(0)) == []


def test_nvlink_s_rate_is_the_driver_s_or_else_that_of_its_counter() -> None:
    counter = [0, 2e9, 5, 6e9, 1e9]  # started anew before the last reading
    found = gpu.detail(columns(nvlink_tx_bytes=counter), 1, 100.0)
    assert found.traffic == [Line("NVLink sent", [1.0, 2.0], [2.0, 4.0])]
    told = gpu.detail(columns(nvlink_tx_bytes=counter, nvlink_tx_bytes_per_second=[3e9] * 5), 1, 100.0)
    assert told.traffic == [Line("NVLink sent", [0.0, 1.0, 2.0, 3.0], [3.0] * 4)]


FIGURES = (
    gpu.activity,
    gpu.power,
    gpu.memory,
    gpu.temperature,
    gpu.clocks,
    gpu.traffic,
)


@pytest.mark.parametrize("make", FIGURES)
def test_a_quantity_without_a_reading_says_so(make: Any) -> None:
    drawn = make(NOTHING)
    assert "no reading" in drawn.layout.annotations[0].text
    assert not drawn.data


def test_the_total_of_the_memory_is_drawn_as_a_limit() -> None:
    gib = 2**30
    seen = columns(memory_used_bytes=[gib] * 5, memory_total_bytes=[80 * gib] * 5)
    drawn = gpu.memory(gpu.detail(seen, 1, 100.0))
    assert [(trace.name, trace.line.dash) for trace in drawn.data] == [("used", "solid"), ("total", "dash")]


def test_each_reason_of_throttling_is_shaded_and_named() -> None:
    clock = [Line("SM", [0.0, 1.0], [1980.0, 345.0]), Line("highest clock", [0.0, 1.0], [1980.0, 1980.0])]
    spans = [
        ThrottleSpan("power cap", 0.0, 0.5),
        ThrottleSpan("power cap", 0.8, 0.9),
        ThrottleSpan("power brake", 0.5, 1.0),
    ]
    drawn = gpu.clocks(NOTHING._replace(clocks=clock, throttled=spans))
    assert [trace.name for trace in drawn.data] == ["SM", "highest clock", "power cap", "power brake"]
    assert [(shape.x0, shape.x1) for shape in drawn.layout.shapes] == [(0.0, 0.5), (0.8, 0.9), (0.5, 1.0)]
    assert len({shape.fillcolor for shape in drawn.layout.shapes}) == 2
    assert [trace.line.dash for trace in drawn.data[:2]] == ["solid", "dash"]


def test_each_gpu_has_its_own_lines() -> None:
    seen = columns(
        utilization_fraction=[0.1, 0.3, 0.2, 0.3, 0.5], power_watts=[100.0, 300.0, np.nan, 400.0, 500.0]
    )
    lines_of_field = dict(zip(schema.live_panels("gpu"), panel_series("gpu", seen, 100.0), strict=True))
    busy, power = lines_of_field["utilization_fraction"], lines_of_field["power_watts"]
    assert [line.name for line in busy] == ["GPU 0", "GPU 1"]
    assert busy[0].y == pytest.approx([20.0])
    assert busy[1].y == pytest.approx([10.0, 30.0, 30.0, 50.0])
    assert (power[0].x, power[0].y) == ([], [])
    assert not any(panel_series("gpu", {}, 0.0))


def say_of(monkeypatch: pytest.MonkeyPatch, name: str, facts: dict[str, Any]) -> None:
    """As if the field had been declared with these facts as well."""
    declared = GpuSample.__dataclass_fields__[name]
    monkeypatch.setattr(declared, "metadata", {**declared.metadata, **facts})


def test_a_new_quantity_of_the_live_page_is_said_at_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    before = schema.live_panels("gpu").keys()
    say_of(monkeypatch, "processes", schema.live_panel("programs", "at once", axis=(0, 120)))
    named = list(schema.live_panels("gpu"))
    assert set(named) - before == {"processes"}
    place, titles = named.index("processes"), [panel.title for panel in schema.live_panels("gpu").values()]
    drawn = gpu.live(columns(processes=[40, 50, 70, 60, 60]), 100.0)
    told = [trace for trace in drawn.data if trace.hovertemplate.startswith("%{y:,.0f} at once")]
    assert [list(trace.y) for trace in told] == [[70], [40, 50, 60, 60]]
    seldom = columns(processes=[40, np.nan, 70, np.nan, 60])
    assert panel_series("gpu", seldom, 100.0)[place][1] == Line("GPU 1", [0.0, 3.0], [40.0, 60.0]), (
        "a line, not two dots"
    )
    assert gpu.live_label().lower() == f"{', '.join(titles[:-1])} and {titles[-1]} of each gpu".lower()
    axis = drawn.layout[f"yaxis{place + 1}"]
    assert (axis.title.text, axis.range) == ("programs, at once", (0, 120))
    above = place - panels_in_a_row(len(named))
    assert above >= 0, "it begins a second row, or stands in one"
    assert drawn.layout[f"xaxis{place + 1}"].domain == drawn.layout[f"xaxis{above + 1}"].domain
    assert axis.domain[1] < drawn.layout[f"yaxis{above + 1}"].domain[0]


def test_what_the_live_page_draws_keeps_its_spikes_in_a_long_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new quantity's field is marked where it is declared, and named nowhere else."""
    assert schema.live_panels("gpu").keys() <= set(schema.extreme_fields("gpu"))
    say_of(monkeypatch, "processes", KEEP_EXTREMES)
    monkeypatch.setattr(live_records, "NEWEST", 20)
    monkeypatch.setattr(live_records, "STRETCHES", 4)
    with RecordWriter(tmp_path, "launcher") as writer:
        for at in range(200):
            writer.write(gpu_sample(0, time_unix=float(at), processes=95 if at == 17 else 60))
    kept = live_records.KeptStream("gpu")
    kept.add(RunRecords(tmp_path).table("launcher", "gpu"))
    held = kept.columns()
    assert len(held["time_unix"]) < 100
    assert held["time_unix"][held["processes"] == 95].tolist() == [17.0]
