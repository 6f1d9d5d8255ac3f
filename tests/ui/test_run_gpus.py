"""The page shows the GPUs of a run, or says why there are none."""

from __future__ import annotations

from pathlib import Path

from tests.ui.homes import full_home
from tests.ui.test_pages import texts, visit


def test_a_run_with_gpus_has_their_numbers_and_charts(home: Path) -> None:
    full_home(home)
    app = visit("runs")
    with_gpus = next(name for name in app.dataframe[0].value["id"] if name.endswith("a7e2"))
    app.selectbox(key="id").set_value(with_gpus).run()
    assert not app.exception
    [rows] = [one.value for one in app.dataframe if "clocks held down by" in one.value]
    assert list(rows["GPU"]) == [0, 1, 2, 3]
    assert all(0 < share <= 100 for share in rows["tensor cores, %"])
    assert any("power cap" in words for words in rows["clocks held down by"])
    app.button_group(key="run-gpu").set_value(2).run()
    assert not app.exception


def test_a_run_without_gpus_says_why(home: Path) -> None:
    full_home(home)
    app = visit("runs")
    failed = next(name for name in app.dataframe[0].value["id"] if name.endswith("03f3"))
    app.selectbox(key="id").set_value(failed).run()
    assert not app.exception
    assert "no NVIDIA GPU" in texts(app) or "no GPU was sampled" in texts(app)
