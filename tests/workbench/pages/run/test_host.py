"""The page tells what a rank must hold, beside what it was measured to hold."""

from __future__ import annotations

from pathlib import Path

from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit


def test_a_run_shows_what_a_rank_must_hold(home: Path) -> None:
    full_home(home)
    app = visit("runs", section="Loss and memory")
    failed = next(name for name in app.dataframe[0].value["id"] if name.endswith("03f3"))
    app.selectbox(key="id").set_value(failed).run()
    assert not app.exception
    assert "Memory that a rank needs" in texts(app)
    assert "which holds most" in texts(app)
    tables = [one.value for one in app.dataframe if "by formula" in one.value]
    assert len(tables) == 1
    parts = dict(zip(tables[0]["by formula"], tables[0]["MiB"], strict=True))
    assert parts["together"] > parts["parameters"] > 0
    assert abs(sum(parts.values()) - 2 * parts["together"]) < 1e-6
