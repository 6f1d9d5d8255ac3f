"""Where runs and studies live: the flag, then the environment, then ./runs."""

from __future__ import annotations

import os
from pathlib import Path

HOME_VARIABLE = "WORKBENCH_HOME"
DEFAULT_HOME = Path("runs")

JOBS = "jobs"
INDEX = "index.db"


def home_folder(path: Path | None = None) -> Path:
    """The home folder as an absolute path; it need not exist yet."""
    chosen = path or Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)
    return chosen.expanduser().absolute()
