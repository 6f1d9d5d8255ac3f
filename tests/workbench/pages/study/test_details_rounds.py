"""The page shows what was measured again, and which trial ended early and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.tuning.analysis.test_confirmation import DEEP, trial
from tests.workbench.pages.test_pages import texts, visit
from tests.workbench.text.test_study import FILE, TIED, write

EARLY = "stopped early: could not reach the leader, after 5 steps at most 700 tokens/s"


def test_the_page_shows_what_was_measured_again(home: Path) -> None:
    slow = replace(trial(len(TIED.trials), DEEP, 600.0), reason=EARLY, outcome="pruned")
    write(home, replace(TIED, trials=(*TIED.trials, slow)))
    app = visit("tune", study=FILE.name)
    assert not app.exception
    assert any(part.label == "Measured again" for part in app.expander)
    shown = next(frame.value for frame in app.dataframe if "beside the baseline" in frame.value)
    assert list(shown["trial"]) == ["0", "1"]
    assert list(shown["is"]) == ["baseline, recommended", "fastest"]
    assert list(shown["windows"]) == ["5", "5"]
    assert "trial 0 is recommended by simplicity" in texts(app).replace("\\", "")
    trials = next(frame.value for frame in app.dataframe if "proposed by" in frame.value)
    assert EARLY in list(trials["reason"])
