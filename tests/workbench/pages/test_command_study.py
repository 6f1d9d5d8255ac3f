"""A study of a command on the pages: what is tuned, what to type now, and runs without a rate in tokens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.foreign import printing
from tests.workbench.conftest import Run
from tests.workbench.pages.test_pages import texts, visit
from workbench.home.store import Store


@pytest.mark.timeout(120)
def test_the_pages_show_the_command_and_its_runs(command: Run, home: Path) -> None:
    script = f"{sys.executable} {printing.__file__} --size"
    done = command(
        "tune", "--command", f"{script} 2", "--set", "space={trainer.size: [2, 4]}", "--set", "name=shown",
        "--set", "base.train={steps: 8, warmup: 2}", "--set", "confirm_repeats=0", "--trials", "2",
    )  # fmt: skip
    assert done.code == 0, done
    for app in (visit("tune", view="watch", study="shown"), visit("runs", id="shown")):
        assert not app.exception
        assert f"{script} 4" in [code.value for code in app.code]
        assert "a command of one's own, started in" in texts(app)
        assert "tokens/s" not in texts(app)
    (run,) = [row.id for row in Store(home).runs("shown") if str(row.trial) == "0"]
    for app in (visit("runs", id=run), visit("live", run=run)):
        assert not app.exception
        assert "20.0 ms" in texts(app) or "20 ms" in texts(app)
