"""A trainer's processes as one thing: started, heard line by line with the time of each, and ended as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.config.errors import InputError
from engine.run import child_process
from tuning.execution.command.guard import OVER
from tuning.spec.trainers.invocation import DIRECTORY, FIELD, Invocation

#: In the environment of all that a trial starts: by it what escaped a killed guard is found.
MARK = "WORKBENCH_TRIAL"
_GUARD = "tuning.execution.command.guard"
#: Variables by which launchers number ranks.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_STARTING_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How the trainer's first process ended, and the names of those that went on after it. ``code`` is negative for a
    signal; None if the process that watched over it died.
    """

    code: int | None
    survivors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rank:
    """A process of a trainer that a launcher gave a number."""

    number: int
    pid: int
    words: tuple[str, ...]
    stopped: bool


class Processes:
    """All that one command starts; ``log`` gets what it prints. Close it, whatever happens."""

    def __init__(self, command: Invocation, mark: str, log: Path, variables: Mapping[str, str]) -> None:
        self._mark, self._ended = mark, threading.Event()
        self._blocks: deque[list[tuple[float, str]]] = deque()
        self._exit: Exit | None = None
        #: Whether the first process ended well; lines of whoever goes on are left out.
        self.over = False
        output, write_end = os.pipe()
        try:
            self._guard = child_process.start(
                ["-m", _GUARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=write_end,
                variables=child_process.package_path() | {MARK: mark},
            )  # fmt: skip
        finally:
            os.close(write_end)
        order = {
            "words": command.words,
            "directory": str(command.directory),
            "variables": {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
            | dict(command.variables) | dict(variables),
        }  # fmt: skip
        self._send(json.dumps(order))
        self._reader = threading.Thread(target=self._read, args=(output, log), daemon=True)
        self._reader.start()
        self._check_started(command)
        self._teller = threading.Thread(target=self._hear_guard, daemon=True)
        self._teller.start()

    def lines(self) -> list[tuple[float, str]]:
        """Those printed since the last look, each with the time at which it came (``time.monotonic``); those that came
        at once have the same one.
        """
        lines = []
        while self._blocks:
            lines += self._blocks.popleft()
        return lines

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it goes. All that it printed is there then."""
        if not self._ended.is_set():
            return None
        self._reader.join(_STARTING_SECONDS)
        return self._exit

    def stop(self, patience_seconds: float) -> None:
        """Ask all of it to end, kill what is left after that time, and wait until nothing is left."""
        self._send(f"stop {patience_seconds:g}")
        if not self._ended.wait(patience_seconds + _STARTING_SECONDS):
            child_process.kill(self._guard)
            self._ended.wait(_STARTING_SECONDS)
        self._reader.join(_STARTING_SECONDS)

    def close(self) -> None:
        """End it at once if it goes."""
        if not self._ended.is_set():
            self.stop(0.0)
        self._guard.wait()
        for stream in (self._guard.stdin, self._guard.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def ranks(self) -> list[Rank]:
        """Processes that a launcher numbered, by number; each number's first."""
        ranks: dict[int, Rank] = {}
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._guard.pid).children(recursive=True):
                rank = _rank(process)
                if rank is not None:
                    ranks.setdefault(rank.number, rank)
        return [ranks[number] for number in sorted(ranks)]

    def _send(self, text: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._guard.stdin.write(f"{text}\n".encode())
            self._guard.stdin.flush()

    def _read_message(self) -> dict[str, Any]:
        assert self._guard.stdout is not None
        line = self._guard.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else {}

    def _check_started(self, command: Invocation) -> None:
        message = self._read_message()
        if "started" in message:
            return
        self._ended.set()
        self.close()
        if not command.directory.is_dir():
            raise InputError(DIRECTORY, str(command.directory), "is no folder here; give the one to start in")
        why = str(message.get("failed", "the process that watches over it died"))
        remedy = f"cannot be started ({why}); give a program that is here"
        raise InputError(FIELD, command.words[0], remedy)

    def _hear_guard(self) -> None:
        message = self._read_message()
        self._exit = Exit(message.get("exit"), tuple(message.get("left", ())))
        if not message:  # it was killed: by its mark what it watched over is found
            _kill_marked(self._mark)
        self._guard.wait()
        self._ended.set()

    def _read(self, output: int, log: Path) -> None:
        """Until nobody holds the other end; a bar that is drawn over again is a line each time."""
        unfinished = b""
        with log.open("ab", buffering=0) as log_file:
            while block := os.read(output, 65_536):
                now = time.monotonic()
                with contextlib.suppress(OSError):  # a full disk loses the log, not the trial
                    log_file.write(block.replace(OVER, b""))
                *whole, unfinished = (unfinished + block).replace(b"\r", b"\n").split(b"\n")
                text = (
                    [*whole, unfinished] if b"\r" in block else whole
                )  # a bar's line ends with the next one
                self._note(now, text)
        if unfinished.strip() and not self.over:
            self._blocks.append([(time.monotonic(), unfinished.decode(errors="replace"))])
        os.close(output)

    def _note(self, now: float, parts: list[bytes]) -> None:
        """Lines up to the end of the trainer."""
        if self.over:
            return
        over = OVER.strip(b"\n") in parts
        own_parts = parts[: parts.index(OVER.strip(b"\n"))] if over else parts
        self._blocks.append([(now, part.decode(errors="replace")) for part in own_parts if part.strip()])
        self.over = over


def _rank(process: psutil.Process) -> Rank | None:
    try:
        variables = process.environ()
        number = next((variables[name] for name in _RANKS if name in variables), "")
        if not number.isdigit():
            return None
        stopped = process.status() == psutil.STATUS_STOPPED
        return Rank(int(number), process.pid, tuple(process.cmdline()), stopped)
    except psutil.Error:
        return None


def _kill_marked(mark: str) -> None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.pid != os.getpid():
                process.kill()
