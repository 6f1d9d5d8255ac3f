"""One line per run and per study: what lists show, and how it is read from a folder.

The SQLite index of runs and studies: brought up to date at each look, and never the truth.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.outcome import RecordedOutcome
from engine.run.ownership import Owner
from engine.run.run_folder import RunStatus
from tuning.storage import controllers
from tuning.storage.controllers import ControllerRow, StudyStatus
from tuning.storage.study_folder import RESULT, history, list_studies, read_part
from workbench.home import notes, runs
from workbench.home.runs import run_folders
from workbench.home.settings import INDEX
from workbench.home.transfer import atomic_import


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in one line."""

    id: str
    created_unix: float
    started_unix: float | None
    ended_unix: float | None
    state: str
    outcome: str | None
    reason: str
    layout: dict[str, int]
    world_size: int | None
    backend: str | None
    tokens_per_second: float | None
    step_seconds: float | None
    study: str | None
    trial: str | None
    purpose: str | None
    owner: Owner | None
    note: str
    tags: list[str]


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A study in one line. ``best_value`` is as its objective keeps values (``tuning.spec.objectives``)."""

    name: str
    updated_unix: float
    state: str
    trials_done: int | None
    trials_total: int | None
    objective: str | None
    best_value: float | None
    gain_verdict: str | None
    result_line: str | None
    owner: Owner | None
    controllers: list[ControllerRow]
    note: str
    tags: list[str]


class _StepSeconds(msgspec.Struct, frozen=True):
    """Summaries of older runs have no mean."""

    mean: float | None = None
    median: float | None = None


class _SummaryPart(msgspec.Struct, frozen=True):
    """What a row needs of a run's summary."""

    tokens_per_second: float | None = None
    step_seconds: _StepSeconds | None = None


class _Best(msgspec.Struct, frozen=True):
    value: float | None = None


class _Gain(msgspec.Struct, frozen=True):
    verdict: str | None = None


class _ResultPart(msgspec.Struct, frozen=True):
    """What a row needs of a study's result."""

    objective: str | None = None
    best: _Best | None = None
    gain: _Gain | None = None
    result_line: str | None = None


def run_row(folder: Path) -> RunRow:
    """The row of a run folder."""
    status = RunStatus.from_folder(folder)
    summary = read_part(folder / run_folder.SUMMARY, _SummaryPart)
    step = summary.step_seconds or _StepSeconds()
    outcome, labels = status.outcome or RecordedOutcome(), status.labels
    annotations = notes.annotations_of(folder)
    return RunRow(
        id=folder.name,
        created_unix=float(status.created_unix or 0.0),
        started_unix=status.started_unix,
        ended_unix=status.ended_unix,
        state=status.state or "starting",
        outcome=outcome.ending,
        reason=outcome.reason,
        layout=runs.layout_of(folder, status),
        world_size=status.world_size,
        backend=status.backend,
        tokens_per_second=summary.tokens_per_second,
        step_seconds=step.mean or step.median,
        study=labels.get("study"),
        trial=labels.get("trial"),
        purpose=labels.get("purpose"),
        owner=status.owner,
        note=annotations.note,
        tags=list(annotations.tags),
    )


def study_row(folder: Path) -> StudyRow:
    """The row of a study folder."""
    status = StudyStatus.from_folder(folder)
    result = read_part(folder / RESULT, _ResultPart)
    annotations = notes.annotations_of(folder)
    return StudyRow(
        name=folder.name,
        updated_unix=float(status.updated_unix or folder.stat().st_mtime),
        state=status.state or "new",
        trials_done=status.trials_done,
        trials_total=status.trials_total,
        objective=result.objective,
        best_value=result.best.value if result.best else None,
        gain_verdict=result.gain.verdict if result.gain else None,
        result_line=result.result_line,
        owner=status.owner,
        controllers=status.controllers,
        note=annotations.note,
        tags=list(annotations.tags),
    )


def run_now(row: RunRow) -> RunRow:
    """The row with the ending it has by now: a run whose owner is gone is lost."""
    if row.state == "ended" and row.outcome:
        return row
    status = RunStatus(
        state=row.state,
        created_unix=row.created_unix,
        owner=row.owner,
        outcome=RecordedOutcome(row.outcome, row.reason) if row.outcome else None,
        keys=frozenset({"owner"} if row.owner else ()),
    )
    state, outcome, reason = runs.ending(status)
    return replace(row, state=state, outcome=outcome, reason=reason)


def study_now(row: StudyRow) -> StudyRow:
    """The row with the state it has by now: a study whose owner is gone is interrupted."""
    status = StudyStatus(
        state=row.state, owner=row.owner, controllers=row.controllers, updated_unix=row.updated_unix
    )
    if row.state not in controllers.HELD or status.alive:
        return row
    return replace(row, state="interrupted", controllers=[])


