"""A foreign job from its start to its ending: what it prints passes on, its machine is sampled, its hangs are said,
and nothing of it is left running once somebody stops it.

Its output goes to files first: should this process be killed, the job goes on, and records as before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from engine.launch.ending import ProcessExit, ending_of_process, outcome_of_ranks
from engine.launch.hang import HangWatch
from engine.launch.job import command as commands
from engine.launch.job.ranks import JobRanks, last_lines
from engine.lifecycle import finish_job, note_job_start
from engine.run import child_process, run_folder
from engine.run.commands import OrderQueue, stop_commanded
from engine.run.outcome import Ending, RunOutcome
from engine.run.progress import Progress
from profilers.rank.job_rank import NOT_RECORDED, TORCH_SEEN
from profilers.records.reader import LAUNCHER
from profilers.records.writer import RecordWriter
from profilers.system.sampler import Sampler

#: As ``profile.host_interval_seconds`` of our own runs.
_INTERVAL_SECONDS = 0.1
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 1.0
#: How long a job that was asked to end may take.
PATIENCE_SECONDS = 30.0
_STREAMS = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: its folder, its exit code as a shell tells it, and the outcome."""

    folder: Path
    code: int
    outcome: RunOutcome


@dataclass(slots=True)
class Watcher:
    """Who runs a job. ``stop_signal`` names the signal that asks for its end, or is empty.

    A KeyboardInterrupt from it ends the job at once. ``say`` is told what a person should know.
    """

    stop_signal: Callable[[], str]
    say: Callable[[str], None]
    #: Where the job's output goes, as it comes.
    outputs: Sequence[IO[bytes]] = field(default_factory=lambda: (sys.stdout.buffer, sys.stderr.buffer))
    hang_seconds: float = 300.0


def run(home: Path, command: Sequence[str], watcher: Watcher) -> JobResult:
    """Run a command to its end.

    Raises:
        InputError: there is no such program, or the home cannot be written.
    """
    program = commands.program_path(command)
    folder = commands.create(home, command)
    with run_folder.check_writable(home):
        note_job_start(folder)
    watcher.say(f"recording into {folder}")
    with _JobMonitor(folder, watcher) as followed:
        followed.start(program, command)
        code = followed.follow()
    outcome = followed.outcome(code)
    finish_job(folder, outcome)
    return JobResult(folder, code if code >= 0 else 128 - code, outcome)


