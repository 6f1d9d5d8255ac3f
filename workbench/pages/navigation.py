"""The pages of the dashboard, in the order of the navigation: an entry is all that one needs beside its file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """``file`` is in this folder or one in it. A page that ``shows_home`` says what a home folder holds. While that has
    neither runs nor studies (``run_rows`` and ``study_rows`` of ``widgets/common.py``: other files may lie in it) the
    page gives the command to begin with, as ``nothing_yet`` there does. One that ``has_the_form`` of a new study keeps
    what is typed into it by itself; beside all others the frame does.
    """

    title: str
    file: str
    shows_home: bool = True
    has_the_form: bool = False

    @property
    def address(self) -> str:
        """Its part of an address, after the slash."""
        return self.title.lower()


#: The first one opens.
ENTRIES: tuple[Page, ...] = (
    Page("Start", "start.py"),
    Page("Runs", "history/runs.py"),
    Page("Live", "live.py"),
    Page("Steps", "run/anatomy/step_view.py"),
    Page("Tune", "tune.py", shows_home=False, has_the_form=True),
    Page("Plan", "cluster/plan.py", shows_home=False),
    Page("Compare", "history/compare.py"),
    Page("Export", "history/export.py"),
    Page("Machine", "cluster/machine.py"),
)
#: Title -> file, for links.
PAGES: dict[str, str] = {page.title: page.file for page in ENTRIES}