_VERSION = 4
_LOCK_SECONDS = 2.0
#: Changed rows up to which they are asked for by name.
_FEW = 500
#: Columns that hold a tree as JSON, and what it is of.
_TREES: dict[str, Any] = {
    "layout": dict[str, Any],
    "owner": Owner,
    "controllers": list[ControllerRow],
    "tags": list[str],
}
Row = TypeVar("Row", RunRow, StudyRow)


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """How one kind of row is kept: its table, key column, and how it is read from a folder."""

    name: str
    key: str
    row: type[Row]
    read_row: Callable[[Path], Row]
    files: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """Column names, in the order of the row's fields."""
        return [field.name for field in fields(self.row)]


RUNS = Table("runs", "id", RunRow, run_row, (run_folder.STATUS, run_folder.SUMMARY, notes.FILE))
STUDIES = Table("studies", "name", StudyRow, study_row, (run_folder.STATUS, RESULT, notes.FILE))


@dataclass(frozen=True, slots=True)
class _Changes:
    """Values of rows to write, by key and signature, and keys of folders that are gone."""

    rows: dict[tuple[str, str], list[Any]]
    deleted_keys: list[tuple[str]]


class Store:
    """Lists of runs and studies of one home. Safe to use from several threads and processes."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._path = home / INDEX
        #: What was wrong with the index at the last look, if anything; nothing is lost by it.
        self.note: str | None = None
        self._runs, self._studies = RowCache[RunRow](RUNS), RowCache[StudyRow](STUDIES)

    def runs(self, study: str | None = None) -> list[RunRow]:
        """All runs, newest first; of one study, under all its names, if it is named."""
        rows = self.lists()[0]
        names = None if study is None else history(self._home, study)
        return rows if names is None else [row for row in rows if row.study in names]

    def studies(self) -> list[StudyRow]:
        """All studies, the one that changed last first."""
        return self.lists()[1]

    def lists(self) -> tuple[list[RunRow], list[StudyRow]]:
        """Both, of the same moment."""
        with self._synced_index() as index:
            runs = [run_now(row) for row in self._runs.rows(index)]
            studies = [study_now(row) for row in self._studies.rows(index)]
        runs.sort(key=_age, reverse=True)
        return runs, sorted(studies, key=lambda row: row.updated_unix, reverse=True)

    def rebuild(self) -> tuple[int, int]:
        """Make all of the index anew from the folders; the numbers of runs and studies."""
        with self._synced_index(from_scratch=True) as index:
            return len(select(index, RUNS)), len(select(index, STUDIES))

    @contextlib.contextmanager
    def _synced_index(self, from_scratch: bool = False) -> Iterator[sqlite3.Connection]:
        index = self._open(from_scratch)
        try:
            yield index
        finally:
            index.close()

    def _open(self, from_scratch: bool) -> sqlite3.Connection:
        self.note = None
        if not self._home.exists():
            return self._in_memory(None)
        if not self._home.is_dir():
            raise InputError("home", str(self._home), "is not a folder; give another --home")
        atomic_import.finish(self._home)
        try:
            return self._on_disk(from_scratch)
        except sqlite3.OperationalError as error:
            return self._in_memory(f"{INDEX} cannot be used now ({error}); the folders were read instead")
        except sqlite3.DatabaseError as error:
            return self._replace_broken(error)

    def _on_disk(self, from_scratch: bool = False) -> sqlite3.Connection:
        index = sqlite3.connect(self._path, timeout=_LOCK_SECONDS, isolation_level=None)
        return _sync_index(index, self._home, from_scratch)

    def _in_memory(self, note: str | None) -> sqlite3.Connection:
        self.note = note
        return _sync_index(sqlite3.connect(":memory:", isolation_level=None), self._home)

    def _replace_broken(self, error: sqlite3.DatabaseError) -> sqlite3.Connection:
        aside = self._path.with_name(f"{INDEX}.broken-{time.time_ns()}")
        try:
            self._path.replace(aside)
            index = self._on_disk()
        except (OSError, sqlite3.DatabaseError):
            return self._in_memory(f"{INDEX} is broken ({error}); the folders were read instead")
        self.note = f"{INDEX} was broken ({error}); it was renamed to {aside.name} and built again"
        return index


class RowCache(Generic[Row]):
    """The rows of a table as they were read last: of thousands only those that changed are read again."""

    def __init__(self, table: Table[Row]) -> None:
        self._table: Table[Row] = table
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, Row]] = {}

    def rows(self, index: sqlite3.Connection) -> list[Row]:
        """Every row of the table now."""
        table = self._table
        with self._lock:
            marks = dict(index.execute(f"SELECT {table.key}, signature FROM {table.name}"))
            if any(mark != self._known.get(key, ("",))[0] for key, mark in marks.items()):
                self._read(index, marks)
            self._known = {key: self._known[key] for key in marks}
            return [row for _, row in self._known.values()]

    def _read(self, index: sqlite3.Connection, marks: dict[str, str]) -> None:
        changed = [key for key, mark in marks.items() if mark != self._known.get(key, ("",))[0]]
        keys = changed if len(changed) <= _FEW else None
        for row in select(index, self._table, keys):
            key = str(getattr(row, self._table.key))
            self._known[key] = marks[key], row


def select(index: sqlite3.Connection, table: Table[Row], keys: Sequence[str] | None = None) -> list[Row]:
    """Every row of a table, or those of some keys."""
    query = f"SELECT {', '.join(table.columns)} FROM {table.name}"
    if keys is not None:
        query += f" WHERE {table.key} IN ({', '.join('?' * len(keys))})"
    rows = index.execute(query, keys or ())
    return [table.row(*map(_decode_value, table.columns, values)) for values in rows]


def _sync_index(index: sqlite3.Connection, home: Path, from_scratch: bool = False) -> sqlite3.Connection:
    """Make the index agree with the folders, in one transaction: whoever reads it meanwhile sees all of it or what was
    there before.
    """
    try:
        changes_of_tables = {
            table.name: _changes(index, table, folders, from_scratch)
            for table, folders in _table_folders(home)
        }
        if (
            from_scratch
            or not _has_tables(index)
            or any(changes.rows or changes.deleted_keys for changes in changes_of_tables.values())
        ):
            with _writing(index):
                _write(index, home, changes_of_tables, from_scratch)
    except BaseException:
        index.close()
        raise
    return index


def _write(
    index: sqlite3.Connection, home: Path, changes_of_tables: dict[str, _Changes], from_scratch: bool
) -> None:
    """Nobody else writes now, but somebody may have since the changes were found: they are looked for again. Rows that
    were read before are taken over if their files are still the same.
    """
    if from_scratch or not _has_tables(index):
        _make_tables(index)
    for table, folders in _table_folders(home):
        changes = _changes(index, table, folders, ready=changes_of_tables[table.name].rows)
        marks = ", ".join("?" * (len(table.columns) + 1))
        index.executemany(f"DELETE FROM {table.name} WHERE {table.key} = ?", changes.deleted_keys)
        rows = [(*values, signature) for (_, signature), values in changes.rows.items()]
        index.executemany(f"INSERT OR REPLACE INTO {table.name} VALUES ({marks})", rows)


@contextlib.contextmanager
def _writing(index: sqlite3.Connection) -> Iterator[None]:
    index.execute("BEGIN IMMEDIATE")
    try:
        yield
        index.execute("COMMIT")
    except BaseException:
        if index.in_transaction:
            index.execute("ROLLBACK")
        raise


def _has_tables(index: sqlite3.Connection) -> bool:
    return bool(index.execute("PRAGMA user_version").fetchone()[0] == _VERSION)


def _make_tables(index: sqlite3.Connection) -> None:
    for table in (RUNS, STUDIES):
        index.execute(f"DROP TABLE IF EXISTS {table.name}")
        columns = ", ".join([*table.columns, "signature", f"PRIMARY KEY ({table.key})"])
        index.execute(f"CREATE TABLE {table.name} ({columns})")
    index.execute(f"PRAGMA user_version = {_VERSION}")


def _table_folders(home: Path) -> list[tuple[Table[Any], list[Path]]]:
    return [(RUNS, list(run_folders(home))), (STUDIES, list_studies(home))]


def _changes(
    index: sqlite3.Connection,
    table: Table[Any],
    folders: list[Path],
    from_scratch: bool = False,
    ready: dict[tuple[str, str], list[Any]] | None = None,
) -> _Changes:
    """What changed on disk since the table was written, or all of it; ``ready`` are rows that were read already."""
    signatures = {folder.name: _signature(folder, table.files) for folder in folders}
    recorded: dict[str, str] = {}
    if _has_tables(index) and not from_scratch:
        recorded = dict(index.execute(f"SELECT {table.key}, signature FROM {table.name}"))
    rows = {}
    for folder in folders:
        mark = (folder.name, signatures[folder.name])
        if recorded.get(folder.name) != mark[1]:
            rows[mark] = (ready or {}).get(mark) or _encode_row(table.read_row(folder))
    return _Changes(rows, [(key,) for key in recorded.keys() - signatures.keys()])


def _signature(folder: Path, files: tuple[str, ...]) -> str:
    parts = []
    for name in files:
        try:
            stat = os.stat(f"{folder}/{name}")  # noqa: PTH116  (there may be 10,000)
            parts.append(f"{stat.st_mtime_ns}.{stat.st_size}.{stat.st_ino}")
        except OSError:
            parts.append("-")
    return " ".join(parts)


def _encode_row(row: RunRow | StudyRow) -> list[Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return [
        msgspec.json.encode(value).decode() if name in _TREES and value is not None else value
        for name, value in values.items()
    ]


def _decode_value(column: str, value: Any) -> Any:
    return (
        msgspec.json.decode(value, type=_TREES[column]) if column in _TREES and value is not None else value
    )


def _age(row: RunRow) -> tuple[float, str]:
    return row.created_unix, row.id
