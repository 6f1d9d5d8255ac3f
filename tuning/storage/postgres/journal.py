"""A journal whose lines lie in PostgreSQL. The file in the study's folder is a copy that follows, line by line.

Lines that the database could not take yet are kept in a file beside the journal until it has them.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from tuning.storage.journal import Journal, UnreachableError, line_of
from tuning.storage.postgres.database import Database

OUTBOX = "outbox.jsonl"


class Outbox:
    """Lines, each with an id of its own, so that one that is sent twice counts once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / OUTBOX
        self.lines = self._read()

    def add(self, identity: str, text: str) -> None:
        """Keep one; it is on disk when this returns."""
        with self._path.open("ab") as file:
            file.write(json.dumps([identity, text]).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append((identity, text))

    def clear(self) -> None:
        """All of them were sent."""
        self._path.unlink(missing_ok=True)
        self.lines = []

    def _read(self) -> list[tuple[str, str]]:
        if not self._path.exists():
            return []
        lines = []
        for piece in self._path.read_bytes().split(b"\n"):
            try:
                identity, text = json.loads(piece)
            except ValueError:  # half-written by a controller that died
                continue
            lines.append((str(identity), str(text)))
        return lines


#: How often lines of others are looked for while a trial runs.
LOOK_SECONDS = 1.0
#: What a controller has to say in any case; all else is decided again once the database answers.
MUST_ARRIVE = ("tell", "started", "withdrawn")
_KEY = "hashtextextended('workbench ' || %s, 0)"
_LOCK = f"select pg_advisory_lock({_KEY})"
_UNLOCK = f"select pg_advisory_unlock({_KEY})"
_LOCK_ONCE = f"select pg_advisory_xact_lock({_KEY})"
_INSERT = """
insert into workbench_journal (study, seq, id, line)
select %s, coalesce(max(seq), 0) + 1, %s, %s from workbench_journal where study = %s
on conflict (study, id) do nothing
"""


class DatabaseJournal(Journal):
    """Lines of one study, numbered without a gap in the order in which they were written."""

    def __init__(self, path: Path, database: Database, study: str) -> None:
        super().__init__(path)
        self._database, self._study = database, study
        self._outbox = Outbox(path.parent)
        self._depth = 0
        self._looked = float("-inf")
        with self.turn():
            pass

    def append(self, kind: str, **values: Any) -> None:
        """Write one line. One that must arrive is kept, and sent later, where the database does not answer now.

        Raises:
            UnreachableError: the database does not answer, or the turn was lost with its connection.
        """
        identity, text = uuid.uuid4().hex, json.dumps(line_of(kind, values), allow_nan=False)
        try:
            self._send_waiting()
            self._send(identity, text)
            self._fetch()
        except UnreachableError:
            if kind not in MUST_ARRIVE:
                raise
            self._check(lambda: self._outbox.add(identity, text))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """As of a file; the lock is the session's, and gone when its connection is."""
        if self._depth == 0:
            self._database.ask(_LOCK, self._study)
            self._database.pinned = True
        self._depth += 1
        try:
            self._send_waiting()
            self._fetch()
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._database.pinned = False
                self._give_turn_back()

    def refresh(self) -> bool:
        """Take over what others appended, now and then; nothing where the database does not answer."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return False
        self._looked = time.monotonic()
        try:
            self._send_waiting()
            return self._fetch()
        except UnreachableError:
            return False

    def has_beside(self, name: str) -> bool:
        """As of a folder, in the database or in this home."""
        return self.has_begun(name) or super().has_beside(name)

    def has_begun(self, name: str) -> bool:
        """Whether the database has lines of that study."""
        return lines_of(self._database, name) > 0

    def close(self) -> None:
        """Let go of the database and the file."""
        self._database.close()
        super().close()

    def _send_waiting(self) -> None:
        if self._outbox.lines:
            for identity, text in self._outbox.lines:
                self._send(identity, text)
            self._outbox.clear()

    def _send(self, identity: str, text: str) -> None:
        insert = (self._study, identity, text, self._study)
        self._database.run([(_LOCK_ONCE, (self._study,)), (_INSERT, insert)])

    def _give_turn_back(self) -> None:
        if self._database.is_connected:
            with suppress(UnreachableError):
                self._database.ask(_UNLOCK, self._study)

    def _fetch(self) -> bool:
        """Copy the lines after those that are known here."""
        query = "select seq, line from workbench_journal where study = %s and seq > %s order by seq"
        rows = self._database.ask(query, self._study, self._lines)
        for number, text in rows:
            if number != self._lines + 1:
                raise InputError("storage", self._database.address.shown, f"lacks line {self._lines + 1}")
            self._check(lambda text=text: self._write(json.loads(text), text))  # type: ignore[misc]
        return bool(rows)


def adopt(path: Path, database: Database, study: str) -> None:
    """Let a study's database and the copy in its folder agree before they are used: a study that began in the folder is
    moved to a database that does not know it.

    Raises:
        InputError: the copy is not one of what the database holds.
        UnreachableError: the database does not answer any more.
    """
    copied = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    texts = [piece.decode(errors="replace") for piece in copied]
    if texts and lines_of(database, study) == 0:
        put(database, study, texts)
        return
    query = "select line from workbench_journal where study = %s and seq = %s"
    if texts and database.ask(query, study, len(texts)) != [(texts[-1],)]:
        remedy = f"holds another study {study} than {path.parent}; give another --home, or another name"
        raise InputError("storage", database.address.shown, remedy)


def lines_of(database: Database, study: str) -> int:
    """How many lines a study has there.

    Raises:
        UnreachableError: the database does not answer.
    """
    return int(database.ask("select count(*) from workbench_journal where study = %s", study)[0][0])


def put(database: Database, study: str, texts: Sequence[str]) -> None:
    """The first lines of a study, all of them or none.

    Raises:
        UnreachableError: the database does not answer; they may be there all the same.
    """
    lines = [(_INSERT, (study, f"line {number}", text, study)) for number, text in enumerate(texts, 1)]
    database.run([(_LOCK_ONCE, (study,)), *lines])
