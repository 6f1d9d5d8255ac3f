"""The page Export offers every target, with what it does not say, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.export.targets import TARGETS
from workbench.home import runs

PUBLIC = [target.name for target in TARGETS if target.format is not None]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", PUBLIC)
def test_losses_stand_on_the_page(name: str, home: Path) -> None:
    full_home(home)
    run = next(path for path in sorted(home.iterdir()) if path.name.endswith("-a7e2"))
    app = visit("export", export=run.name)
    (chooser,) = [box for box in app.selectbox if box.key == "target"]
    chooser.select(name).run()
    assert not app.exception
    target = next(one for one in TARGETS if one.name == name)
    assert target.format is not None
    losses = target.format.unexpressed(runs.load(run).config())
    tables = [found.value for found in app.dataframe if "instead" in list(found.value)]
    assert [list(table["setting"]) for table in tables] == (
        [[loss.setting for loss in losses]] if losses else []
    )
    assert [list(table["why"]) for table in tables] == ([[loss.why for loss in losses]] if losses else [])
    assert (f"{len(losses)} settings are not in it" in texts(app)) == bool(losses)
    assert losses or name == "megatron", "which says all that this run has"
    assert "guarded: this export; parsed: " in texts(app)
    assert target.format.file in {tab.label for tab in app.tabs}


@pytest.mark.parametrize("name", ["torchrun", "slurm", "k8s"])
def test_what_takes_our_own_configuration_loses_nothing(name: str, home: Path) -> None:
    full_home(home)
    app = visit("export")
    (chooser,) = [box for box in app.selectbox if box.key == "target"]
    chooser.select(name).run()
    assert not app.exception
    assert "settings are not in it" not in texts(app)
    assert "config.json" in {tab.label for tab in app.tabs}


def test_the_tile_of_a_run_that_goes_on_says_so(home: Path) -> None:
    """It was the word None."""
    app = visit("export", export=full_home(home))
    (tile,) = [metric for metric in app.metric if metric.label == "Run"]
    assert tile.value == "not ended yet"
