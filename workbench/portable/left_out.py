"""What a study's file does not hold, said in lines, with sizes."""

from __future__ import annotations

import os
from pathlib import Path

from engine.checkpoint.checkpoint_folder import CHECKPOINTS
from engine.run import run_folder
from tuning.storage import study_folder
from tuning.storage.state import StudyState
from workbench.portable.manifest import RUN_FOLDERS

#: Never taken along: too large, or of no use elsewhere.
_STAYING = (CHECKPOINTS, run_folder.TRACES, run_folder.SNAPSHOTS, run_folder.ORDERS, run_folder.FLIGHT)


def lines(
    home: Path, studies: list[str], state: StudyState, runs: list[str], with_records: bool, size: int
) -> tuple[str, ...]:
    """One line for each kind of thing that stays behind; ``size`` is what records and logs of the runs take."""
    found = []
    if size and not with_records:
        found.append(f"records and logs of its runs, {spoken(size)}; --with-records takes them along")
    staying = _bytes(home, runs, _STAYING)
    if staying:
        found.append(f"checkpoints, traces and snapshots of its runs, {spoken(staying)}")
    here = set(runs)
    gone = [run for run in dict.fromkeys(trial.run for trial in state.trials if trial.run) if run not in here]
    if gone:
        found.append(f"{len(gone)} runs whose folders are not in this home, such as {gone[0]}")
    missing = [name for name in state.continues if name not in studies]
    if missing:
        found.append(
            f"{', '.join(missing)}, which it continues and which is gone; all trials are in its own journal"
        )
    found += [
        f"study {one.study}: what this one inherited of it is in its journal" for one in state.inherited
    ]
    waiting = _unanswered(home / study_folder.STUDIES / studies[-1], state)
    return (*found, *([f"{waiting} commands that nobody has answered yet"] if waiting else []))


def records_bytes(home: Path, runs: list[str]) -> int:
    """What records and logs of runs take."""
    return _bytes(home, runs, RUN_FOLDERS)


def spoken(size: int) -> str:
    """A size for people."""
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.0f} KiB"


def files(folder: Path) -> list[Path]:
    """Plain files of a folder, except hidden ones: those are being written."""
    found = sorted(folder.rglob("*")) if folder.is_dir() else []
    return [path for path in found if path.is_file() and not path.is_symlink() and not _hidden(path, folder)]


def names(folder: Path) -> set[str]:
    """What is in a folder; nothing if it is gone."""
    try:
        return set(os.listdir(folder))  # noqa: PTH208  (of 10,000 runs)
    except OSError:
        return set()


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _bytes(home: Path, runs: list[str], parts: tuple[str, ...]) -> int:
    found = 0
    for run in runs:
        for part in names(home / run).intersection(parts):
            found += sum(path.stat().st_size for path in files(home / run / part))
    return found


def _unanswered(folder: Path, state: StudyState) -> int:
    waiting = (folder / run_folder.COMMANDS).glob("*.json")
    return sum(1 for path in waiting if path.stem not in state.answers)
