"""Studies in PostgreSQL: the address of a database, which is checked and shown without its password; one connection,
made again when it was lost; and the tables.

:class:`DatabaseControllers` are the controllers of a study that is kept there; the server's clock says how long
each was silent.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from engine.config.errors import InputError
from engine.run import ownership
from engine.run.ownership import Owner
from tuning.storage.controllers import (
    BEAT_SECONDS,
    FRESH_SECONDS,
    Controller,
    StudyControllers,
    is_same_member,
)
from tuning.storage.journal import UnreachableError

if TYPE_CHECKING:
    import psycopg

SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
_EXAMPLE = "postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is. ``shown`` is for people and files; the password is in none of them."""

    url: str
    shown: str
    secrets: tuple[str, ...] = ()

    @property
    def for_optuna(self) -> str:
        """As SQLAlchemy wants it."""
        return f"postgresql+psycopg:{self.url.partition(':')[2]}"

    def error_text(self, error: object) -> str:
        """An error in one line, in which no password is left."""
        text = " ".join(str(error).split())
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def address(text: str) -> Address:
    """An address from what a person gives.

    Raises:
        InputError: it is none of PostgreSQL.
    """
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in SCHEMES and (parts.path.strip("/") or "dbname" in parts.query)
        _ = parts.port
    except ValueError:
        is_address = False
    if not is_address:
        raise InputError("storage", _hide_password(text), f"is no address of a database; give {_EXAMPLE}")
    query = parse_qsl(parts.query)
    secrets = [parts.password or "", *(value for name, value in query if name == "password")]
    place = parts.netloc.rpartition("@")
    user = place[0].partition(":")[0]
    netloc = f"{user}@{place[2]}" if user else place[2]
    open_query = urlencode([(name, value) for name, value in query if name != "password"], safe="/")
    shown = f"postgresql://{netloc}{parts.path}" + (f"?{open_query}" if open_query else "")
    url = f"postgresql:{text.partition(':')[2]}"
    both = {text for secret in secrets for text in (secret, unquote(secret)) if text}
    return Address(url, shown, tuple(sorted(both, key=len, reverse=True)))


def _hide_password(url: str) -> str:
    """What was given, up to where a password may begin."""
    return url.partition(":")[0][:20] + (":..." if ":" in url else "")


CONNECT_SECONDS = 3
#: After a failure it is tried again after so long, then twice as long, and so on up to the last.
FIRST_WAIT_SECONDS, LAST_WAIT_SECONDS = 0.25, 8.0
#: Whoever is in a turn for longer than this is not waited for any more in one go.
TURN_SECONDS = 30
#: A host that vanished is noticed by the server within about half a minute, so that its turn ends.
_OPTIONS = (
    f"-c lock_timeout={TURN_SECONDS}s -c idle_in_transaction_session_timeout=60s "
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4"
)
_TABLES = """
create table if not exists workbench_journal (
  study text not null, seq bigint not null, id text not null, line text not null,
  at timestamptz not null default clock_timestamp(),
  primary key (study, seq), unique (study, id));
create table if not exists workbench_controllers (
  study text not null, host text not null, pid bigint not null, start_time double precision not null,
  answered_before bigint not null, since timestamptz not null default clock_timestamp(),
  seen timestamptz not null default clock_timestamp(), primary key (study, host, pid));
"""
_LOCK_OF_TABLES = "select pg_advisory_xact_lock(hashtextextended('workbench tables', 0))"


