"""A run's summary as its folder has it; a page that is drawn again and again reads it once."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from engine.run import run_folder

if TYPE_CHECKING:
    from profilers.model.run_summary import RunSummary

#: Summaries remembered; of a run of 100,000 steps reading one takes a fifth of a second.
_REMEMBERED = 16


def summary_of(folder: Path) -> RunSummary | None:
    """None where there is none, or none that can be read. Whoever gets it shares it: nothing in it is changed."""
    path = folder / run_folder.SUMMARY
    try:
        stat = path.stat()
    except OSError:
        return None
    return _read(path, (stat.st_mtime_ns, stat.st_size, stat.st_ino))


@lru_cache(_REMEMBERED)
def _read(path: Path, written: tuple[int, int, int]) -> RunSummary | None:
    from profilers.model.run_summary import RunSummary

    del written
    document = run_folder.read_json(path)
    try:
        return RunSummary.from_dict(document) if document else None
    except (KeyError, TypeError, ValueError):
        return None
