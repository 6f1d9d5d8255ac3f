"""The cards of a run's verdicts, and thresholds that are changed on the page."""

from __future__ import annotations

import re
from pathlib import Path

from streamlit.testing.v1 import AppTest

from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit


def shown(home: Path) -> tuple[AppTest, str]:
    full_home(home)
    app = visit("runs")
    run = next(name for name in app.dataframe[0].value["id"] if name.endswith("9f10"))
    app.selectbox(key="id").set_value(run).run()
    assert "**Compute-bound**" in texts(app)
    app.number_input(key=f"run-threshold-exposed-{run}").set_value(5.0).run()
    assert not app.exception
    return app, run


def test_a_card_tells_evidence_threshold_knob_and_gain(home: Path) -> None:
    app, _ = shown(home)
    text = texts(app)
    assert "**Exposed all-gather (dp)**" in text
    assert "for all-gather over dp" in text
    assert "Change next: gather less often with a smaller `parallel.zero_stage`" in text
    assert "if all of it ran beside computation" in text
    assert "Below their thresholds: " in text
    assert "straggler=" not in text, "a threshold is a percentage, as what is compared with it"
    assert re.search(r"straggler [\d.]+ % of 10 %", text)


def test_thresholds_changed_on_the_page_judge_anew_and_go_back(home: Path) -> None:
    app, run = shown(home)
    exposed, data = (app.number_input(key=f"run-threshold-{name}-{run}") for name in ("exposed", "input"))
    assert (exposed.value, data.value) == (5.0, 10.0)
    exposed.set_value(90.0)
    data.set_value(0.1).run()
    assert not app.exception
    assert "**Input-bound**" in texts(app)
    assert "**Exposed all-gather (dp)**" not in texts(app)
    assert f"workbench show {run} --threshold input=0.001 --threshold exposed=0.9" in [
        c.value for c in app.code
    ]
    app.button(key="run-thresholds-reset").click().run()
    assert "**Compute-bound**" in texts(app)
    assert "**Input-bound**" not in texts(app)
