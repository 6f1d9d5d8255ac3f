"""Start the command line as processes of their own, which outlive the page; see who still runs."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import psutil

from engine.config.errors import InputError
from engine.run import child_process, ownership, run_folder
from engine.run.ownership import Owner
from workbench.home.settings import HOME_VARIABLE, JOBS

RECORD = "job.json"
LOG = "log"
_TAIL_BYTES = 16_384
_COMMAND = ["-m", "workbench"]
_ERROR = "error: "


@dataclass(frozen=True, slots=True)
class Job:
    """A process of the command line that was started from here; its output is in ``folder / LOG``."""

    id: str
    folder: Path
    arguments: tuple[str, ...]
    started_unix: float
    owner: Owner

    @property
    def pid(self) -> int:
        """The process, which is also the leader of its session."""
        return self.owner.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return ownership.is_alive(self.owner)

    @property
    def log(self) -> Path:
        """Everything it printed."""
        return self.folder / LOG


def start(home: Path, arguments: list[str], environment: dict[str, str] | None = None) -> Job:
    """Start ``workbench ARGUMENTS`` in a session of its own, so that it goes on when this process ends.

    Raises:
        InputError: the home folder cannot be written.
    """
    folder = new_folder(home)
    variables = {HOME_VARIABLE: str(home)} | (environment or {})
    with (folder / LOG).open("wb") as output:
        process = child_process.start(
            [*_COMMAND, *arguments], stdout=output, stderr=output, variables=variables
        )
    job = Job(folder.name, folder, tuple(arguments), time.time(), _identity(process.pid))
    run_folder.write_json(
        folder / RECORD, {key: value for key, value in asdict(job).items() if key != "folder"}
    )
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    return job


def new_folder(home: Path) -> Path:
    """An empty folder for a job's files.

    Raises:
        InputError: the home folder cannot be written.
    """
    folder = home / JOBS / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            "home", str(home), f"cannot be written ({error.strerror}); give another --home"
        ) from None
    return folder


def all_jobs(home: Path) -> list[Job]:
    """Every job that was started from this home, newest first."""
    jobs = [job for folder in (home / JOBS).glob("*/") if (job := _read(folder)) is not None]
    return sorted(jobs, key=lambda job: job.started_unix, reverse=True)  # names know no more than the second


def find(home: Path, job_id: str | None) -> Job | None:
    """The job of this id, if there is one."""
    return next((job for job in all_jobs(home) if job.id == job_id), None) if job_id else None


def interrupt(job: Job) -> None:
    """Ask a job to end in good order, as Ctrl-C does."""
    if job.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.pid, signal.SIGINT)


def end(job: Job, patience_seconds: float) -> bool:
    """Ask a job to end, then kill it with everything in its session; False if it had to be killed.

    By its number: another process may have started it.
    """
    interrupt(job)
    deadline = time.monotonic() + patience_seconds
    while job.alive and time.monotonic() < deadline:
        time.sleep(0.05)
    if not job.alive:
        return True
    child_process.kill_group(job.pid)
    return False


def last_lines(log: Path, count: int = 20) -> list[str]:
    """The end of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []


def refusal(job: Job) -> str | None:
    """The last line with which the command line said that something was wrong; None if it said so nowhere."""
    errors = [line for line in last_lines(job.log) if line.startswith(_ERROR)]
    return errors[-1].removeprefix(_ERROR) if errors else None


def last_error(job: Job) -> str:
    """The one line with which the command line said what was wrong; its last one if it said that nowhere."""
    lines = [line for line in last_lines(job.log) if line.strip()]
    return refusal(job) or (lines or ["it ended without any output"])[-1]


def _identity(pid: int) -> Owner:
    try:
        return ownership.identity(pid)
    except psutil.Error:
        return Owner(pid, 0.0, socket.gethostname())  # gone already: nobody is this process


def _read(folder: Path) -> Job | None:
    record = run_folder.read_json(folder / RECORD)
    try:
        if record is None:
            return None
        arguments, owner = tuple(record["arguments"]), msgspec.convert(record["owner"], Owner)
        return Job(**record | {"folder": folder, "arguments": arguments, "owner": owner})
    except (KeyError, TypeError, msgspec.ValidationError):
        return None
