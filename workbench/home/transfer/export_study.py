"""What a study's file does not hold, said in lines, with sizes.

From a home's folders to one file: the journal as far as it goes now, its study's documents, and its runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import secrets
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from engine.checkpoint.checkpoint_folder import CHECKPOINTS
from engine.config.errors import InputError, several
from engine.run import run_folder
from engine.run.calibration import fingerprint
from tuning.storage import study_folder
from tuning.storage.state import StudyState, fold
from workbench.home.transfer import rename
from workbench.home.transfer.manifest import (
    MANIFEST,
    RUN_FILES,
    RUN_FOLDERS,
    RUNS,
    STUDIES,
    STUDY_FILES,
    Manifest,
    Member,
)

#: Never taken along: too large, or of no use elsewhere.
_STAYING = (CHECKPOINTS, run_folder.TRACES, run_folder.SNAPSHOTS, run_folder.ORDERS, run_folder.FLIGHT)


def lines(
    home: Path, studies: list[str], state: StudyState, runs: list[str], with_records: bool, size: int
) -> tuple[str, ...]:
    """One line for each kind of thing that stays behind; ``size`` is what records and logs of the runs take."""
    notes = []
    if size and not with_records:
        notes.append(f"records and logs of its runs, {size_words(size)}; include them with --with-records")
    staying_bytes = _bytes(home, runs, _STAYING)
    if staying_bytes:
        notes.append(f"checkpoints, traces and snapshots of its runs, {size_words(staying_bytes)}")
    run_names = set(runs)
    missing_runs = [
        run for run in dict.fromkeys(trial.run for trial in state.trials if trial.run) if run not in run_names
    ]
    if missing_runs:
        runs_gone = (
            "1 run whose folder is"
            if len(missing_runs) == 1
            else f"{len(missing_runs):,} runs whose folders are"
        )
        notes.append(f"{runs_gone} not in this home, such as {missing_runs[0]}")
    missing = [name for name in state.continues if name not in studies]
    if missing:
        notes.append(
            f"{', '.join(missing)}, which it continues and which is gone; all trials are in its own journal"
        )
    notes += [
        f"study {study.study}: what this one inherited of it is in its journal" for study in state.inherited
    ]
    unanswered = _count_unanswered(home / study_folder.STUDIES / studies[-1], state)
    return (
        *notes,
        *([f"{several(unanswered, 'commands')} that nobody has answered yet"] if unanswered else []),
    )


def bytes_of_records(home: Path, runs: list[str]) -> int:
    """What records and logs of runs take."""
    return _bytes(home, runs, RUN_FOLDERS)


def size_words(size: int) -> str:
    """A size for people."""
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.0f} KiB"


def files(folder: Path) -> list[Path]:
    """Plain files of a folder, except hidden ones: those are being written."""
    paths = sorted(folder.rglob("*")) if folder.is_dir() else []
    return [path for path in paths if path.is_file() and not path.is_symlink() and not _hidden(path, folder)]


def names_left_out(folder: Path) -> set[str]:
    """What is in a folder; nothing if it is gone."""
    try:
        return set(os.listdir(folder))  # noqa: PTH208  (of 10,000 runs)
    except OSError:
        return set()


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _bytes(home: Path, runs: list[str], parts: tuple[str, ...]) -> int:
    total = 0
    for run in runs:
        for part in names_left_out(home / run).intersection(parts):
            total += sum(path.stat().st_size for path in files(home / run / part))
    return total


def _count_unanswered(folder: Path, state: StudyState) -> int:
    commands = (folder / run_folder.COMMANDS).glob("*.json")
    return sum(1 for path in commands if path.stem not in state.answers)


SUFFIX = ".study.zip"
_PIECE_BYTES = 1 << 20
#: Of 0 to 9: files of a few kB gain little from more, and a study may have 30,000 of them.
_LEVEL = 1
_LARGE_BYTES = 1 << 30
#: How a zip file says that all may read a plain file.
_READABLE = 0o100644 << 16


@dataclass(frozen=True, slots=True)
class StudyExport:
    """What was written. ``records_bytes`` is what records and logs of its runs take, whether they are in it or not."""

    study: str
    studies: tuple[str, ...]
    trials: int
    runs: int
    records: bool
    records_bytes: int
    left_out: tuple[str, ...]
    members: int

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def pack(home: Path, name: str, out: Path, with_records: bool = False) -> StudyExport:
    """Write a study with all it continues as the file ``out``: as a whole, or not at all.

    Raises:
        InputError: the study has no journal, the file is there already, or it cannot be written.
    """
    if os.path.lexists(out):
        raise InputError("--file", str(out), "exists and is not overwritten; give another --file")
    scratch = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        with scratch.open("xb") as file:
            result = write(home, name, file, with_records)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(out)
    except OSError as error:
        raise InputError(
            "--file", str(out), f"cannot be written ({error.strerror}); choose another"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()
    return result


def write(home: Path, name: str, file: IO[bytes], with_records: bool = False) -> StudyExport:
    """Write a study into an open file. One that goes on is taken as it stands at this moment.

    Raises:
        InputError: the study has no journal.
    """
    places = home / study_folder.STUDIES
    documents = _documents(places / name)
    state = fold(rename.lines(documents.get(study_folder.JOURNAL, b"")))
    names = _names(places, name, state)
    members: dict[str, Member] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for study_name in names:
            _put_study(
                archive,
                members,
                study_name,
                documents if study_name == name else _documents(places / study_name),
            )
        runs = [run for run in run_names(state) if (home / run / run_folder.STATUS).is_file()]
        for run in runs:
            _put_run(archive, members, home / run, with_records)
        size = bytes_of_records(home, runs)
        omissions = lines(home, names, state, runs, with_records, size)
        manifest = _manifest(names, state, runs, members, with_records, omissions)
        _add(archive, MANIFEST, [json.dumps(manifest.document()).encode() + b"\n"])
    return StudyExport(
        name,
        manifest.studies,
        manifest.trials,
        len(runs),
        with_records,
        size,
        manifest.left_out,
        len(members),
    )


def run_names(state: StudyState) -> list[str]:
    """Runs of a journal's trials, the oldest first."""
    return list(dict.fromkeys(trial.run for trial in state.trials if trial.run))


