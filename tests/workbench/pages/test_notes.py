"""Notes and tags of runs and studies on the page, and views under a name: written, shown, filtered by, followed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.workbench.synthetic import write_home
from tests.workbench.pages.conftest import Visit
from tests.workbench.pages.homes import full_home
from tests.workbench.pages.test_pages import texts, visit
from workbench.home import notes
from workbench.home.notes import Annotations, annotations_of, change_annotations

EVIL = "<img src=x onerror=alert(1)> **bold** [a](javascript:1)"


def _run(home: Path) -> Path:
    """A run that ended, in a home with several and a study."""
    write_home(home)
    return next(path for path in home.iterdir() if path.name.endswith("-3c01"))


def test_a_note_and_tags_stand_as_they_were_typed(home: Path) -> None:
    run = _run(home)
    change_annotations(run, f"{EVIL}\nsecond line", ["a:red[b]"])
    app = visit("runs", id=run.name)
    assert not app.exception
    assert EVIL in texts(app) and "second line" in texts(app)
    assert not any("<img" in part.value.replace("\\<", "") for part in app.markdown)
    frame = app.dataframe[0].value
    row = frame[frame["id"] == run.name].iloc[0]
    assert (list(row["tags"]), row["your note"]) == (["a:red[b]"], f"{EVIL}\nsecond line")


def test_lists_of_runs_without_notes_have_no_column_for_them(home: Path) -> None:
    write_home(home)
    assert "your note" not in visit("runs").dataframe[0].value.columns


def test_a_tag_in_the_address_filters(home: Path) -> None:
    run = _run(home)
    change_annotations(run, None, ["keep"])
    change_annotations(home / "studies" / "quickstart", None, ["keep", "show"])
    app = visit("runs")
    app.pills(key="tags").set_value(["keep"]).run()
    assert set(app.dataframe[0].value["id"]) == {run.name, "quickstart"}
    app.pills(key="tags").set_value(["keep", "show"]).run()
    assert list(app.dataframe[0].value["id"]) == ["quickstart"]


def test_a_refused_name_of_a_view_stays_on_the_page(home: Path) -> None:
    write_home(home)
    app = visit("runs")
    app.text_input(key="view-name").set_value("   ").run()
    app.button(key="view-save").click().run()
    assert "1 to 40 printable characters" in texts(app)
    assert notes.saved_views(home) == []


@pytest.mark.browser
@pytest.mark.timeout(300)
def test_from_a_note_to_a_saved_view_and_back_in_clicks(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit], screenshots: Path | None
) -> None:
    home = tmp_path / "home"
    full_home(home)
    server, tab = serve(home), visit("light")
    run = next(path for path in home.iterdir() if path.name.endswith("-3c01"))
    tab.open(f"{server}/runs?id={run.name}")
    page = tab.page
    page.get_by_role("button", name="Note and tags").click()
    page.get_by_role("combobox", name="Tags").fill("slow link")
    page.keyboard.press("Enter")
    page.get_by_label("Note", exact=True).fill("why is rank 3 late?")
    page.keyboard.press("Control+Enter")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("Saved.").wait_for()
    assert annotations_of(run) == Annotations("why is rank 3 late?", ("slow link",))
    tab.screenshot(screenshots, "note")

    page.locator(".st-key-runs-list").get_by_text("All runs and studies").click()
    page.locator(".st-key-runs-filter").get_by_role("button", name="slow link").click()
    page.wait_for_url("**tags=*")
    tab.settle()
    page.get_by_role("button", name="Views").click()
    page.get_by_label("Name of what is shown now").fill("to look at")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Save this view").click()
    page.get_by_text("Saved as to look at.").wait_for()
    [view] = notes.saved_views(home)
    assert (view.page, view.query["id"], "slow link" in view.query["tags"]) == ("Runs", run.name, True)

    tab.open(f"{server}/machine")
    page.get_by_role("button", name="Views").click()
    tab.screenshot(screenshots, "views")
    page.get_by_role("link", name="to look at").click()
    page.wait_for_url("**tags=*")
    page.locator(".stMarkdownBadge", has_text="slow link").wait_for()
    page.get_by_role("button", name="Views").click()
    page.get_by_role("button", name="Forget").click()
    page.get_by_text("A view is a place").wait_for()
    assert notes.saved_views(home) == []
