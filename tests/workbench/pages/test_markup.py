"""Names that people chose are shown as they are written, in figures as in Markdown."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from streamlit.testing.v1 import AppTest

from engine.run import run_folder
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import visit
from tuning.report.study_result import TrialRow
from tuning.spec.objectives import Aim
from tuning.storage.study_folder import STUDIES
from workbench.figures import base, compare
from workbench.figures.steps import Mark
from workbench.pages import navigation
from workbench.pages.run.details import SECTIONS
from workbench.pages.run.live import charts
from workbench.pages.widgets.drawing import drawing_of

#: As a folder can be called, so without a slash.
NAME = "<b>x<a href=elsewhere.example>go_it_ *bold* [out](elsewhere.example)"
SHOWN = NAME.replace("<", "&lt;").replace(">", "&gt;")
#: Parts of a page that the browser reads as Markdown.
MARKDOWN = ("body", "label", "help")
#: Shown letter by letter.
CODE = ("code", "json")


@pytest.fixture
def marked(home: Path) -> str:
    """A home with a study of that name, and a run of it; returns the run's id."""
    full_home(home)
    shutil.copytree(home / STUDIES / "quickstart", home / STUDIES / NAME)
    run = next(folder for folder in home.iterdir() if folder.name.endswith("a7e2"))
    status = run_folder.read_json(run / run_folder.STATUS) or {}
    run_folder.write_json(run / run_folder.STATUS, status | {"labels": {"study": NAME, "trial": "1"}})
    return run.name


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


def raw_in_figures(app: AppTest) -> list[str]:
    told = [json.loads(chart.proto.json) for chart in app.get("bidi_component")]
    return [text for text in strings(told) if re.search(r"<b>x|<a ", text)]


def raw_in_markdown(app: AppTest) -> list[str]:
    """Texts in which the name is markup."""
    markup = re.compile(r"(?<!\\)\[out\]|(?<!\\)<b>x|(?<!\\)\*bold")
    return [
        f"{node.type}: {text}" for node in walk(app.main) for text in texts_of(node) if markup.search(text)
    ]


