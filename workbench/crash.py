"""Keeps the traceback of an error that nobody expected."""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path

from workbench.settings import JOBS, home_folder


def keep_traceback(error: BaseException) -> Path:
    """Write a traceback into the home folder, or where temporary files go if that cannot be written."""
    text = f"{' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}"
    name = f"error-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.log"
    home = home_folder()
    folders = [home / JOBS] if home.is_dir() else []
    for folder in [*folders, Path(tempfile.gettempdir())]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
            return folder / name
        except OSError:
            continue
    return Path("nowhere: no folder can be written")