def _documents(folder: Path) -> dict[str, bytes]:
    """A study's documents, of its journal the whole lines; that is read last, so that nothing is newer than it."""
    documents = {}
    for name in STUDY_FILES:
        with contextlib.suppress(FileNotFoundError):
            data = (folder / name).read_bytes()
            documents[name] = rename.whole_lines(data) if name == study_folder.JOURNAL else data
    return documents


def _names(places: Path, name: str, state: StudyState) -> list[str]:
    """The study and what it continues, as far as that is still there; the oldest first."""
    if state.file is None:
        raise InputError("study", name, "has no readable journal yet; there is nothing to export")
    return [
        *(study for study in state.continues if (places / study / study_folder.JOURNAL).is_file()),
        name,
    ]


def _put_study(
    archive: zipfile.ZipFile, members: dict[str, Member], name: str, documents: dict[str, bytes]
) -> None:
    for file, data in documents.items():
        place = f"{STUDIES}/{name}/{file}"
        members[place] = _add(archive, place, [data])


def _put_run(archive: zipfile.ZipFile, members: dict[str, Member], folder: Path, with_records: bool) -> None:
    archived: set[Path] = set()
    while new_paths := [path for path in _run_files(folder, with_records) if path not in archived]:
        for path in new_paths:  # one that is gone meanwhile was compacted: the next look finds what it became
            archived.add(path)
            name = f"{RUNS}/{folder.name}/{str(path)[len(str(folder)) + 1 :]}"
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                members[name] = _add(archive, name, _pieces(file) if size else (), size)


def _run_files(folder: Path, with_records: bool) -> Iterator[Path]:
    left_out = names_left_out(folder)
    yield from (folder / name for name in RUN_FILES if name in left_out)
    for part in RUN_FOLDERS if with_records else ():
        yield from files(folder / part)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece
        if len(piece) < _PIECE_BYTES:  # most files are small: one look is enough
            return


def _add(archive: zipfile.ZipFile, name: str, pieces: Iterable[bytes], size: int = 0) -> Member:
    digest, written = hashlib.sha256(), 0
    with archive.open(name, "w", force_zip64=size > _LARGE_BYTES) as member:
        for piece in pieces:
            member.write(piece)
            digest.update(piece)
            written += len(piece)
    archive.getinfo(name).external_attr = _READABLE
    return Member(written, digest.hexdigest())


def _manifest(
    names: list[str],
    state: StudyState,
    runs: list[str],
    members: dict[str, Member],
    with_records: bool,
    omissions: tuple[str, ...],
) -> Manifest:
    return Manifest(
        study=names[-1],
        studies=tuple(names),
        workbench=importlib.metadata.version("training-workbench"),
        exported_unix=time.time(),
        machine=state.machine,
        exported_on=fingerprint.this_machine().id,
        trials=len(state.trials),
        runs=len(runs),
        records=with_records,
        left_out=omissions,
        members=members,
    )
