"""The pictures of ``make screens``: every page, every view of a run, a run that failed, and an empty home."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from tests import screens
from workbench.pages.navigation import ENTRIES
from workbench.pages.run.details import SECTIONS


def test_every_page_and_every_view_has_a_picture(tmp_path: Path) -> None:
    full = screens.addresses("finished", "failed", "live", "adapted", "sparse")
    empty = screens.empty_pages(tmp_path / "home")
    assert {entry.address for entry in ENTRIES} <= full.keys()
    assert {f"empty-{entry.address}" for entry in ENTRIES} == empty.keys()
    shown = {
        unquote(address.partition("section=")[2]) for address in full.values() if "id=finished" in address
    }
    assert shown == {"", *list(SECTIONS)[1:]}, "without a section the first view opens"
    assert "/runs?id=failed" in full.values()
