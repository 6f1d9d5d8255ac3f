"""The pages of the dashboard, in the order of the navigation: an entry is all that one needs beside its file.

In a home folder with nothing in it a page that shows what is there gives the command to begin with, as ``st.code``.
"""

from __future__ import annotations

#: Title -> file in this folder or one in it; a page's address is its title in lower case, and the first one opens.
PAGES: dict[str, str] = {
    "Start": "start.py",
    "Runs": "history/runs.py",
    "Live": "live.py",
    "Steps": "run/anatomy/step_view.py",
    "Tune": "tune.py",
    "Plan": "cluster/plan.py",
    "Compare": "history/compare.py",
    "Export": "history/export.py",
    "Machine": "cluster/machine.py",
}
