"""Every tile of a run, of Live and of a study says what its number is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import visit
from workbench.text import tile_help


@pytest.mark.parametrize("page", ["runs", "live", "tune"])
def test_every_tile_has_help(home: Path, page: str) -> None:
    full_home(home)
    tiles = visit(page).metric
    assert len(tiles) >= 4
    assert [tile.label for tile in tiles if not tile.help] == []


def test_what_follows_a_comma_is_no_part_of_the_name() -> None:
    assert tile_help.find_help("Best, measured again, tokens/s") == tile_help.STUDY["Best"]
    assert (
        tile_help.find_help("Step time, mean")
        == tile_help.RUN["Step time, mean"]
        != tile_help.find_help("Step time")
    )
    assert tile_help.find_help("Peak memory") == tile_help.RUN["Peak memory"]
    assert tile_help.find_help("Happiness") is None
