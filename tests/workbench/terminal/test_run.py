"""The line about arithmetic in the text of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.color import Color
from rich.text import Text

from profilers.analysis.communication import message_seconds_reason
from profilers.model.run_summary import RunSummary
from tests.workbench.conftest import Furnished, Run
from workbench.home.runs import RunView
from workbench.terminal.run import _ending, _flops, _reasons
from workbench.text import words

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
    assert _flops(RunSummary.from_dict(KNOWN)) == (
        "514 TFLOP of the model per step, 510 TFLOP/s; MFU 51.5 %, HFU 65.0 % "
        "(989.5 TFLOP/s a device: dense bf16, a datasheet)"
    )


def test_without_a_peak_the_reason_stands_there() -> None:
    found = KNOWN | {"mfu": None, "mfu_reason": "no peak", "model_flops_per_second": 2.5e9}
    assert (
        _flops(RunSummary.from_dict(found)) == "514 TFLOP of the model per step, 2.5 GFLOP/s; no MFU: no peak"
    )


def test_show_tells_why_there_is_no_mfu(command: Run, furnished: Furnished) -> None:
    run = next(path.name for path in Path(furnished.home).iterdir() if path.name.endswith("-3c01"))
    (line,) = [
        line for line in command("show", run, "--home", furnished.home).out.splitlines() if "FLOPs" in line
    ]
    assert "no MFU: the peak of this device is not known: no table entry for this CPU" in line
    document = command("show", run, "--json", "--home", furnished.home).document
    assert document["mfu"] is None and document["hfu"] is None
    assert document["model_flops_per_step"] > 0
    assert document["peak_source"] == "no table entry for this CPU"


def test_the_reason_for_empty_cells_is_told_once_each() -> None:
    rows = ["send", "recv", "send", "all_reduce"]
    found = KNOWN | {
        "peak_bandwidth_reason": "no links",
        "message_seconds_reason": message_seconds_reason(rows),
    }
    peak, messages = _reasons(RunSummary.from_dict(found))
    assert peak == "percent of peak: no links"
    assert messages.startswith("time of send and recv: ")
    assert list(_reasons(RunSummary.from_dict(KNOWN))) == []


@pytest.mark.parametrize("state", [*words.LOOKS, "made up"])
def test_an_ending_has_a_colour_that_terminals_know(state: str) -> None:
    view = RunView("x", Path("x"), "ended", {}, state, "", None)
    text = Text.from_markup(_ending(view))
    assert text.plain == words.spoken(state)
    (span,) = text.spans
    assert Color.parse(str(span.style))
