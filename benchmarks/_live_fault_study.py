"""A live study on two real ranks, run through the command line, and the faults that it is given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil

from benchmarks import _faults
from benchmarks._fault_study import MARKER, NAME, ROOT, STEP_TIMEOUT_SECONDS, Victim, wait_until
from benchmarks._faults import Fault
from engine.run import progress, run_folder
from engine.run.ownership import is_alive
from engine.run.run_folder import RunStatus
from tuning.execution.live.ongoing_run import runs_of

#: Steps of the run, of a window, and between checkpoints.
STEPS, WINDOW, SAVED = 1500, 30, 40
_PAGE_SECONDS = 30.0


def study(trials: int, steps: int) -> dict[str, Any]:
    """Windows of exact knobs: the run learns what it would learn untouched."""
    return {
        "name": NAME,
        "ranks": 2,
        "trials": trials,
        "racing": False,
        "confirm_repeats": 1,
        "live": {"steps": steps, "checkpoint_every": SAVED, "max_slowdown": 1000.0, "look_again": None},
        "base": {
            "model": {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 2, "ffn_hidden": 64},
            "data": {"sequence_length": 32},
            "batch": {"global_batch": 8, "micro_batch": 1},
            "train": {"steps": WINDOW, "warmup": 2, "step_timeout_seconds": STEP_TIMEOUT_SECONDS},
            "device": "cpu",
        },
        "space": {
            "batch.micro_batch": [1, 2, 4],
            "memory.recompute": ["none", "full"],
            "overlap.bucket_mb": [1.0, 4.0, 25.0],
        },
    }


class LiveVictim(Victim):
    """A study that tunes one run while it goes; beside it a page that looks at the home."""

    def __init__(self, folder: Path, trials: int, seed: int, steps: int = STEPS) -> None:
        self.steps = steps
        super().__init__(folder, trials, seed)
        self.page: subprocess.Popen[bytes] | None = None

    def study(self) -> dict[str, Any]:
        """The study's file."""
        return study(self.trials, self.steps)

    @property
    def runs(self) -> list[Path]:
        """The folders of the run, one more for each time that it died."""
        return [self.home / name for name in runs_of(self.journal.parent)]

    @property
    def run(self) -> Path | None:
        """The folder of the run that goes on; None while none does."""
        last = self.runs[-1:]
        goes = [
            run
            for run in last
            if (status := RunStatus.from_folder(run)).state == "running" and is_alive(status.owner)
        ]
        return goes[0] if goes else None

    def ranks(self) -> list[progress.RankProgress]:
        """Where the ranks of the run stand."""
        return [] if self.run is None else progress.read(self.run)

    def step(self) -> int:
        """Of the slowest rank that takes part; -1 before the first."""
        found = self.ranks()
        return min((rank.step for rank in found), default=-1) if len(found) == 2 else -1

    def ordered(self) -> int:
        """How many turns were asked of all runs so far."""
        return sum(1 for run in self.runs for _ in (run / run_folder.COMMANDS).glob("*.json"))

    def open_page(self) -> bool:
        """Whether a page came up that looks at the home."""
        from workbench.services.page_server import ServerAddress, wait_until_up

        place = ServerAddress("127.0.0.1", _free_port())
        command = [
            sys.executable,
            "-m",
            "workbench",
            "ui",
            "--home",
            str(self.home),
            "--port",
            str(place.port),
        ]
        self.page = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {MARKER: self.marker, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        return wait_until_up(place, self.page)

    def kill(self) -> None:
        """End what is left, whatever it is."""
        super().kill()
        if self.page is not None:
            self.page.wait()


@dataclass(frozen=True, slots=True)
class Kind:
    """A fault, when it comes, and whether the run or the controller dies of it."""

    name: str
    inject: Callable[[LiveVictim, Random], Fault]
    run_dies: bool = False
    command_dies: bool = False


def _launcher(victim: LiveVictim) -> int | None:
    owner = None if victim.run is None else RunStatus.from_folder(victim.run).owner
    return None if owner is None else owner.pid


def kill_launcher(victim: LiveVictim, random: Random) -> Fault:
    """kill -9 of the process that runs the ranks."""
    return _killed(_launcher(victim), "the run's process")


def kill_server(victim: LiveVictim, random: Random) -> Fault:
    """kill -9 of the process that ranks are forked from."""
    launcher = _launcher(victim)
    servers = [
        process.pid
        for process in victim.processes()
        if process.ppid() == launcher and "forkserver" in " ".join(process.cmdline())
    ]
    return _killed(servers[0] if servers else None, "the fork server")


def kill_page(victim: LiveVictim, random: Random) -> Fault:
    """kill -9 of the page and of the command that serves it."""
    if not victim.open_page() or victim.page is None:
        return Fault("the page did not come up", done=False)
    family = [*psutil.Process(victim.page.pid).children(recursive=True), psutil.Process(victim.page.pid)]
    for process in family:
        process.kill()
    victim.page.wait()
    return Fault("SIGKILL to the page")


def kill_both(victim: LiveVictim, random: Random) -> Fault:
    """kill -9 of the command and of the run's process."""
    _faults.kill_controller(victim, random)
    return kill_launcher(victim, random)


def _killed(pid: int | None, what: str) -> Fault:
    if pid is None:
        return Fault(f"SIGKILL found no process: {what}", done=False)
    os.kill(pid, signal.SIGKILL)
    return Fault(f"SIGKILL to {what}")


#: By name.
KINDS = {
    kind.name: kind
    for kind in (
        Kind("kill_rank", _faults.kill_rank, run_dies=True),
        Kind("stop_rank", _faults.stop_rank, run_dies=True),
        Kind("memory_cgroup", _faults.memory_cgroup, run_dies=True),
        Kind("kill_launcher", kill_launcher, run_dies=True),
        Kind("kill_server", kill_server, run_dies=True),
        Kind("kill_controller", _faults.kill_controller, command_dies=True),
        Kind("kill_both", kill_both, run_dies=True, command_dies=True),
        Kind("kill_page", kill_page),
    )
}
#: When a fault comes: between an order to turn the run and its answers, or in the window that follows.
MOMENTS = ("turn", "window")


def wait_for(moment: str, victim: LiveVictim, random: Random) -> None:
    """Until the moment has come; the run has done some steps by then."""
    wait_until(lambda: victim.step() > 5 or not victim.alive)
    before = victim.ordered()
    if moment == "turn":
        deadline = time.monotonic() + _PAGE_SECONDS
        while victim.ordered() == before and victim.alive and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(random.uniform(0.0, 0.05))
    else:
        time.sleep(random.uniform(0.0, 1.0))


def _free_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
