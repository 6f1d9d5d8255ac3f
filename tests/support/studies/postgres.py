"""A PostgreSQL server of the tests' own: a folder, a socket, a password, and nothing on the network."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

PASSWORD = "t0p-s3cret"
_USER = "nobody"


def missing() -> str:
    """Why there can be no server here; empty if there can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    return "" if _programs() else "no PostgreSQL server is installed"


class Server:
    """A server that runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = count()

    def url(self, database: str, password: str = PASSWORD) -> str:
        """An address with its password."""
        return f"postgresql://bench:{password}@/{database}?host={self.folder}"

    def fresh(self) -> str:
        """The address of a new database."""
        name = f"d{next(self._numbers)}"
        self.run("postgres", f"create database {name}")
        return self.url(name)

    def run(self, database: str, statement: str) -> list[tuple[object, ...]]:
        """The rows of a statement."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """Start one, and remove all of it afterwards."""
    programs = _programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        secret = folder / "password"
        secret.write_text(PASSWORD)
        _give_away(folder, secret)
        made = ["-D", str(folder / "data"), "-U", "bench", "-A", "scram-sha-256", f"--pwfile={secret}"]
        quick = ["--no-sync", "--no-instructions", "-E", "UTF8", "--locale=C"]
        subprocess.run(
            [*_as_somebody(), str(programs / "initdb"), *made, *quick],
            check=True,
            capture_output=True,
            cwd=folder,
        )
        with _running(programs, folder):
            yield Server(folder)
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _running(programs: Path, folder: Path) -> Iterator[None]:
    settings = ["listen_addresses=", f"unix_socket_directories={folder}", "fsync=off", "shared_buffers=16MB"]
    options = [part for setting in settings for part in ("-c", setting)]
    command = [*_as_somebody(), str(programs / "postgres"), "-D", str(folder / "data"), *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + 20
        while b"ready to accept connections" not in (folder / "log").read_bytes():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


def _programs() -> Path | None:
    """The folder with the server's programs, the newest version first."""
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


def _as_somebody() -> list[str]:
    """A server refuses to be run by root."""
    if os.geteuid() != 0:
        return []
    known = pwd.getpwnam(_USER)
    return ["setpriv", f"--reuid={known.pw_uid}", f"--regid={known.pw_gid}", "--clear-groups"]


def _give_away(*paths: Path) -> None:
    if os.geteuid() == 0:
        known = pwd.getpwnam(_USER)
        for path in paths:
            os.chown(path, known.pw_uid, known.pw_gid)
