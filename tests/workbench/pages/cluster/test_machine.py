"""The Machine page: empty, holding and stale; and in a real browser, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.run.calibration import fingerprint, host_links, store
from tests.support.engine.calibrations import calibration, links_of_islands, write_stale
from tests.support.workbench import selftests
from tests.workbench.pages.conftest import Visit
from tests.workbench.pages.test_pages import charts, texts, visit


def test_without_a_calibration_it_names_the_command(home: Path) -> None:
    app = visit("machine")
    assert not app.exception
    assert [code.value for code in app.code] == ["workbench calibrate", "workbench selftest"]
    assert "not calibrated" in texts(app)
    facts = app.dataframe[0].value
    assert fingerprint.this_machine().id in list(facts["now"])


def test_a_calibration_that_holds_is_drawn(home: Path) -> None:
    store.save(home, calibration((2, 4)))
    app = visit("machine")
    assert not app.exception
    assert not app.warning
    assert charts(app) == [
        "Bus bandwidth by payload — gloo, groups of 4",
        "Matrix products by size, each rank",
    ]
    fits = app.dataframe[0].value
    assert list(fits["operation"]) == ["all reduce", "all gather", "reduce scatter", "all to all"]
    assert set(fits["alpha"]) == {"50.0 us"}
    assert set(fits["beta"]) == {"2.00 GB/s"}
    assert set(fits["largest error"]) == {"0.0 %"}


def test_links_between_hosts_are_drawn_with_their_islands(home: Path) -> None:
    host_links.save(home, links_of_islands([0, 1, 0, 1]))
    app = visit("machine")
    assert not app.exception
    assert "Mbit/s from row to column, one message at a time" in charts(app)
    said = texts(app)
    assert "island 0: node00, node02; together out of it 80 Mbit/s" in said.replace("\\", "")


def test_a_stale_one_is_shown_with_what_changed(home: Path) -> None:
    write_stale(home)
    app = visit("machine")
    assert not app.exception
    assert "stale (torch: 1.0.0 ->" in app.warning[0].value.replace("\\", "")
    assert "1.0.0" in list(app.dataframe[-1].value["when it was calibrated"])


@pytest.mark.parametrize("text", ["", "{", '{"format": 1, "curves": 3}'])
def test_a_damaged_file_is_none(home: Path, text: str) -> None:
    store.save(home, calibration()).write_text(text)
    app = visit("machine")
    assert not app.exception
    assert "not calibrated" in texts(app)


def test_the_newest_selftest_is_told_check_by_check_what_failed_first(home: Path) -> None:
    folder = selftests.write(home)
    app = visit("machine")
    assert not app.exception
    assert [code.value for code in app.code] == ["workbench calibrate"]
    shown = app.table[0].value
    assert list(shown["check"]) == ["Equal peaks of equal trials", "Environment", "Kernels on one GPU"]
    assert list(shown["outcome"]) == ["✗ fail", "✓ pass", "– not possible"]
    assert "peaks differ by 14.6%" in list(shown["reason"])
    assert f"Evidence to attach to a bug report: `{folder}`" in texts(app)


@pytest.mark.parametrize("text", ["", "{", '{"checks": 3}'])
def test_a_damaged_selftest_is_none(home: Path, text: str) -> None:
    (selftests.write(home) / "checks.json").write_text(text)
    app = visit("machine")
    assert not app.exception
    assert "No selftest has been run on this machine" in texts(app)


@pytest.mark.drawn(1, of="sections in a browser")
@pytest.mark.browser
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_draws_in_a_browser(
    tmp_path: Path,
    serve: Callable[[Path], str],
    visit: Callable[[str], Visit],
    screenshots: Path | None,
    scheme: str,
) -> None:
    store.save(tmp_path, calibration((2, 4)))
    selftests.write(tmp_path)
    tab = visit(scheme)
    tab.open(serve(tmp_path) + "/machine")
    tab.page.wait_for_selector(".st-key-machine-bandwidth .main-svg")
    tab.page.wait_for_selector(".st-key-machine-gemm .main-svg")
    tab.page.get_by_text("gloo, 2 ranks").click()
    tab.page.get_by_text("groups of 2").first.wait_for()
    tab.page.get_by_text("1 not possible here").wait_for()
    tab.settle()
    assert tab.page.locator("[data-testid=stException]").count() == 0
    assert tab.external() == []
    tab.screenshot(screenshots, f"machine-{scheme}")
