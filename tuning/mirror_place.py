"""Where a study lies for Optuna's tools, and what to do if that is harmed: its own file, beside the journal."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tuning.readers import DATABASE

if TYPE_CHECKING:
    import optuna

LOCK_SECONDS = 1.0


class Place(Protocol):
    """Something that Optuna can open."""

    #: What it is called in notes.
    name: str
    url: str
    engine_options: dict[str, Any]

    def opened(self, study: optuna.Study) -> None:
        """Raise if it is somebody else's."""
        ...

    def mark(self) -> object:
        """Another one when it was replaced, as far as that can be told from outside."""
        ...

    def harm(self) -> str:
        """What is wrong with it; nothing if that cannot be told."""
        ...

    def set_aside(self) -> str:
        """Make room for a new one; says where the old one is."""
        ...


class SqliteFile:
    """A file in the study's folder."""

    def __init__(self, folder: Path) -> None:
        self.name, self._path = DATABASE, folder / DATABASE
        self.url = f"sqlite:///{self._path}"
        self.engine_options: dict[str, Any] = {"connect_args": {"timeout": LOCK_SECONDS}}

    def opened(self, study: optuna.Study) -> None:
        """It lies in the study's own folder."""

    def mark(self) -> object:
        """The file itself, not its name; None where there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def harm(self) -> str:
        """What SQLite finds wrong with it; nothing of one that is not there or locked."""
        try:
            with contextlib.closing(
                sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True, timeout=LOCK_SECONDS)
            ) as database:
                found = str(database.execute("pragma quick_check").fetchone()[0])
        except sqlite3.OperationalError:
            return ""
        except sqlite3.DatabaseError as error:
            return str(error)
        return "" if found == "ok" else found

    def set_aside(self) -> str:
        """Rename it."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        aside = self._path.with_name(f"{DATABASE}.{stamp}.aside")
        if self._path.exists():
            self._path.replace(aside)
        for suffix in ("-journal", "-wal", "-shm"):
            self._path.with_name(DATABASE + suffix).unlink(missing_ok=True)
        return f"the old file is {aside.name}"
