"""Every tile says what its number is, and so do columns of the table of trials that a title alone does not explain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.workbench.decided_study import write_decided
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import visit
from workbench.text import tile_help

#: Page -> how many tiles it has at the least.
TILES = {"start": 1, "runs": 4, "live": 4, "tune": 4, "export": 4}


@pytest.mark.parametrize("page", TILES)
def test_every_tile_has_help(home: Path, page: str) -> None:
    full_home(home)
    tiles = visit(page).metric
    assert len(tiles) >= TILES[page]
    assert [tile.label for tile in tiles if not tile.help] == []


def test_the_best_of_a_study_that_has_ended_has_help_on_the_first_page(home: Path) -> None:
    write_decided(home)
    (tile,) = visit("start").metric
    assert (tile.label, tile.help) == ("Best, tokens/s", tile_help.STUDY["Best"])


def test_columns_of_the_table_of_trials_have_help(home: Path) -> None:
    full_home(home)
    [trials] = [one for one in visit("tune").dataframe if "proposed by" in one.value]
    columns = json.loads(trials.proto.columns)
    assert {name: columns[name].get("help") for name in tile_help.TRIALS} == tile_help.TRIALS


def test_the_kind_windows_is_explained(home: Path) -> None:
    full_home(home)
    [kinds] = [one for one in visit("runs").get("button_group") if one.label == "Kind"]
    assert "Windows are the short runs" in kinds.help


def test_what_follows_a_comma_is_no_part_of_the_name() -> None:
    assert tile_help.find_help("Best, measured again, tokens/s") == tile_help.STUDY["Best"]
    assert (
        tile_help.find_help("Step time, mean")
        == tile_help.RUN["Step time, mean"]
        != tile_help.find_help("Step time")
    )
    assert tile_help.find_help("Peak memory") == tile_help.RUN["Peak memory"]
    assert tile_help.find_help("Happiness") is None
