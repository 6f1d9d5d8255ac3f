"""Rebuilds everything that is only an index: of runs and studies, and Optuna's file of each study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.config.errors import InputError
from tuning.storage.study_folder import every_study
from workbench.home.compaction import compact_all
from workbench.home.runs import run_folders
from workbench.home.store import Store


@dataclass(frozen=True, slots=True)
class ReindexResult:
    """How much there was, what could not be rebuilt or had to be set aside, and how many files were compacted."""

    runs: int
    studies: int
    notes: list[str]
    compacted_files: int = 0


def reindex(home: Path, tell: Callable[[str], None] = lambda _: None) -> ReindexResult:
    """Rebuild all indexes of a home, and compact the records of runs that ended. Nothing else is touched. ``tell`` is
    told how far that is, where it takes a while.

    Raises:
        InputError: there is no such folder.
    """
    if not home.is_dir():
        raise InputError("home", str(home), "is not a folder; give another --home")
    store = Store(home)
    runs, studies = store.rebuild()
    notes = [store.note] if store.note else []
    notes += [note for folder in every_study(home) if (note := _optuna(folder, tell))]
    compaction = compact_all(run_folders(home))
    return ReindexResult(runs, studies, notes + compaction.notes, compaction.files)


def _optuna(folder: Path, tell: Callable[[str], None]) -> str:
    from tuning.sampling.optuna_export import rebuild

    try:
        note = rebuild(folder, lambda words: tell(f"{folder.name}: {words}"))
    except InputError as error:
        note = str(error)
    return f"{folder.name}: {note}" if note else ""
