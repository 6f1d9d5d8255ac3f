"""What is said of a run, and columns of quantities."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profilers.analysis.communication import message_seconds_reason
from profilers.model.machine_rows import GpuRow, HostRow, display
from profilers.model.rows import ChangeRow
from profilers.model.run_summary import CommunicationRow, RunSummary
from workbench.pages.run.details import numbers
from workbench.text import quantities, run
from workbench.text.quantities import MILLISECONDS, Column

KNOWN = {
    "id": "x",
    "layout": {"dp": 1},
    "world_size": 1,
    "backend": "nccl",
    "parameters": 1,
    "tokens_per_step": 1,
    "model_flops_per_step": 5.14e14,
    "hardware_flops_per_step": 6.5e14,
    "model_flops_per_second": 5.1e14,
    "peak_flops": 9.895e14,
    "peak_source": "dense bf16, a datasheet",
    "mfu": 0.5154,
    "hfu": 0.65,
}


def test_utilizations_stand_beside_the_peak_they_are_of() -> None:
    assert run.flops(RunSummary.from_dict(KNOWN)) == (
        "514 TFLOP of the model per step, 510 TFLOP/s; MFU 51.5 %, HFU 65.0 % "
        "(989.5 TFLOP/s a device: dense bf16, a datasheet)"
    )


def test_tokens_a_second_of_a_whole_run_are_over_all_its_time() -> None:
    """1,280 tokens in 6.4 s are 200 a second, beside 320 in the steps that were measured."""
    found = KNOWN | {"tokens_per_second": 320.0, "wall_seconds": 6.4, "tokens_per_wall_second": 1280 / 6.4}
    assert run.speed(RunSummary.from_dict(found)) == "320 tokens/s; 200 over all 6.40 s since it began"
    none = KNOWN | {"tokens_per_second_reason": "no measured step"}
    assert run.speed(RunSummary.from_dict(none)) == "not known: no measured step"


def test_a_tile_has_the_last_loss_that_was_told() -> None:
    tile = numbers(RunSummary.from_dict(KNOWN | {"losses": [3.5, 2.25, None], "validation_loss": 2.5}))
    assert tile["Last loss"] == ("2.2500", "validation 2.5000")
    assert numbers(RunSummary.from_dict(KNOWN))["Last loss"][1] == "no validation loss"


def test_what_a_run_used_of_its_time_is_told_of_one_that_was_stopped_too() -> None:
    found = KNOWN | {"budget_seconds": 60.0, "budget_used_seconds": 12.0, "losses": [3.5]}
    said = [dict(run.lines(RunSummary.from_dict(found | {"budget_stopped": how}))) for how in (False, True)]
    assert [one["time"] for one in said] == [
        "12.0 s of 60.0 s, the last loss and checkpoint included; 1 step",
        "12.0 s of 60.0 s, until it was stopped; 1 step",
    ]
    assert "time" not in dict(run.lines(RunSummary.from_dict(KNOWN)))


def test_without_a_peak_the_reason_stands_there() -> None:
    found = KNOWN | {"mfu": None, "mfu_reason": "no peak", "model_flops_per_second": 2.5e9}
    assert (
        run.flops(RunSummary.from_dict(found))
        == "514 TFLOP of the model per step, 2.5 GFLOP/s; no MFU: no peak"
    )


def test_the_reason_for_empty_cells_is_told_once_each() -> None:
    operations = ["send", "recv", "send", "all_reduce"]
    rows = [CommunicationRow("pp", name, 1, 1.0, None, None, None) for name in operations]
    found = KNOWN | {
        "peak_bandwidth_reason": "no links",
        "message_seconds_reason": message_seconds_reason(operations),
    }
    peak, messages = run.missing_reasons(rows, RunSummary.from_dict(found))
    assert peak == "percent of peak: no links"
    assert messages.startswith("time of send and recv: ")
    assert list(run.missing_reasons([], RunSummary.from_dict(KNOWN))) == []


def test_a_gpu_in_one_line() -> None:
    row = GpuRow(
        0, 10, utilization=0.93, power_watts=612.4, max_power_watts=700.0, throttled={"power cap": 0.25}
    )
    assert (
        quantities.gpu(row)
        == "busy 93 %, power 612 W, power at most 700 W, clocks throttled by power cap 25 %"
    )
    assert quantities.gpu(GpuRow(0, 10)) == "no reading"


def test_a_host_in_one_line_and_in_a_table() -> None:
    row = HostRow(
        "a", [0, 1], 10, cpu_fraction=0.75, memory_used_bytes=2**32, memory_total_bytes=2**35,
        network_sent_bytes_per_second=5e6, load_1_minute=3.25, involuntary_switches_per_second=1234.0,
    )  # fmt: skip
    assert quantities.host(row) == (
        "CPU 75 %, memory 4.00 GiB of 32.00 GiB, network sent 5.0 MB/s, load over a minute 3.25 processes, "
        "involuntary switches of all ranks 1,234 per second; ranks 0, 1"
    )
    little = HostRow(None, [], 1, memory_used_bytes=0, memory_total_bytes=3 << 10)
    assert quantities.host(little) == "memory 0 bytes of 3.0 KiB"
    assert quantities.host(HostRow(None, [], 1)) == "no reading"
    columns = {column.title: column.numbers for column in quantities.host_columns([row])}
    assert columns["load over a minute, processes"] == [3.25]
    assert (columns["host"], columns["disk read, MB/s"]) == (["a"], [None])
    assert "host" not in [column.title for column in quantities.host_columns([HostRow(None, [0], 1)])]


def test_a_table_that_is_printed_says_the_units_that_its_titles_leave_out() -> None:
    row = GpuRow(0, 10, power_watts=612.4, energy_joules=1234.0, max_temperature_celsius=61.0)
    texts = {column.name: column.texts for column in quantities.gpu_columns([row], with_hosts=False)}
    found = [texts[name] for name in ("power", "energy", "temperature at most", "power at most")]
    assert found == [["612 W"], ["1.2 kJ"], ["61 °C"], ["—"]]


def test_a_new_quantity_of_the_summary_is_shown_as_its_field_says(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [GpuRow(0, 10, sm_clock_mhz=1980.0, ranks_memory_bytes=2**31), GpuRow(1, 10)]
    before = [column.title for column in quantities.gpu_columns(rows, with_hosts=False)]
    for name, look in (
        ("sm_clock_mhz", display("clock", "MHz", in_line=True)),
        ("ranks_memory_bytes", display("memory of ranks", "bytes")),
    ):
        monkeypatch.setattr(GpuRow.__dataclass_fields__[name], "metadata", look)
    columns = {column.title: column for column in quantities.gpu_columns(rows, with_hosts=False)}
    assert columns.keys() - before == {"clock, MHz", "memory of ranks, GiB"}
    assert columns["clock, MHz"].numbers == [1980.0, None]
    assert columns["memory of ranks, GiB"].numbers == [2.0, None]
    assert [quantities.gpu(row) for row in rows] == ["clock 1,980 MHz", "no reading"]


def test_a_column_has_one_name_as_text_and_asnumbers() -> None:
    column = Column("exposed", [0.0123, None], MILLISECONDS)
    assert (column.title, column.texts) == ("exposed, ms", ["12.3 ms", "—"])
    assert column.numbers == [12.3, None]
    plain = Column("axis", ["dp"])
    assert (plain.title, plain.texts, plain.numbers) == ("axis", ["dp"], ["dp"])


def test_another_model_than_the_decoder_is_named_with_what_it_measures() -> None:
    told = {"workload": "vision", "parameters": 204_874, "losses": [2.3, 1.9], "validation_loss": 2.0887}
    told |= {"metric_name": "accuracy", "validation_metric": 0.625}
    lines = dict(run.lines(RunSummary.from_dict(KNOWN | told)))
    assert lines["model"].startswith("vision, ")
    assert lines["loss"] == "2.3000 -> 1.9000 over 2 steps; validation 2.0887, accuracy 0.6250"
    found = RunSummary.from_dict(KNOWN | {"losses": [0.5, 2.8e-05], "validation_loss": 1.5e-06})
    assert dict(run.lines(found))["loss"] == "0.5000 -> 2.8e-05 over 2 steps; validation 1.5e-06"
    early = {"losses": [2.3, 1.9], "validation_loss": 2.0887, "partial_loss": 2.3}
    told_early = dict(run.lines(RunSummary.from_dict(KNOWN | early)))["loss"]
    assert told_early == "2.3000 -> 1.9000 over 2 steps; validation 2.0887, with stages left out 2.3000"
    for usual in ({"workload": "decoder"}, {}):  # as it is now, and as it was before there was another one
        assert "model" not in dict(run.lines(RunSummary.from_dict(KNOWN | usual)))


def test_a_peak_since_a_change_says_so() -> None:
    """The chart beside it has the peak of the whole run."""
    found = RunSummary("x", {"dp": 1}, 1, "gloo", 1, 1, peak_memory_rank=3, peak_memory_phase="backward")
    assert run.peak_memory_rank(found) == "rank 3, in backward"
    changed = replace(found, changes=[ChangeRow(9, "batch.micro_batch", 2, 4)])
    assert run.peak_memory_rank(changed) == "rank 3, in backward, since the last change"
