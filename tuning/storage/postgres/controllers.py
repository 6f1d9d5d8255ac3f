"""The controllers of a study that is kept in PostgreSQL; how long each was silent is told by the server's clock."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path

from engine.run import ownership
from tuning.storage.controllers import BEAT_SECONDS, FRESH_SECONDS, Crew, Member, same
from tuning.storage.journal import UnreachableError
from tuning.storage.postgres.database import Database

_ENTER = """
insert into workbench_controllers (study, host, pid, start_time, answered_before) values (%s, %s, %s, %s, %s)
on conflict (study, host, pid) do update
set start_time = excluded.start_time, answered_before = excluded.answered_before, seen = clock_timestamp()
"""
_LOOK = """
select host, pid, start_time, answered_before, extract(epoch from since)::float8,
       extract(epoch from clock_timestamp() - seen)::float8
from workbench_controllers where study = %s order by since
"""
_LEAVE = "delete from workbench_controllers where study = %s and host = %s and pid = %s"


class DatabaseCrew(Crew):
    """Rows of a table, each touched now and then by its controller."""

    def __init__(self, folder: Path, me: Member, database: Database, study: str) -> None:
        super().__init__(folder, me)
        self._database, self._study = database, study
        self._silent: list[Member] = []

    def beat(self) -> None:
        """Show now and then that this one lives, if the database answers."""
        if time.monotonic() - self._beaten > BEAT_SECONDS:
            with suppress(UnreachableError):
                self._enter()
                self._beaten = time.monotonic()

    def leave(self) -> None:
        """Be gone; if the database does not answer, it is noticed later."""
        self._looked = float("-inf")
        with suppress(UnreachableError):
            self._database.ask(_LEAVE, self._study, self.me["host"], self.me["pid"])

    def may_be_gone(self, lease: Member | None) -> bool:
        """Whether a trial may be settled. After an outage everybody was silent: whoever is back first waits for the
        others before it takes them for dead.
        """
        if self.has(lease):
            return False
        silent = lease is not None and any(same(member, lease) for member in self._silent)
        return not silent or self._database.connected_seconds > FRESH_SECONDS

    def _enter(self) -> None:
        me = self.me
        values = (me["host"], me["pid"], me["start_time"], me["answered_before"])
        self._database.ask(_ENTER, self._study, *values)

    def _look(self) -> list[Member]:
        rows = self._database.ask(_LOOK, self._study)
        names = ("host", "pid", "start_time", "answered_before", "since_unix")
        here, found = socket.gethostname(), list[Member]()
        self._silent = []
        for *values, silent_seconds in rows:
            member = dict(zip(names, values, strict=True))
            if member["host"] == here:
                found += [member] if ownership.alive(member) else []
            else:
                (found if silent_seconds < FRESH_SECONDS else self._silent).append(member)
        return found

    def _is_here(self, member: Member) -> bool:
        return same(member, self.me)
