"""Whether anything became slower: this tree beside another commit, in turn.

    python -m benchmarks.before_after [--before COMMIT] [--rounds 30] [--only NAME ...] [--save]

Three processes live at the same time: two of the other commit, of which one is the A/A row, and one of this tree. Each
measures with the functions of its own benchmarks, a single trial, proposal, run or refresh at a time, when it is told
to; the order is drawn anew for each round. What is compared is processor time, but for turnover, which is wall time.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import numpy as np

from benchmarks import _table as table
from benchmarks._ratio import Ratio, ratio
from benchmarks.house import ROOT, copy_of

#: The last commit before the folders were made anew.
BEFORE = "a8102ff"
#: Of the whole: slower by more is a regression.
BAR = 0.05
#: What every probe begins with: a turn is a line on stdin, answered by a number of seconds on stdout. What else the
#: tree prints goes to stderr.
_HEAD = """
import os, sys, tempfile, time
from pathlib import Path
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def turn(seconds=None):
    if seconds is not None:
        print(seconds, file=answers, flush=True)
    if not sys.stdin.readline():
        sys.exit(0)
home = Path(tempfile.mkdtemp(dir=sys.argv[1]))
"""
#: Each with what a turn is; the code uses names that both trees have.
PROBES = {
    "turnover: a trial on warm ranks, less its steps (wall)": """
from benchmarks.turnover import Session, config, steps
if __name__ == "__main__":
    with Session(home) as session:
        number = 0
        session.execute(config(0), {}, lambda: False)
        turn()
        while True:
            number += 1
            began = time.monotonic()
            _, summary = session.execute(config(number), {}, lambda: False)
            seconds = time.monotonic() - began
            turn(seconds - sum(step.step_seconds for step in steps(home / summary.id)))
""",
    "proposing at 3,000 trials": """
from benchmarks import _big_study
from benchmarks._made_up import MadeUp
from tuning.study import run_study
class Turns(MadeUp):
    since = None
    def __call__(self, *arguments):
        turn(None if self.since is None else time.process_time() - self.since)
        answer = super().__call__(*arguments)
        self.since = time.process_time()
        return answer
if __name__ == "__main__":
    big = _big_study.make(home, 3000, runs=False)
    (big.folder / "status.json").write_text('{"state": "interrupted", "study": "many"}')
    run_study(big.file, big.folder, Turns())
""",
    "recording: a run of 20 steps on dp=2 tp=2, all recorded": """
import resource
from benchmarks.turnover import Session, parse
def used():
    mine, ranks = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + ranks.ru_utime + ranks.ru_stime
if __name__ == "__main__":
    asked = parse({
        "train": {"steps": 20, "warmup": 2}, "batch": {"global_batch": 16, "micro_batch": 2}, "device": "cpu",
        "parallel": {"dp": 2, "tp": 2}, "profile": {"budget": None},
    })
    with Session(home) as session:
        session.execute(asked, {}, lambda: False)
        turn()
        while True:
            _, summary = session.execute(asked, {}, lambda: False)
            turn(summary.cpu_seconds_per_step)
""",
    "page: a refresh with one more of 1,000 trials": """
from benchmarks import _big_study, big_study
big = _big_study.make(home, 1000, runs=False)
followed = big_study.FollowedStudies().study(big.folder)
big_study._refreshed(big, followed)
turn()
while True:
    turn(big_study._refreshed(big, followed)[0])
""",
}


class Worker:
    """A process of one tree that measures when it is told to."""

    def __init__(self, tree: Path, code: str, scratch: Path) -> None:
        file = scratch / "probe.py"
        file.write_text(_HEAD + code, encoding="utf-8")
        self.errors = scratch / "stderr"
        self.process = subprocess.Popen(
            [sys.executable, str(file), str(scratch)],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors.open("w"),
            text=True,
        )

    def measure(self) -> float:
        """Take a turn, and wait for its seconds."""
        said, heard = _pipes(self.process)
        said.write("go\n")
        said.flush()
        answer = heard.readline()
        if not answer:
            raise SystemExit(
                f"a probe ended with code {self.process.wait()}: {self.errors.read_text()[-800:]}"
            )
        return float(answer)

    def close(self) -> None:
        """End the process; it removes nothing of its scratch folder."""
        _pipes(self.process)[0].close()
        self.process.wait(60)


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise SystemExit("a probe has no pipes")
    return process.stdin, process.stdout


def compared(code: str, before: Path, rounds: int) -> tuple[Ratio, Ratio, float]:
    """This tree over the other, the other over itself, and the other's median in seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("a", "a-again", "b")]
        for folder in folders:
            folder.mkdir()
        workers = [
            Worker(tree, code, folder) for tree, folder in zip((before, before, ROOT), folders, strict=True)
        ]
        taken = np.zeros((rounds, len(workers)))
        for number in range(-1, rounds):  # The first round only warms up.
            for place in random.sample(range(len(workers)), len(workers)):
                seconds = workers[place].measure()
                if number >= 0:
                    taken[number, place] = seconds
        for worker in workers:
            worker.close()
    first, again, now = taken.T
    return ratio(now, (first + again) / 2), ratio(again, first), float(np.median(first))


def main() -> None:
    """Print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--before", metavar="COMMIT", default=BEFORE)
    arguments.add_argument("--rounds", type=int, default=30)
    arguments.add_argument("--only", nargs="*", default=[], help="beginnings of rows")
    given = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        before = copy_of(given.before, Path(folder))
        for name, code in PROBES.items():
            if given.only and not name.startswith(tuple(given.only)):
                continue
            print(f"{name} ...", file=sys.stderr)
            now, same, seconds = compared(code, before, given.rounds)
            cells = [f"{seconds * 1e3:,.1f}", now.plain(), now.verdict(1 + BAR), same.plain()]
            rows.append([name, str(given.rounds), *cells])
    header = [
        "what",
        "rounds",
        f"ms at {given.before}",
        "now, times as long",
        f"at most {1 + BAR:.2f}",
        "A/A",
    ]
    table.show("before_after", "Speed before and after", header, rows, given.save)


if __name__ == "__main__":
    main()
