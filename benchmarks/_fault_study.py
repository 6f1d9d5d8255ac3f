"""A study on two real ranks, run through the command line, that faults are injected into."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from engine.run import progress
from tuning.storage.study_folder import JOURNAL, STUDIES

ROOT = Path(__file__).parents[1]
NAME = "victim"
#: Every process of a study inherits it; what still has it afterwards was left behind.
MARKER = "WORKBENCH_FAULTS"
STEPS = 40
STEP_TIMEOUT_SECONDS = 8.0
PATIENCE_SECONDS = 240.0
Line = dict[str, Any]


def study(trials: int) -> dict[str, Any]:
    """A study file with short trials on two gloo ranks."""
    return {
        "name": NAME,
        "ranks": 2,
        "trials": trials,
        "racing": False,
        "base": {
            "model": {"layers": 2},
            "data": {"sequence_length": 32},
            "batch": {"global_batch": 8, "micro_batch": 2},
            "train": {"steps": STEPS, "warmup": 2, "step_timeout_seconds": STEP_TIMEOUT_SECONDS},
            "device": "cpu",
        },
        "space": {
            "parallel.tp": [1, 2],
            "parallel.pp": [1, 2],
            "parallel.zero_stage": [0, 1],
            "batch.micro_batch": [1, 2, 4],
            "memory.recompute": ["none", "full"],
        },
        "confirm_repeats": 1,
    }


class Victim:
    """The study's command, its folders, its processes and what they hold."""

    def __init__(self, folder: Path, trials: int, seed: int) -> None:
        self.folder, self.trials = folder, trials
        self.marker = f"{os.getpid()}-{seed}-{random.SystemRandom().randrange(10**6)}"
        self.home = folder / "home"
        self.journal = self.home / STUDIES / NAME / JOURNAL
        self._file = folder / "study.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(yaml.safe_dump(self.study()), encoding="utf-8")
        self.starts = 0
        self.sockets: set[str] = set()
        self.shared: set[str] = set()
        self.pids: set[int] = set()
        self.controller: subprocess.Popen[bytes] | None = None

    def study(self) -> dict[str, Any]:
        """The study's file."""
        return study(self.trials)

    def start(self) -> None:
        """The command, for the first time or again."""
        self.starts += 1
        command = [
            sys.executable,
            "-m",
            "workbench",
            "tune",
            str(self._file),
            "--home",
            str(self.home),
            "--json",
        ]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {MARKER: self.marker, "PYTHONPATH": path}
        with self._told("out").open("wb") as out, self._told("err").open("wb") as err:
            self.controller = subprocess.Popen(command, stdout=out, stderr=err, env=environment, cwd=ROOT)

    @property
    def alive(self) -> bool:
        """Whether the command runs."""
        return self.controller is not None and self.controller.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the command; None while it runs."""
        return None if self.controller is None else self.controller.poll()

    def document(self) -> dict[str, Any]:
        """What the command printed last."""
        found: dict[str, Any] = json.loads(self._told("out").read_text(encoding="utf-8"))
        return found

    def error(self) -> str:
        """What the command said last on stderr."""
        return self._told("err").read_text(encoding="utf-8", errors="replace").strip()

    def lines(self) -> list[Line]:
        """Whole lines of the journal, as they are in the file."""
        pieces = self.journal.read_bytes().split(b"\n")[:-1] if self.journal.exists() else []
        found = []
        for piece in pieces:
            try:
                line = json.loads(piece)
            except ValueError:
                continue
            found += [line] if isinstance(line, dict) and "kind" in line else []
        return found

    def open_trials(self) -> list[int]:
        """Proposals without an end."""
        lines = self.lines()
        told = {line["number"] for line in lines if line["kind"] in ("tell", "withdrawn")}
        return [line["number"] for line in lines if line["kind"] == "proposal" and line["number"] not in told]

    def run_of(self, number: int) -> Path | None:
        """The folder of a trial's run, once it started."""
        runs = [
            line["run"] for line in self.lines() if line["kind"] == "started" and line["number"] == number
        ]
        return self.home / runs[0] if runs else None

    def ranks(self) -> list[progress.RankProgress]:
        """Where the ranks of the open trial stand; none between two trials."""
        runs = [self.run_of(number) for number in self.open_trials()]
        return [rank for run in runs if run is not None for rank in progress.read(run)]

    def processes(self) -> list[psutil.Process]:
        """Every process that has the marker."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def note_holdings(self) -> None:
        """Remember the processes, listening sockets and shared memory there are now, to look for them afterwards."""
        for process in self.processes():
            self.pids.add(process.pid)
            try:
                held = {str(fd.readlink()) for fd in Path(f"/proc/{process.pid}/fd").iterdir()}
                self.sockets |= held & _listening().keys()
                maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").splitlines()
                self.shared |= {
                    row.split()[-1] for row in maps if "/dev/shm/" in row and "deleted" not in row
                }
            except (psutil.Error, OSError):
                continue

    def left_behind(self) -> list[str]:
        """What is still there after the command has ended, in words."""
        wait_until(lambda: not self.processes(), 15.0)
        found = [f"process {process.pid} ({_command(process)})" for process in self.processes()]
        listening = _listening()
        found += [f"port {listening[each]}" for each in sorted(self.sockets & listening.keys())]
        return found + [f"shared memory {path}" for path in sorted(self.shared) if Path(path).exists()]

    def kill(self) -> None:
        """End what is left, whatever it is."""
        for process in self.processes():
            process.kill()
        if self.controller is not None:
            self.controller.wait()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            return False
        return f"{MARKER}={self.marker}".encode() in environment.split(b"\0")

    def _told(self, name: str) -> Path:
        return self.folder / f"{self.starts}.{name}"


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether the condition came true within the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:120]
    except psutil.Error:
        return "gone"


def _listening() -> dict[str, int]:
    """Sockets of this machine that somebody listens at, by the name that they have among descriptors, with their port:
    another process may get the port of one that is gone.
    """
    found = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        rows = table.read_text(encoding="ascii").splitlines()[1:] if table.exists() else []
        for row in (row.split() for row in rows):
            if row[3] == "0A":
                found[f"socket:[{row[9]}]"] = int(row[1].rpartition(":")[2], 16)
    return found
