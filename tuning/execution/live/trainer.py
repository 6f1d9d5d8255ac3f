"""The process of a run whose knobs a study turns: it outlives the study's controller.

``python -m tuning.execution.live.trainer HOME STUDY_FOLDER LOCK``; the configuration and labels come on stdin as one
JSON line. The run is noted in the study's folder before the lock, an open descriptor, is let go of: who started it
may be gone by then. Its name goes to stdout. SIGTERM stops the run at a common step, with a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from engine.config import run_config
from engine.config.errors import InputError
from engine.session import Session
from tuning.execution.live.starter import REFUSED, note_run
from tuning.execution.signals import Interruption


def main() -> int:
    """Run to the end; exit code 0 if it ended well, 2 if it could not begin."""
    home, study, lock = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(lock, False)  # ranks live longer than the start
    if not (line := sys.stdin.readline()):
        return 2  # who asked was gone before it could say for what
    order = json.loads(line)
    config = run_config.parse(order["config"])
    begun = list[Path]()

    def began(folder: Path) -> None:
        begun.append(folder)
        note_run(study, folder.name)
        os.close(lock)
        _say(folder.name)

    with Interruption() as interruption, Session(home) as session:
        try:
            outcome, _ = session.execute(config, order["labels"], lambda: bool(interruption.seen), began)
        except InputError as problem:
            _say(f"{REFUSED}{problem}")
            return 2
    if not begun:
        _say(f"{REFUSED}{outcome.reason}")
        return 2
    return 0 if outcome.good else 1


def _say(line: str) -> None:
    """To who started it, if it is still there: the run goes on without it."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
