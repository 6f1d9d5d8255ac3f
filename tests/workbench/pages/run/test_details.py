"""The headline of a run says what was trained, and what that measures beside its loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import streamlit as st

from profilers.model.run_summary import RunSummary
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.home import runs
from workbench.home.runs import RunView
from workbench.pages.run import details
from workbench.pages.widgets.common import summary_of
from workbench.records.live_snapshot import Snapshot
from workbench.text import words


def test_another_model_is_named_and_no_formula_speaks_of_it(home: Path) -> None:
    full_home(home)
    app = visit("runs", section="Loss and memory")
    run = next(name for name in app.dataframe[0].value["id"] if name.endswith("03f3"))
    change(home / run / "summary.json", {"workload": "tiny eyes", "metric_name": "accuracy"})
    change(home / run / "summary.json", {"validation_metric": 0.625, "validation_loss": 2.0887})
    config = json.loads((home / run / "config.json").read_text(encoding="utf-8"))
    change(home / run / "config.json", {"model": config["model"] | {"workload": "vision"}})
    app.selectbox(key="id").set_value(run).run()
    assert not app.exception
    shown = texts(app)
    assert "tiny eyes; MFU" in shown
    assert "validation 2.0887, accuracy 0.6250" in shown
    assert "Memory that a rank needs" not in shown


def test_the_tile_communication_adds_up_with_what_verdicts_call_exposed(home: Path) -> None:
    """The same page has a larger number for both together, and one for the calls alone."""
    full_home(home)
    run = next(folder for folder in home.iterdir() if folder.name.endswith("a7e2"))
    found = summary_of(runs.load(run))
    assert found is not None and found.late_rank_seconds is not None
    exposed = sum(verdict.share or 0.0 for verdict in found.findings if verdict.name.startswith("exposed"))
    caption = details.numbers(found)["Communication"][1]
    assert caption.startswith(f"{words.percent(exposed, 1)} for the calls, ")
    change(run / "summary.json", {"late_rank_seconds": None})
    older = summary_of(runs.load(run))
    assert older is not None and "spent waiting" in details.numbers(older)["Communication"][1]
    live = texts(visit("live", run=run.name))
    assert "for late ranks" not in live
    change(run / "summary.json", {"late_rank_seconds": found.late_rank_seconds})
    assert f"Waits for communication over these: {caption}." in texts(visit("live", run=run.name))


def test_only_the_open_view_is_drawn_and_the_address_names_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_home(home)
    drawn = list[str]()

    def noting(name: str, draw: Callable[..., None]) -> Callable[..., None]:
        return lambda *told: (drawn.append(name), draw(*told))[1]

    for name, draw in details.SECTIONS.items():
        monkeypatch.setitem(details.SECTIONS, name, noting(name, draw))
    app = visit("runs", id=run)
    for name in details.SECTIONS:
        app.query_params["section"] = name
        assert not app.run().exception, name
    assert drawn[-len(details.SECTIONS) :] == list(details.SECTIONS)
    assert set(drawn[: -len(details.SECTIONS)]) == {"Step time"}


def test_a_new_tab_is_a_function_and_an_entry(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = full_home(home)

    def draw_sums(view: RunView, records: Snapshot, summary: RunSummary) -> None:
        st.info(f"{view.id}: {len(records.ranks)} of {summary.world_size} ranks")

    monkeypatch.setitem(details.SECTIONS, "Sums", draw_sums)
    app = visit("runs", id=run)
    assert [tab.label for tab in app.tabs] == list(details.SECTIONS)
    assert not app.info
    app.query_params["section"] = "Sums"
    app.run()
    assert [info.value for info in app.info] == [f"{run}: 4 of 4 ranks"]


def change(file: Path, values: dict[str, object]) -> None:
    """Some values of a JSON file."""
    tree = json.loads(file.read_text(encoding="utf-8")) | values
    file.write_text(json.dumps(tree), encoding="utf-8")
