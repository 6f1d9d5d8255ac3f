"""Every page, without a browser: on a full home, on an empty one, and on damaged files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.run.calibration import store
from tests.support.engine.calibrations import calibration
from tests.support.workbench.sent_figures import figures_of
from tests.workbench.pages.homes import damaged_home, full_home
from workbench.analysis.winner_explanation import compare
from workbench.pages import navigation
from workbench.pages.study import details, transfer

ROOT = Path(__file__).parents[3]
PAGES = [page.address for page in navigation.ENTRIES]


def run_names(home: Path) -> list[str]:
    return [path.name for path in home.iterdir() if path.name.startswith("20")]


def study_names(home: Path) -> list[str]:
    return [path.name for path in (home / "studies").iterdir()]


def all_names(home: Path) -> list[str]:
    return run_names(home) + study_names(home)


#: Page -> the key of its chooser, and what can be chosen there; most have none.
CHOSEN: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "runs": ("id", all_names),
    "live": ("run", run_names),
    "steps": ("run", run_names),
    "tune": ("study", study_names),
    "export": ("export", all_names),
}


def visit(page: str, **query: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "workbench" / "pages" / "main.py"), default_timeout=60).run()
    for name, value in query.items():
        app.query_params[name] = value
    files = {entry.address: entry.file for entry in navigation.ENTRIES}
    return app.switch_page(files[page]).run()


def texts(app: AppTest) -> str:
    """All that the page says, as Markdown shows what was escaped."""
    parts = [*app.markdown, *app.caption, *app.info, *app.warning, *app.error, *app.success, *app.metric]
    said = "\n".join(f"{getattr(part, 'label', '')} {part.value}" for part in parts)
    return re.sub(r"\\([^A-Za-z0-9\s])", r"\1", said)


def charts(app: AppTest) -> list[str]:
    return [figure["layout"]["title"]["text"] for figure in figures_of(app)]


def test_a_new_page_is_a_file_and_an_entry(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hello.py").write_text("import streamlit as st\nst.info('a page that was made up')\n")
    entry = navigation.Page("Hello", str(tmp_path / "hello.py"))
    monkeypatch.setattr(navigation, "ENTRIES", (*navigation.ENTRIES, entry))
    app = AppTest.from_file(str(ROOT / "workbench" / "pages" / "main.py"), default_timeout=60).run()
    shown = app.switch_page(str(tmp_path / "hello.py")).run()
    assert [info.value for info in shown.info] == ["a page that was made up"]


def test_whatever_acts_goes_through_pressed() -> None:
    """A link that only shows is switched off there; these change nothing but what their own browser shows."""
    harmless = {"run/verdicts.py": 1, "run/details.py": 1, "run/control.py": 1, "run/anatomy/step_view.py": 1,
                "widgets/common.py": 1, "widgets/login.py": 2, "study/new_knobs.py": 1}  # fmt: skip
    folder = ROOT / "workbench" / "pages"
    drawn = re.compile(r"\.(button|form_submit_button|menu_button)\(")
    found = {
        file.relative_to(folder).as_posix(): len(drawn.findall(file.read_text("utf-8")))
        for file in folder.rglob("*.py")
    }
    assert {name: count for name, count in found.items() if count} == harmless


@pytest.mark.parametrize("entry", navigation.ENTRIES, ids=lambda entry: entry.address)
def test_an_empty_home_says_what_to_do(home: Path, entry: navigation.Page) -> None:
    app = visit(entry.address)
    assert not app.exception
    assert not app.error
    assert app.code or not entry.shows_home


@pytest.mark.drawn(2)
@pytest.mark.parametrize("page", PAGES)
def test_damaged_files_never_show_a_traceback(home: Path, page: str) -> None:
    damaged_home(home)
    app = visit(page)
    assert not app.exception
    if page not in CHOSEN:
        return
    chooser, names = CHOSEN[page]
    for name in names(home):
        app.query_params[chooser] = name
        assert not app.run().exception, name


def test_runs_lists_runs_and_studies_and_shows_one(home: Path) -> None:
    full_home(home)
    app = visit("runs")
    lines = app.dataframe[0].value
    assert len(lines) == 12
    assert set(lines["kind"]) == {"run", "study"}
    assert "quickstart" in list(lines["id"])
    failed = next(name for name in lines["id"] if name.endswith("03f3"))
    app.selectbox(key="id").set_value(failed).run()
    assert "rank 2 ran out of memory" in texts(app)
    assert "Step time by phase — the slowest rank of each step" in charts(app)
    assert not app.exception


def test_runs_can_be_filtered(home: Path) -> None:
    full_home(home)
    app = visit("runs")
    app.text_input(key="filter").set_value("zero-3 memory").run()
    assert list(app.dataframe[0].value["id"]) == [app.selectbox(key="id").value]
    assert not app.warning, "what the filter hides is not gone"
    app.text_input(key="filter").set_value("no such thing").run()
    assert "No run or study matches" in texts(app)


def test_a_link_to_a_run_has_the_list_out_of_the_way(home: Path) -> None:
    """Nine rows of others would stand above what was asked for."""
    full_home(home)
    crashed = next(path.name for path in home.iterdir() if path.name.endswith("9f10"))
    folded = visit("runs", id=crashed)
    assert [one.label for one in folded.expander if one.label.startswith("All runs")] == [
        "All runs and studies (12)"
    ]
    assert len(folded.dataframe[0].value) == 12, "the list is there, behind one click"
    for address in ({}, {"id": crashed, "kind": "Studies"}, {"id": "gone"}):
        shown = visit("runs", **address)
        assert not [one for one in shown.expander if one.label.startswith("All runs")], address


def test_live_follows_the_run_that_goes_on(home: Path) -> None:
    running = full_home(home)
    app = visit("live")
    assert running in texts(app)
    assert "70 of 600" in texts(app)
    assert "quickstart · trial 7" in texts(app)
    (backend,) = [one for one in app.caption if one.value == "gloo, on the CPU"]
    assert backend.proto.help == "no GPU was found"
    assert "No GPU readings: libnvidia-ml.so.1 was not found" in texts(app)
    assert {"Collectives, per step and rank", "Step time by rank", "Host", "Training loss"} <= set(
        charts(app)
    )


def test_live_shows_the_phases_of_a_chosen_rank(home: Path) -> None:
    full_home(home)
    app = visit("live")
    app.get("button_group")[0].set_value("2").run()
    assert "Step time by phase — rank 2" in charts(app)


def test_a_link_names_the_run_to_show(home: Path) -> None:
    full_home(home)
    crashed = next(path.name for path in home.iterdir() if path.name.endswith("9f10"))
    app = visit("live", run=crashed)
    assert crashed in texts(app)
    assert "token 311 is not in the vocabulary" in texts(app)


@pytest.mark.parametrize(("page", "key"), [("runs", "id"), ("live", "run"), ("steps", "run")])
def test_the_browser_is_told_each_time_which_run_is_chosen(home: Path, page: str, key: str) -> None:
    """It would show the first option if one drawing overtook another, which new runs do to a page that loads."""
    full_home(home)
    crashed = next(path.name for path in home.iterdir() if path.name.endswith("9f10"))
    app = visit(page, **{key: crashed})
    for _ in range(2):
        chooser = app.selectbox(key=key)
        assert (chooser.value, chooser.proto.set_value) == (crashed, True)
        app.run()


def test_tune_watches_a_study(home: Path) -> None:
    full_home(home)
    app = visit("tune")
    assert "best so far" in texts(app)
    assert "7 of 12" in texts(app)
    tables = [found.value for found in app.dataframe]
    table = next(found for found in tables if "trial" in list(found) and "outcome" in list(found))
    assert not any(text.label.startswith("Why ") for text in app.expander), "nothing was shown to be faster"
    assert list(table["trial"]) == [7, 6, 5, 4, 3, 2, 1, 0]
    assert "out of memory" in str(list(table["outcome"]))
    assert charts(app) == ["Tokens per second of each trial", "Which knobs mattered"]


def test_export_offers_files_and_a_zip(home: Path) -> None:
    full_home(home)
    app = visit("export")
    assert {"config.json", "run.sh", "provenance.json", "README.md"} <= {tab.label for tab in app.tabs}
    assert "--nproc-per-node" in "".join(code.value for code in app.code)
    assert app.get("download_button")


def test_no_page_loads_torch_or_optuna(home: Path) -> None:
    """Nor do predictions of what is typed into a form, which this machine has."""
    full_home(home)
    store.save(home, calibration((2, 4)))
    look = "from tests.workbench.pages.test_pages import PAGES, visit; import sys; [visit(page) for page in PAGES]; "
    report = "print(*(name for name in ('torch', 'optuna', 'sklearn') if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", look + "visit('tune', view='new'); " + report],
        cwd=ROOT,
        env=os.environ | {"WORKBENCH_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""


def test_a_study_leaves_as_one_file_and_comes_back(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_home(home)
    file = transfer.pack_study("quickstart")
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path / "elsewhere"))
    app = visit("runs")
    app.get("file_uploader")[0].set_value(("q.study.zip", file, "application/zip"))
    app.text_input(key="study-name-0").set_value("other").run()
    app.button(key="study-import").click().run(timeout=60)
    assert not app.exception
    assert "other is here with 8 trials and 8 runs" in app.success[0].value
    assert app.selectbox(key="id").value == "other"
    assert [button.label for button in app.get("download_button")] == [
        "Export this study",
        "Report",
        "Download all trials as CSV",
    ]


def test_a_winner_is_explained_with_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, list[Any]]] = []
    monkeypatch.setattr(details, "table", lambda columns, *_: drawn.append(columns))
    phases = {"forward": 0.1, "backward": 0.2}
    slow = {"tokens_per_step": 64, "phases": phases | {"communication_exposed": 0.5}}
    fast = {"tokens_per_step": 64, "phases": phases | {"communication_exposed": 0.1}}
    details._why_it_wins(compare(fast, slow, "pp=2", "dp=2", "baseline"))
    (columns,) = drawn
    assert list(columns)[:2] == ["part of a step", "winner, ms"]
    assert columns["part of a step"][0] == "waiting for communication"
    assert columns["saved, ms"][0] == pytest.approx(400.0)
