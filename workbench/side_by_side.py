"""More controllers of a study as child processes, each on its part of the devices; they end when their parent does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tuning.readers import STUDIES, STUDY
from tuning.side_by_side import Slice
from tuning.studyfile import StudyFile

#: A controller that was asked to end has its run's ranks stop at a common step first.
_PATIENCE_SECONDS = 30.0
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
        """Start those that were not started yet."""
        while self._slices:
            number = len(self._processes) + 1
            self._processes.append(self._started(number, self._slices.pop(0)))

    def close(self, ended: bool) -> None:
        """See all of them to their end. Unless the study has ``ended``, ask them to stop first."""
        if not ended:
            self._ask()
        for process in self._processes:
            try:
                process.wait(_ENDED_SECONDS if ended else _PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()  # its ranks die with it
                process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def _ask(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)

    def _started(self, number: int, part: Slice) -> subprocess.Popen[bytes]:
        given = [str(self._home), self._name, _listed(part.cores), _listed(part.gpus)]
        command = [sys.executable, "-m", "workbench.side_by_side", *given]
        ours = str(Path(__file__).parents[1])
        known = [ours, *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = os.environ | {"PYTHONPATH": os.pathsep.join(known)}
        log = self._home / STUDIES / self._name / f"side_by_side-{number}.log"
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closed by the system when this process dies
                stdout=output,
                stderr=output,
                env=variables,
                start_new_session=True,  # Ctrl-C reaches the parent, which asks once
            )


def main(arguments: Sequence[str]) -> int:
    """``HOME STUDY CORES GPUS``: work on a study beside the controller that started this process."""
    from engine import rundir
    from engine.lifeline import die_with
    from tuning import studyfile

    home, name, cores, gpus = arguments
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    die_with(lifeline)
    Slice(_numbers(cores), _numbers(gpus)).take()
    _work(Path(home), studyfile.parse(rundir.read_json(Path(home) / STUDIES / name / STUDY)))
    return 0


def _work(home: Path, file: StudyFile) -> None:
    from engine.session import Session
    from tuning import measurable
    from tuning.study import run_study
    from workbench.foresight import foresight_of

    with Session(home, fresh_on_cpu=measurable.weighs_memory(file)) as session:
        foresee = foresight_of(home, file)
        run_study(file, home / STUDIES / file.name, session.execute, None, foresee, join=True)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(map(int, text.split(",")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
