"""The page Compare, and the way to it from the lists of runs and trials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from engine.run import run_folder
from tests.workbench.pages.conftest import Visit
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import charts, run_names, texts, visit
from tuning.report.study_result import TrialRow
from tuning.spec.objectives import Aim
from workbench.figures import compare as figures


def dataframe(app: AppTest, column: str) -> list[object]:
    return list(next(frame.value for frame in app.dataframe if column in frame.value)[column])


def test_runs_of_the_address_are_compared_and_the_address_follows_the_choice(home: Path) -> None:
    full_home(home)
    names = sorted(run_names(home))[:3]
    app = visit("compare", ids=",".join(names[:2]))
    assert not app.exception
    assert dataframe(app, "run") == names[:2]
    assert "B is " in texts(app) or "not told apart" in texts(app)
    assert {"Where a step's time goes", "Collectives, per step and rank"} <= set(charts(app))
    app.multiselect(key="compare-ids").set_value(names).run()
    assert app.query_params["ids"] in (",".join(names), [",".join(names)])
    assert len(dataframe(app, "run")) == 3


def test_trials_of_a_study_stand_among_all_of_its_trials(home: Path) -> None:
    full_home(home)
    app = visit("compare", ids="quickstart:0,quickstart:4")
    assert "B is faster than A" in texts(app)
    assert {"All trials of quickstart", "Knob by knob, quickstart"} <= set(charts(app))
    app.segmented_control(key="compare-against").set_value("tokens").run()
    assert "Training loss against tokens" in charts(app)


def test_what_is_gone_is_said(home: Path) -> None:
    full_home(home)
    name = run_names(home)[0]
    app = visit("compare", ids=f"{name},20200101-000000-gone")
    assert "20200101-000000-gone" in texts(app)
    assert "at least two" in texts(app)
    assert not app.exception


def test_windows_of_a_confirmation_are_offered_by_nobody(home: Path) -> None:
    full_home(home)
    window, *_ = names = sorted(run_names(home))
    run_folder.update_status(
        home / window, labels={"study": "quickstart", "trial": "9", "purpose": "confirm"}
    )
    offered = visit("compare").multiselect(key="compare-ids").options
    assert len(offered) == len(names) - 1
    assert not any(window in option for option in offered)


def test_a_knob_is_an_upright_line_with_its_values_in_order() -> None:
    rows = [
        TrialRow(
            number,
            run=f"r{number}",
            config={"batch.micro_batch": size, "memory.recompute": how},
            value=100.0 + number,
        )
        for number, (size, how) in enumerate([(8, "none"), (2, "full"), (4, "none")])
    ]
    axes = figures.knob_axes([*rows, TrialRow(9, config={"batch.micro_batch": 64})])
    assert [axis.key for axis in axes] == ["batch.micro_batch", "memory.recompute"]
    assert [axes[0].place(value) for value in (2, 4, 8)] == [0.0, 0.5, 1.0]
    drawing = figures.parallel(rows, Aim(), {"r0": "A", "r2": "B"}, "s")
    lines = {trace.name: list(trace.y) for trace in drawing.data}
    assert lines["A: trial 0"] == [1.0, 0.0, 0.0]
    assert lines["B: trial 2"] == [0.5, 0.0, 1.0]
    assert [trace.name for trace in drawing.data][-2:] == ["A: trial 0", "B: trial 2"]
    turned = figures.parallel(rows, Aim(), {"r2": "A", "r0": "B"}, "s")
    ranks = {trace.name: trace.legendrank for trace in turned.data if trace.showlegend}
    assert sorted(ranks, key=ranks.__getitem__) == ["A: trial 2", "B: trial 0"], "as in every other figure"
    panels = figures.slices(rows, Aim(), {"r2": "B"}, "s")
    own = [trace for trace in panels.data if trace.name == "B"]
    assert [(trace.x[0], trace.y[0]) for trace in own] == [("4", 102.0), ("none", 102.0)]


def test_the_knobs_in_which_the_compared_runs_differ_come_first() -> None:
    keys = [f"overlap.knob{number}" for number in range(figures.SHOWN_KNOBS)] + ["compression.method"]
    rows = [
        TrialRow(at, run=f"r{at}", config=dict.fromkeys(keys, value) | own, value=1.0 + at)
        for at, (value, own) in enumerate(
            [(1, {"compression.method": "none"}), (1, {"compression.method": "fp16"}), (2, {})]
        )
    ]
    drawing = figures.slices(rows, Aim(), {"r0": "A", "r1": "B"}, "s")
    titles = [axis.title.text for axis in drawing.select_xaxes()]
    assert titles[0] == "compression" and len(titles) == figures.SHOWN_KNOBS


def test_of_very_many_trials_the_best_is_drawn() -> None:
    rows = [
        TrialRow(at, run=f"r{at}", config={"batch.micro_batch": at % 7}, value=1.0 + at) for at in range(5000)
    ]
    drawing = figures.parallel(rows, Aim(), {"r3": "A"}, "s")
    names = [trace.name for trace in drawing.data]
    assert len(names) <= figures.SHOWN_TRIALS + 1
    assert "trial 4999" in names and names[-1] == "A: trial 3"


@pytest.mark.browser
@pytest.mark.timeout(300)
@pytest.mark.drawn(1, of="pages beyond this machine")
def test_two_rows_of_the_list_are_ticked_and_compared(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit], screenshots: Path | None
) -> None:
    full_home(tmp_path / "home")
    tab = visit("light")
    tab.open(serve(tmp_path / "home") + "/runs")
    table = tab.page.locator("[class*=st-key-runs-table] canvas").first
    table.wait_for()
    for row in (2, 3):
        # Over the canvas lies what scrolls it, and takes its clicks.
        table.click(position={"x": 15, "y": 33 * row + 18}, force=True)
        tab.settle()
    tab.page.get_by_role("link", name="Compare these 2").click()
    tab.page.wait_for_selector(".st-key-compare-phases .main-svg")
    tab.settle()
    assert len(tab.page.url.partition("ids=")[2].replace("%2C", ",").split(",")) == 2
    tab.screenshot(screenshots, "compare")
