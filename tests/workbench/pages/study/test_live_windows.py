"""A study that tuned one run while it went: what its windows measured, on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.workbench.synthetic_live import write_live
from tests.workbench.pages.test_pages import visit


def test_each_window_has_its_steps_its_rate_beside_the_leader_and_what_was_learned(home: Path) -> None:
    app = visit("tune", study=write_live(home))
    assert not app.exception
    (windows,) = [one.value for one in app.dataframe if "learned" in one.value]
    assert list(windows["steps"]) == ["48 to 59", "32 to 43", "16 to 27", "0 to 11"], "the newest first"
    lossy = windows[windows["values"].str.contains("int8")]
    assert len(lossy) == 2 and set(lossy["beside it"]) == {"1.20 x (1.10 to 1.30)"}
    assert list(lossy["loss"]) == pytest.approx([3.6 / 3.5 - 1] * 2)
    assert list(lossy["learned"]) == pytest.approx([(4.0 - 3.6) / (4.0 - 3.5)] * 2)
    assert list(lossy["loss in the end"]) == pytest.approx([0.8**-0.76 - 1] * 2)
