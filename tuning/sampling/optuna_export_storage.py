"""Where a study lies for Optuna's tools: a file beside the journal, or the database that holds the study.

A file that is harmed is set aside and written again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import optuna

from tuning.storage.postgres.database import CONNECT_SECONDS, Address
from tuning.storage.study_folder import DATABASE

if TYPE_CHECKING:
    import optuna

LOCK_SECONDS = 1.0


class OptunaStorage(Protocol):
    """Something that Optuna can open."""

    #: What it is called in notes.
    name: str
    url: str
    engine_options: dict[str, Any]

    def check_study(self, study: optuna.Study) -> None:
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

    def check_study(self, study: optuna.Study) -> None:
        """It lies in the study's own folder."""

    def mark(self) -> object:
        """The file itself, not its name; None where there is none."""
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

    def harm(self) -> str:
        """What SQLite finds wrong with it; nothing of one that is not there or locked."""
        try:
            with contextlib.closing(
                sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro", uri=True, timeout=LOCK_SECONDS)
            ) as database:
                check = str(database.execute("pragma quick_check").fetchone()[0])
        except sqlite3.OperationalError:
            return ""
        except sqlite3.DatabaseError as error:
            return str(error)
        return "" if check == "ok" else check

    def set_aside(self) -> str:
        """Rename it."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        aside = self._path.with_name(f"{DATABASE}.{stamp}.aside")
        if self._path.exists():
            self._path.replace(aside)
        for suffix in ("-journal", "-wal", "-shm"):
            self._path.with_name(DATABASE + suffix).unlink(missing_ok=True)
        return f"the old file is {aside.name}"


#: Marks a study of Optuna's as one that a journal stands behind.
MARK = "workbench_journal"


class OptunaDatabase:
    """Optuna's tables; a study there with the same name that somebody else made is left alone."""

    name = "Optuna's study in the database"

    def __init__(self, address: Address, study: str) -> None:
        self.url, self._study = address.for_optuna, study
        self.engine_options: dict[str, Any] = {
            "pool_pre_ping": True,
            "pool_size": 1,
            "connect_args": {"connect_timeout": CONNECT_SECONDS},
        }

    def check_study(self, study: optuna.Study) -> None:
        """Check whose it is.

        Raises:
            ValueError: somebody else's.
        """
        if MARK in study.user_attrs:
            return
        if study.get_trials(deepcopy=False):
            raise ValueError(f"the study {self._study} there was not made from this journal")
        study.set_user_attr(MARK, self._study)

    def mark(self) -> object:
        """Nothing: Optuna numbers its studies."""

    def harm(self) -> str:
        """The server looks after its files."""
        return ""

    def set_aside(self) -> str:
        """Delete it, if it is ours: the journal has all of it."""
        storage = optuna.storages.RDBStorage(self.url, engine_kwargs=self.engine_options)
        try:
            summaries = {summary.study_name: summary for summary in optuna.get_all_study_summaries(storage)}
            summary = summaries.get(self._study)
            if summary is not None:
                if MARK not in summary.user_attrs:
                    raise ValueError(f"the study {self._study} there was not made from this journal")
                optuna.delete_study(study_name=self._study, storage=storage)
        finally:
            storage.remove_session()
            storage.engine.dispose()
        return "what was there is deleted"
