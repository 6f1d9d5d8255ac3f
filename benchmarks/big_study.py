"""What people do with a large study: how long the page's parts and each command take.

    python -m benchmarks.big_study [--trials 1000 3000 10000] [--slow] [--save]

The study is a short one on a simulated cluster, repeated (``_big_study``), with a folder for each run. Parts of the
page are the functions that it calls; the browser's own time is not in it. ``--slow`` also imports the study, and
starts it again until its first proposal, once without Optuna's file and once with it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import _big_study, _table
from benchmarks._big_study import NAME, Big
from engine.run import run_folder
from tuning.sensitivity.report import document as mattered
from tuning.study import run_study
from workbench.analysis.studies import FollowedStudies
from workbench.figures import study
from workbench.figures.search.downsampling import downsample
from workbench.figures.study import trial_series
from workbench.home.store import Store
from workbench.records import heap
from workbench.text.study import all_rows, as_csv, window

SIZES = (1_000, 3_000, 10_000)
REFRESHES = 5


class Took(NamedTuple):
    """Seconds of the processor and of the clock."""

    processor: float
    wall: float

    def __str__(self) -> str:
        return f"{self.processor:.2f} ({self.wall:.2f})"


def took(action: Callable[[], object]) -> Took:
    """How long something takes in this process."""
    processor, wall = time.process_time(), time.monotonic()
    action()
    return Took(time.process_time() - processor, time.monotonic() - wall)


def command(home: Path, *arguments: str) -> Took:
    """How long a command takes, with Python's start. ``ls`` and others may end with 1: the study has not ended."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    given = [sys.executable, "-m", "workbench", *arguments, "--home", str(home)]
    done = subprocess.run(given, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.decode()[-400:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return Took(used, time.monotonic() - wall)


def page(big: Big) -> dict[str, Took]:
    """What a page calls, first and with each further trial."""
    heap.collect_seldom()  # as the page's process does
    followed, store = FollowedStudies().study(big.folder), Store(big.home)
    found = {"page: first look at the study": took(followed.snapshot)}
    found["page: a refresh, nothing new"] = took(followed.snapshot)
    again = [_refreshed(big, followed) for _ in range(REFRESHES)]
    found["page: a refresh, one more trial"] = Took(
        *(median(each[part] for each in again) for part in (0, 1))
    )
    result = followed.snapshot().result
    found["page: figure and table of trials"] = took(lambda: _drawn(result))
    found["page: all trials as CSV"] = took(lambda: as_csv(result))
    found["page: what mattered"] = took(lambda: mattered(followed.snapshot().view))
    found["page: lists of runs and studies, first"] = took(store.lists)
    found["page: lists of runs and studies, again"] = took(store.lists)
    return found


def _refreshed(big: Big, followed: Any) -> Took:
    _big_study.more(big, followed.snapshot().view.journal.next_number, 1)
    return took(followed.snapshot)


def _drawn(result: Any) -> None:
    study.trials(downsample(trial_series(result))).to_plotly_json()
    window(all_rows(result))


def commands(big: Big, out: Path) -> dict[str, Took]:
    """Each command, of a study that nobody runs now."""
    run_folder.write_json(big.folder / run_folder.STATUS, {"state": "interrupted", "study": NAME})
    run, file = ["--to", "torchrun", "--out", str(out / "best")], str(out / "many.study.zip")
    given: dict[str, list[str]] = {
        "--help": ["--help"],
        "ls": ["ls"],
        "show": ["show", NAME],
        "show --json": ["show", NAME, "--json"],
        "control resume --json": ["control", NAME, "resume", "--json"],
        "sensitivity --json": ["sensitivity", NAME, "--json"],
        "export --to torchrun": ["export", NAME, *run],
        "study export": ["study", "export", NAME, "--file", file],
    }
    return {f"workbench {name}": command(big.home, *words) for name, words in given.items()}


def slow(big: Big, out: Path) -> dict[str, Took]:
    """What makes Optuna's file, trial by trial."""
    found = {
        "workbench study import": command(out / "elsewhere", "study", "import", str(out / "many.study.zip"))
    }
    found["tune: until the first proposal, without Optuna's file"] = first_proposal(big)
    found["tune: until the first proposal"] = first_proposal(big)
    found["tune --join: until the first proposal"] = first_proposal(big, join=True)
    return found


def first_proposal(big: Big, join: bool = False) -> Took:
    """From the start of a controller to its first trial, which is interrupted at once."""
    began: list[Took] = []
    processor, wall = time.process_time(), time.monotonic()

    def execute(*_: Any) -> Any:
        began.append(Took(time.process_time() - processor, time.monotonic() - wall))
        raise KeyboardInterrupt

    run_study(big.file, big.folder, execute, join=join)
    return began[0]


def measured(trials: int, is_slow: bool) -> dict[str, Took]:
    """Everything, of a study of so many trials."""
    with tempfile.TemporaryDirectory() as place:
        big = _big_study.make(Path(place) / "home", trials)
        found = page(big) | commands(big, Path(place))
        return found | slow(big, Path(place)) if is_slow else found


def main() -> None:
    """The table."""
    parser = _table.parser(__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=SIZES)
    parser.add_argument("--slow", action="store_true")
    given = parser.parse_args()
    columns = [measured(trials, given.slow) for trials in given.trials]
    rows = [[name, *(str(column[name]) for column in columns)] for name in columns[0]]
    header = ["seconds of the processor (of the clock)", *(f"{trials:,} trials" for trials in given.trials)]
    _table.show("big_study", "A large study: its page and its commands", header, rows, given.save)


if __name__ == "__main__":
    main()
