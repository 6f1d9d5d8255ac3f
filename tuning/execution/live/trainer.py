"""The process of a run whose knobs a study turns: it outlives the study's controller.

``python -m tuning.execution.live.trainer HOME``; the configuration and labels come on stdin as one JSON line, the
run's name goes to stdout. SIGTERM stops the run at a common step, with a checkpoint.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from engine.config import run_config
from engine.config.errors import InputError
from engine.session import Session
from tuning.execution.live.starter import REFUSED
from tuning.execution.signals import Interruption


def main() -> int:
    """Run to the end; exit code 0 if it ended well, 2 if it could not begin."""
    asked = json.loads(sys.stdin.readline())
    config = run_config.parse(asked["config"])

    begun = list[Path]()

    def began(folder: Path) -> None:
        begun.append(folder)
        print(folder.name, flush=True)

    with Interruption() as interruption, Session(Path(sys.argv[1])) as session:
        try:
            outcome, _ = session.execute(config, asked["labels"], lambda: bool(interruption.seen), began)
        except InputError as problem:
            print(f"{REFUSED}{problem}", flush=True)
            return 2
    if not begun:
        print(f"{REFUSED}{outcome.reason}", flush=True)
        return 2
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
