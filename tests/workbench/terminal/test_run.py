"""A run in a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.color import Color
from rich.text import Text

from engine.run.run_folder import RunStatus
from tests.workbench.conftest import Furnished, Run
from workbench.home.runs import RunView
from workbench.terminal.run import _ending
from workbench.text import words


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


@pytest.mark.parametrize("state", [*words.LOOKS, "made up"])
def test_an_ending_has_a_colour_that_terminals_know(state: str) -> None:
    view = RunView("x", Path("x"), "ended", RunStatus(), state, "", None)
    text = Text.from_markup(_ending(view))
    assert text.plain == words.ending_words(state)
    (span,) = text.spans
    assert Color.parse(str(span.style))
