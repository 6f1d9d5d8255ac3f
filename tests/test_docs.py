"""Documentation: generated pages are up to date, links and paths lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from engine.config.presets import SHIPPED
from engine.config.run_config import RunConfig
from engine.config.sections import Section
from tests import reference
from workbench.pages.navigation import ENTRIES

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: A file or folder of ours in backticks; with a made-up part (NAME, <new>, *) it is a pattern, not a path.
PATH = re.compile(
    r"`((?:app\.py|(?:benchmarks|docs|engine|examples|profilers|tests|tuning|workbench)/[\w./-]+))`"
)
#: The target of a link.
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("file", reference.PAGES)
def test_the_reference_is_up_to_date(file: str) -> None:
    written = (reference.FOLDER / file).read_text("utf-8")
    assert written == reference.PAGES[file](), "run `python -m tests.reference`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    if page.name == "CHANGELOG.md":
        pytest.skip("it tells of files as they were")
    lost = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    for target in LINK.findall(text):
        file, _, heading = target.partition("#")
        if "://" in target:
            continue
        linked = (page.parent / file).resolve() if file else page
        if not linked.exists() or (heading and heading not in headings(linked)):
            lost.append(target)
    assert not lost


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as Markdown on the web makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_extra_is_in_the_readme_and_every_workload_s_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev"}
    table = (ROOT / "README.md").read_text("utf-8").partition("| extra | for |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras
    assert {workload.extra for workload in SHIPPED.values() if workload.extra} <= extras


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - {"README.md"} <= set(LINK.findall(index))


def test_contributing_says_where_every_section_of_the_configuration_acts() -> None:
    """A knob's reader is a place that nobody should have to look for."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition("| section | acts in |")[2].partition("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    found = {name: PATH.findall(where) for names, where in rows for name in re.findall(r"`(\w+)`", names)}
    sections = {
        name: list(kind.model_fields)
        for name, field in RunConfig.model_fields.items()
        if isinstance(kind := field.annotation, type) and issubclass(kind, Section) and name != "environment"
    }
    assert found.keys() == sections.keys()
    for name, files in found.items():
        reads = re.compile(rf"\.({'|'.join([name, *sections[name]])})\b")
        assert [file for file in files if not reads.search((ROOT / file).read_text("utf-8"))] == [], name


def test_the_page_about_the_dashboard_has_all_its_pages_in_order() -> None:
    text = (
        (ROOT / "docs" / "page.md").read_text("utf-8").partition("| page | shows |")[2].partition("\n\n")[0]
    )
    assert re.findall(r"^\| \*\*(\w+)\*\* \|", text, re.MULTILINE) == [page.title for page in ENTRIES]