class _JobMonitor:
    def __init__(self, folder: Path, watcher: Watcher) -> None:
        self._folder, self._watcher = folder, watcher
        self._ranks = JobRanks(folder)
        self._writer = RecordWriter(folder / run_folder.RECORDS, LAUNCHER)
        self._sampler = Sampler(self._writer, _INTERVAL_SECONDS)
        self._hangs: HangWatch | None = None
        self._orders: OrderQueue | None = None
        self._page: Progress | None = None
        self._look_at, self._notes = 0.0, list[str]()
        self._stopped = ""

    def __enter__(self) -> _JobMonitor:
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.stop()
        if self._hangs is not None:
            self._hangs.close()
        if self._page is not None:
            self._page.close()
        self._ranks.close()
        self._writer.close()

    def start(self, program: str, command: Sequence[str]) -> None:
        logs = self._folder / run_folder.LOGS
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context((logs / f"{name}.log").open("wb")) for name in _STREAMS]
            self._process = subprocess.Popen(
                [*command],
                executable=program,
                stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
                stdout=files[0],
                stderr=files[1],
                env=commands.environment(self._folder),
                start_new_session=True,
            )
        run_folder.update_status(self._folder, state="running")
        self._shown = [
            OutputForwarder(logs / f"{name}.log", output)
            for name, output in zip(_STREAMS, self._watcher.outputs, strict=True)
        ]

    def follow(self) -> int:
        """Until the command has ended; its code, negative for a signal."""
        try:
            with contextlib.ExitStack() as stack:
                for display in self._shown:
                    stack.enter_context(display)
                while (code := self._process.poll()) is None:
                    self._look()
                    if signal_name := self._requested_signal():
                        return self._stop(signal_name)
                    self._ranks.wait(_POLL_SECONDS)
                if code != 0:
                    self._sweep(self._ranks.alive)
        except KeyboardInterrupt:
            self._stopped = "a second Ctrl-C"
            self._sweep(self._all())
            code = self._process.wait()
        self._look(last=True)
        return code

    def outcome(self, code: int) -> RunOutcome:
        if self._stopped:
            return RunOutcome(Ending.STOPPED, f"stopped by {self._stopped}")
        if code == 0:
            return RunOutcome(Ending.COMPLETED)
        lines = last_lines(self._folder / run_folder.LOGS / "stderr.log")
        report = self._ranks.outcome(code, lines)
        hang = run_folder.RunStatus.from_folder(self._folder).hang
        if hang is not None and (report is None or report.ending.facts.consequence):
            return hang.outcome()
        if report is not None:
            return report
        ending_by_lines = ending_of_process(lines, killed_for_memory=False)
        return outcome_of_ranks([], [ProcessExit(None, code, None, lines, ending_by_lines)])

    def _look(self, last: bool = False) -> None:
        if self._ranks.look():
            self._tell_ranks()
        if last:
            self._note_what_is_missing()
        elif time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            self._watch_hangs()
            self._pass_on_orders()
        with contextlib.suppress(OSError):
            self._note((self._folder / NOT_RECORDED).read_text(encoding="utf-8"))

    def _tell_ranks(self) -> None:
        ranks = self._ranks
        self._sampler.watch(ranks.pids)
        device, size = ranks.find_value("device"), ranks.world_size
        with contextlib.suppress(OSError):
            run_folder.update_status(
                self._folder,
                world_size=size,
                rank_pids=ranks.pids,
                backend=ranks.find_value("backend"),
                backend_reason="as the job chose",
                devices=None if device is None else [device] * size,
            )
            if (tokens := ranks.find_value("tokens_per_step")) is not None:
                run_folder.update_job(self._folder, tokens_per_step=tokens)

    def _watch_hangs(self) -> None:
        if self._hangs is None and (self._folder / run_folder.PROGRESS).exists():
            living = sum(pid > 0 for pid in self._ranks.pids)
            patience = self._watcher.hang_seconds
            self._hangs = HangWatch(self._folder, run_folder.PROGRESS, living, patience, self._writer)
        if self._hangs is not None:
            self._hangs.look()

    def _pass_on_orders(self) -> None:
        if self._orders is None and (self._folder / run_folder.PROGRESS).exists():
            with contextlib.suppress(OSError, ValueError):
                self._page = Progress(self._folder)
                self._orders = OrderQueue(self._folder, self._page)
        if self._orders is not None:
            self._orders.forward_orders()

    def _note_what_is_missing(self) -> None:
        if not self._ranks.seats and not (self._folder / NOT_RECORDED).exists():
            if (self._folder / TORCH_SEEN).exists():
                self._note("torch was loaded, but no process joined others or stepped an optimizer: no rank")
            else:
                self._note(
                    "no process of the command loaded torch, or none that could be looked at: Python with -I, -E or "
                    "-S, or a command that sets PYTHONPATH itself, is not"
                )
        elif self._ranks.seats and not list((self._folder / run_folder.RECORDS).glob("rank-*.step")):
            self._note("no optimizer stepped twice: host, processes and GPUs were recorded, and no steps")

    def _note(self, text: str) -> None:
        if text and text not in self._notes:
            self._notes.append(text)
            self._watcher.say(f"note: {text}")
            with contextlib.suppress(OSError):
                run_folder.update_job(self._folder, notes=self._notes)

    def _requested_signal(self) -> str:
        return self._watcher.stop_signal() or ("SIGINT" if stop_commanded(self._folder) else "")

    def _stop(self, name: str) -> int:
        """Ask the job's group to end, wait, and kill what is left of it; ranks of torchrun have groups of their own."""
        self._stopped, processes = name, self._all()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.Signals[name])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            self._ranks.wait(_POLL_SECONDS)
            self._ranks.look()
        self._sweep([*processes, *self._all()])
        code = self._process.wait()
        self._look(last=True)
        return code

    def _all(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            leader = psutil.Process(self._process.pid)
            return [leader, *leader.children(recursive=True), *_processes(self._ranks.alive)]
        return _processes(self._ranks.alive)

    def _sweep(self, processes: Sequence[psutil.Process | int]) -> None:
        """Kill what still runs of these, and of the job's group."""
        for process in processes:
            with contextlib.suppress(psutil.Error):
                (psutil.Process(process) if isinstance(process, int) else process).kill()
        child_process.kill_group(self._process.pid)


def _processes(pids: Sequence[int]) -> list[psutil.Process]:
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            processes.append(psutil.Process(pid))
    return processes


class OutputForwarder:
    """While entered, what is written to a file is passed on as it comes; at the end, all of it."""

    def __init__(self, path: Path, output: IO[bytes]) -> None:
        self._path, self._output = path, output
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=path.stem, daemon=True)

    def __enter__(self) -> OutputForwarder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with self._path.open("rb") as file, contextlib.suppress(OSError, ValueError):
            over = False
            while True:
                while part := file.read(1 << 16):
                    self._output.write(part)
                    self._output.flush()
                if over:
                    return
                over = self._over.wait(_POLL_SECONDS / 4)
