"""More controllers of a study as child processes, each on its part of the devices; they end when their parent does."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.run import child_process, run_folder
from tuning.execution.device_slices import Slice
from tuning.spec.study_file import StudyFile
from tuning.storage.controllers import StudyStatus
from tuning.storage.study_folder import STUDIES, STUDY
from workbench.text.output import say

#: A controller that was asked to end has its run's ranks stop at a common step first.
_PATIENCE_SECONDS = 30.0
#: What a controller may take until it has loaded torch.
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.1
#: After the study has ended others see that within a second or two.
_ENDED_SECONDS = 60.0


class Children:
    """The other controllers of a study: ``start`` them once the study's folder is there."""

    def __init__(self, home: Path, name: str, slices: Sequence[Slice]) -> None:
        self._home, self._name, self._slices = home, name, list(slices)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(ended=False)

    def start(self) -> None:
        """Start those that were not started yet, and wait until they have loaded what they need: the first trial is
        measured alone.
        """
        new_processes = []
        while self._slices:
            new_processes.append(self._start_process(len(self._processes) + 1, self._slices.pop(0)))
            self._processes.append(new_processes[-1])
        deadline = time.monotonic() + _START_SECONDS
        for process in new_processes:
            seconds_left = max(0.0, deadline - time.monotonic())
            if process.stdout is not None:
                if (
                    not child_process.readable(process.stdout.fileno(), seconds_left)
                    or not process.stdout.readline()
                ):
                    say(f"warning: a controller beside this one did not start; see {self._log('*')}")
                process.stdout.close()

    def close(self, ended: bool) -> None:
        """See all of them to their end. Unless the study has ``ended``, ask them to stop first."""
        if not ended:
            for process in self._processes:
                process.send_signal(signal.SIGINT)
        for process in self._processes:
            child_process.end(process, _ENDED_SECONDS if ended else _PATIENCE_SECONDS, request=None)
            if ended and process.returncode:
                say(
                    f"warning: a controller beside this one ended with {process.returncode}; see {self._log('*')}"
                )
        self._processes.clear()

    def _start_process(self, number: int, part: Slice) -> subprocess.Popen[bytes]:
        arguments = [str(self._home), self._name, _join_numbers(part.cores), _join_numbers(part.gpus)]
        with self._log(number).open("ab") as output:
            return child_process.start(  # in its own session: Ctrl-C reaches the parent, which asks once
                ["-m", "workbench.services.controllers", *arguments],
                stdin=subprocess.PIPE,  # closed by the system when this process dies
                stdout=subprocess.PIPE,  # one line once it is ready
                stderr=output,
                variables=child_process.package_path(),
            )

    def _log(self, number: object) -> Path:
        return self._home / STUDIES / self._name / f"side_by_side-{number}.log"


def main(arguments: Sequence[str]) -> int:
    """``HOME STUDY CORES GPUS``: work on a study beside the controller that started this process."""
    from engine.run.processes import die_with
    from tuning.spec import study_file

    home, name, cores, gpus = arguments
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    die_with(lifeline)
    Slice(_numbers(cores), _numbers(gpus)).take()
    _work(Path(home), study_file.parse(run_folder.read_json(Path(home) / STUDIES / name / STUDY)))
    return 0


def _work(home: Path, file: StudyFile) -> None:
    from engine.dry_run.inspection import inspect_workload
    from engine.session import Session
    from tuning.execution import preflight
    from tuning.study import run_study
    from workbench.services.predictions import prior_maker

    folder = home / STUDIES / file.name
    with Session(home, fresh_on_cpu=preflight.weighs_memory(file)) as session:
        make_prior = prior_maker(home, file)
        _load()
        inspect_workload(file.config)  # what it proposes keeps the rules of its workload
        os.write(1, b"ready\n")
        os.dup2(2, 1)
        while not _has_begun(folder):
            time.sleep(_LOOK_SECONDS)
        run_study(file, folder, session.execute, None, make_prior, join=True)


def _load() -> None:
    """Load torch here and in the server of warm ranks, which else comes with the first trial."""
    from engine.launch.workers import ForkServers

    importlib.import_module("engine.launch.pool")
    process = ForkServers().start(int, (), {})
    process.join()


def _has_begun(folder: Path) -> bool:
    """Whether the first controller measures something: the first trial is its own."""
    status = StudyStatus.from_folder(folder)
    return bool(status.running or status.trials_done or status.state != "running")


def _join_numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(map(int, text.split(",")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