class Database:
    """Runs statements. ``pinned``: a lost connection is not made again for now, for it held a lock."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.pinned = self._closed = False
        self._connection: psycopg.Connection | None = None
        self._since = self._next_try = 0.0
        self._wait, self._reason = FIRST_WAIT_SECONDS, "it was not asked yet"
        self._driver = _driver(address)

    def begin(self) -> None:
        """Connect, and make the tables.

        Raises:
            InputError: it does not answer, or its tables cannot be made.
        """
        try:
            self.run([(_LOCK_OF_TABLES, ()), (_TABLES, None)])
        except UnreachableError as problem:
            remedy = f"{problem}; start the database, or mend the address"
            raise InputError("storage", self.address.shown, remedy) from None
        except self._driver.Error as error:
            remedy = f"cannot be used ({self.address.error_text(error)}); ask whoever runs the database"
            raise InputError("storage", self.address.shown, remedy) from None

    def run(self, statements: Sequence[tuple[str, Sequence[Any] | None]]) -> list[tuple[Any, ...]]:
        """Run statements in one transaction; the rows of the last one.

        Raises:
            UnreachableError: it does not answer; what was written may or may not be there.
        """
        connection = self._open_connection()
        rows: list[tuple[Any, ...]] = []
        try:
            with connection.transaction():
                for statement, values in statements:
                    cursor = connection.execute(statement.encode(), values)
                    rows = cursor.fetchall() if cursor.description else []
        except (self._driver.OperationalError, self._driver.InterfaceError) as error:
            raise self._note_failure(error) from None
        return rows

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of one statement, as by :meth:`run`."""
        return self.run([(statement, values)])

    @property
    def connected_seconds(self) -> float:
        """How long the connection has held."""
        return time.monotonic() - self._since if self._connection is not None else 0.0

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that was not found lost."""
        return self._connection is not None

    def close(self) -> None:
        """Let go of it for good."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _open_connection(self) -> psycopg.Connection:
        if self._connection is None:
            if self.pinned or self._closed or time.monotonic() < self._next_try:
                raise UnreachableError(self._reason)
            defaults = {"connect_timeout": CONNECT_SECONDS, "tcp_user_timeout": 10_000, "options": _OPTIONS}
            try:
                url, name = self.address.url, "workbench"
                self._connection = self._driver.connect(
                    url, autocommit=True, application_name=name, **defaults
                )
            except self._driver.Error as error:
                raise self._note_failure(error) from None
            self._since, self._wait = time.monotonic(), FIRST_WAIT_SECONDS
        return self._connection

    def _note_failure(self, error: Exception) -> UnreachableError:
        """After an error: wait a little longer each time before it is tried again."""
        self._drop()
        self._next_try = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, LAST_WAIT_SECONDS)
        self._reason = f"the database does not answer ({self.address.error_text(error)})"
        return UnreachableError(self._reason)


def _driver(address: Address) -> Any:
    try:
        import psycopg
    except ImportError:
        remedy = 'needs psycopg: pip install "training-workbench[postgres]"'
        raise InputError("storage", address.shown, remedy) from None
    return psycopg


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


class DatabaseControllers(StudyControllers):
    """Rows of a table, each touched now and then by its controller."""

    def __init__(self, folder: Path, me: Owner, database: Database, study: str) -> None:
        super().__init__(folder, me)
        self._database, self._study = database, study
        self._silent: list[Controller] = []

    def heartbeat(self) -> None:
        """Show now and then that this one lives, if the database answers."""
        if time.monotonic() - self._beaten > BEAT_SECONDS:
            with suppress(UnreachableError):
                self._enter()
                self._beaten = time.monotonic()

    def leave(self) -> None:
        """Be gone; if the database does not answer, it is noticed later."""
        self._looked = float("-inf")
        with suppress(UnreachableError):
            self._database.ask(_LEAVE, self._study, self.me.host, self.me.pid)

    def may_be_gone(self, lease: Owner | None) -> bool:
        """Whether a trial may be settled. After an outage everybody was silent: whoever is back first waits for the
        others before it takes them for dead.
        """
        if self.has(lease):
            return False
        silent = lease is not None and any(is_same_member(member, lease) for member in self._silent)
        return not silent or self._database.connected_seconds > FRESH_SECONDS

    def _enter(self) -> None:
        me = self.me
        values = (me.host, me.pid, me.start_time, me.answered_before)
        self._database.ask(_ENTER, self._study, *values)

    def _look(self) -> list[Controller]:
        rows = self._database.ask(_LOOK, self._study)
        this_host, members = socket.gethostname(), list[Controller]()
        self._silent = []
        for host, pid, start_time, answered_before, since_unix, silent_seconds in rows:
            member = Controller(pid, start_time, host, answered_before, since_unix)
            if host == this_host:
                members += [member] if ownership.is_alive(member) else []
            else:
                (members if silent_seconds < FRESH_SECONDS else self._silent).append(member)
        return members

    def is_in_folder(self, member: Controller) -> bool:
        """Whether one of them works in this very folder: each home has a folder of its own."""
        return is_same_member(member, self.me)
