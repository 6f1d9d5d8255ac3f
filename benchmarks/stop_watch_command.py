"""From nothing to a winner: one command line that tunes Hugging Face's real Trainer, with a stop-watch around it.

    python -m benchmarks.stop_watch_command [--wall 420] [--save]

`workbench tune --command` runs as a process, in an empty home, as a new user starts it: nothing is told but the command
of the training, on two CPU ranks, and how long the study may take. The clock runs from the start of that process to its
end, with the confirmation of the winner. Installing is not in it: the environment of the Trainer is made before, at the
first use (``tests/support/trainers``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from tests.support import foreign
from tests.support.trainers import environments

SCRIPT = Path(next(iter(foreign.__path__))) / "hf_train.py"
ARGUMENTS = "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --use_cpu --max_steps 100000"
#: Given to the study, and the bar of issue 21.
WALL_SECONDS, BAR_SECONDS = 420, 600.0
VERDICTS = ("better", "equal", "undecided")


@dataclass(frozen=True)
class Watched:
    """A study that ended after so many seconds, as ``--json`` tells of it."""

    seconds: float
    document: dict[str, Any]

    @property
    def verdict(self) -> str:
        """Of the winner against the command as it was."""
        return str(self.document["gain"]["verdict"])

    @property
    def speed(self) -> str:
        """That of the winner, as a multiple of the command's as it was."""
        ratio, low, high = (self.document["gain"][key] for key in ("ratio", "low", "high"))
        return f"{ratio:.2f}" + (f" ({low:.2f} to {high:.2f})" if low and high else "")


def training(out: Path) -> str:
    """The command that a user has."""
    ranks = "-m torch.distributed.run --standalone --nproc-per-node 2"
    return f"{environments.made('hf')} {ranks} {SCRIPT} {ARGUMENTS} --output_dir {out}"


def measure(folder: Path, wall_seconds: int) -> Watched:
    """One study, in a home in this folder.

    Raises:
        RuntimeError: it ended with an error.
    """
    words = [
        "tune",
        "--command",
        training(folder / "out"),
        "--set",
        f"budget.wall_seconds={wall_seconds}",
        "--json",
    ]
    command = [sys.executable, "-m", "workbench", *words, "--home", str(folder / "home")]
    variables, began = environments.variables("hf"), time.perf_counter()
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"workbench tune --command ended with exit code {done.returncode}")
    return Watched(seconds, json.loads(done.stdout))


def changed(document: dict[str, Any]) -> str:
    """The words of the best command that today's has not."""
    today, best = (document["command"][key].split() for key in ("today", "best"))
    return " ".join(word for place, word in enumerate(best) if today[place : place + 1] != [word]) or "none"


def main() -> int:
    """Measure, and print the table; 1 if it took longer than the bar."""
    parser = table.parser(__doc__)
    parser.add_argument("--wall", type=int, default=WALL_SECONDS, help="seconds that the study may take")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.wall)
    document = found.document
    row = [f"{found.seconds:.0f}", f"{given.wall}", str(len(document["trials"])), found.verdict, found.speed,
           changed(document), table.commit() or "unknown"]  # fmt: skip
    header = ["seconds", "budget", "trials", "verdict", "times as fast", "changed words", "commit"]
    title = f"From nothing to a winner by `tune --command`: the bar is {BAR_SECONDS:g} s"
    table.show("tune_command", title, header, [row], given.save)
    return int(found.seconds >= BAR_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