def texts_of(node: Any) -> list[str]:
    """What it says in Markdown, without what is code there."""
    proto = getattr(node, "proto", None)
    if node.type in CODE:
        return []
    said = [text for field in MARKDOWN if isinstance(text := getattr(proto, field, None), str)]
    return [re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", text) for text in said]


def walk(block: Any) -> Iterator[Any]:
    for child in getattr(block, "children", {}).values():
        yield child
        yield from walk(child)


#: Page with its query, where RUN stands for the run of the study and STUDY for it.
LOOKS = (
    "start", "runs?id=STUDY", "runs?id=RUN", "live?run=RUN", "steps?run=RUN", "tune?study=STUDY",
    "tune?study=STUDY&view=new", "compare?ids=STUDY:0,STUDY:4", "export?export=STUDY",
)  # fmt: skip


def look(address: str, run: str) -> AppTest:
    page, _, query = address.partition("?")
    parts = (part.partition("=") for part in query.split("&") if part)
    return visit(page, **{key: value.replace("RUN", run).replace("STUDY", NAME) for key, _, value in parts})


@pytest.mark.parametrize("address", LOOKS)
def test_a_name_of_a_study_is_shown_as_it_is_written(marked: str, address: str) -> None:
    app = look(address, marked)
    assert not app.exception
    assert raw_in_figures(app) == []
    assert raw_in_markdown(app) == []
    assert raw_commands(app) == []


@pytest.mark.parametrize("address", ["live?run=RUN", *(f"runs?id=RUN&section={name}" for name in SECTIONS)])
def test_markup_of_the_page_itself_is_not_shown(
    home: Path, marked: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is escaped twice shows its backslashes, and stars that were escaped show as stars."""
    for records in (home / marked / run_folder.RECORDS).glob("*.gpu"):
        records.unlink()
    monkeypatch.setattr(charts, "why_no_gpu", lambda _: "it does not start: *library* not found")
    assert escaped_twice(look(address, marked)) == []


def escaped_twice(app: AppTest) -> list[str]:
    said = [text for node in walk(app.main) for text in texts_of(node)]
    return [text for text in said if re.search(r"\\\\\\[^A-Za-z0-9\s]|\\\*\\\*", text)]


def test_what_is_escaped_twice_is_found() -> None:
    script = "import streamlit as st\nfrom workbench.text.words import escape\nst.caption(escape({!r}))"
    for text in ("does not start\\: no library", "it took **2 GiB**"):
        assert escaped_twice(AppTest.from_string(script.format(text)).run())
    assert not escaped_twice(AppTest.from_string(script.format("does not start: *no* library")).run())


def raw_commands(app: AppTest) -> list[str]:
    """Commands with the marks of Markdown around them, where these are not read as such."""
    cells = [str(value) for frame in app.dataframe for value in frame.value.to_numpy().ravel()]
    told = [text for chart in app.get("bidi_component") for text in strings(json.loads(chart.proto.json))]
    said = [text for node in walk(app.main) for text in texts_of(node)]
    return [text for text in cells + told if "`workbench" in text] + [
        text for text in said if re.search(r"\\`(workbench|torchrun)", text)
    ]


@pytest.mark.parametrize("entry", navigation.ENTRIES, ids=lambda entry: entry.address)
def test_commands_have_no_marks_around_them(home: Path, entry: navigation.Page) -> None:
    assert raw_commands(visit(entry.address)) == []
    full_home(home)
    app = visit(entry.address, view="new") if entry.address == "tune" else visit(entry.address)
    assert raw_commands(app) == []
    assert raw_commands(visit(entry.address)) == []


def test_marks_around_a_command_are_found() -> None:
    script = "import streamlit as st\nst.caption('not calibrated: run \\\\`workbench calibrate\\\\`')"
    assert raw_commands(AppTest.from_string(script).run())


def test_what_the_checks_look_for_is_there(marked: str) -> None:
    """Else pages that never say the name would pass them."""
    said = [text for node in walk(look("runs?id=RUN", marked).main) for text in texts_of(node)]
    assert any("elsewhere.example" in text for text in said)
    bad = AppTest.from_string(f"import streamlit as st\nst.caption({NAME!r})").run()
    assert raw_in_markdown(bad)


def test_a_figure_shows_names_values_units_and_notes_as_they_are_written() -> None:
    rows = [
        TrialRow(number, value=10.0 + number, outcome="completed", config={"model.preset": value})
        for number, value in enumerate((NAME, "tiny"))
    ]
    drawing = compare.slices(rows, Aim(), {}, NAME)
    sent = drawing_of(base.add_marks(drawing, [Mark(3, NAME)]), "alt")
    assert sent.layout["title"]["text"] == f"Knob by knob, {SHOWN}"
    assert SHOWN in sent.traces[0]["x"] and SHOWN in sent.layout["xaxis"]["categoryarray"]
    assert SHOWN in sent.layout["annotations"][-1]["hovertext"]
    assert not [text for text in strings([sent.traces, sent.layout]) if "<b>" in text or "<a" in text]


def test_markup_of_the_house_is_kept_and_templates_show_units() -> None:
    figure = base.figure("two\nlines", "", base.bold("rank 0"))
    figure.add_scatter(
        x=["a & b"], y=[1], hovertemplate=f"%{{y}} {base.in_template('<i>%{x}')}<extra></extra>"
    )
    sent = drawing_of(figure, "alt")
    assert sent.layout["title"]["text"] == "two<br>lines"
    assert sent.layout["yaxis"]["title"]["text"] == "<b>rank 0</b>"
    assert sent.traces[0]["x"] == ["a &amp; b"]
    assert sent.traces[0]["hovertemplate"] == "%{y} &lt;i&gt;%&#123;x}<extra></extra>"


@pytest.mark.browser
def test_plotly_draws_names_as_they_are_written(browser: Any) -> None:
    figure = go.Figure(layout={"title": {"text": NAME}, "height": 300, "width": 900, "showlegend": True})
    figure.add_scatter(x=[NAME, "b & c"], y=[1, 2], name=NAME)
    sent = drawing_of(figure, "alt")
    page = browser.new_page()
    page.set_content('<div id="plot"></div>')
    page.add_script_tag(path=str(Path(go.__file__).parents[1] / "package_data" / "plotly.min.js"))
    page.evaluate(
        "([data, layout]) => Plotly.newPlot('plot', data, layout)", [sent.whole["data"], sent.layout]
    )
    for part in (".gtitle", ".legendtext", ".xtick text"):
        assert page.locator(part).first.text_content() == NAME
    assert page.locator("svg.main-svg a").count() == page.locator("#plot tspan[style*=bold]").count() == 0
    assert page.locator(".xtick text").nth(1).text_content() == "b & c"
    page.close()
