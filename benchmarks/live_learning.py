"""What a lossy method learns of a step at different moments of a run, beside the exact one from the same weights.

    python -m benchmarks.live_learning [--steps 800] [--leaders none powersgd] [--minutes 9] [--save]

A run on four ranks with one method throughout (the leader) is held at a growing number of steps. From a copy of its
state every method does the same steps, one after the other, the exact one first; then the run goes on from the copy as
if nothing had been tried. A share of 1 is what the exact method learns in these steps. The loss guard of a live study
judges by these shares (``tuning/analysis/learning.py``): their scatter over neighbouring copies is what it has to bear.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import _table as table
from benchmarks.live_worth import baseline, study
from engine.run.commands import BACK, TRY
from engine.session import Session
from tuning.execution.live.ongoing_run import OngoingRun

METHODS: dict[str, dict[str, Any]] = {
    "none": {"compression.method": "none"},
    "int8": {"compression.method": "int8"},
    "int4": {"compression.method": "int4"},
    "powersgd": {"compression.method": "powersgd", "compression.rank": 4},
    "topk": {"compression.method": "topk"},
}
#: Copies are made before these shares of a run, in groups of neighbours that show how far a share scatters.
MOMENTS, NEIGHBOURS = (0.03, 0.06, 0.12, 0.25, 0.5, 0.85), 3
LENGTHS = (6, 12)
_PATIENCE_SECONDS, _POLL_SECONDS = 120.0, 0.05


def main() -> None:
    """Hold a run of each leader, and print what each method learned there."""
    parser = table.parser(__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--leaders", nargs="+", choices=METHODS, default=["none", "powersgd"])
    asked = parser.parse_args()
    rows = []
    for leader in asked.leaders:
        for group in groups(shares_of(leader, asked.steps)):
            rows.append([leader, *group])
    header = ("the run's method", "steps before", "steps", *(f"{name} learns" for name in METHODS))
    title = "The share that is learned of what the exact method learns; least, median and most of neighbouring copies"
    table.show("live_learning", title, header, rows, asked.save)


def groups(found: dict[tuple[float, int], list[tuple[int, dict[str, float]]]]) -> Iterator[list[str]]:
    """A row for each moment and length."""
    for (_, length), copies in found.items():
        cells = []
        for name in METHODS:
            shares = sorted(shares[name] for _, shares in copies)
            cells.append(f"{shares[0]:.2f} / {median(shares):.2f} / {shares[-1]:.2f}")
        yield [f"{copies[0][0]} - {copies[-1][0]}", str(length), *cells]


def shares_of(leader: str, steps: int) -> dict[tuple[float, int], list[tuple[int, dict[str, float]]]]:
    """By moment and length: the step of each copy, and the share that each method learned from it."""
    config = baseline(study(steps, 0)).with_values(
        {"train.steps": steps, "lab.hosts": None, "lab.islands": None, "lab.rate_mbit": None}
        | {"lab.between_mbit": None, "train.validation_batches": 16}
        | METHODS[leader]
    )
    found: dict[tuple[float, int], list[tuple[int, dict[str, float]]]] = {}
    threads: list[threading.Thread] = []

    def begin(folder: Path) -> None:
        threads.append(threading.Thread(target=hold_it, args=(OngoingRun(folder), leader, steps, found)))
        threads[0].start()

    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        outcome, _ = session.execute(config, {}, lambda: False, begin)
        threads[0].join()
    assert outcome.good, outcome
    return found


def hold_it(
    run: OngoingRun,
    leader: str,
    steps: int,
    found: dict[tuple[float, int], list[tuple[int, dict[str, float]]]],
) -> None:
    """At each moment, a copy for each neighbour and length."""
    for moment in MOMENTS:
        for _ in range(NEIGHBOURS):
            for length in LENGTHS:
                while run.step < moment * steps:
                    time.sleep(_POLL_SECONDS)
                copy = found.setdefault((moment, length), [])
                copy.append(learned(run, leader, length))
                print(leader, moment, length, *copy[-1], flush=True)


def learned(run: OngoingRun, leader: str, length: int) -> tuple[int, dict[str, float]]:
    """The step of a copy, and what each method learns from there in so many steps."""
    first = run.turn(METHODS["none"], "benchmark", TRY, length).step
    lost = {}
    for place, (name, values) in enumerate(METHODS.items()):
        if place:
            run.turn(values, "benchmark", BACK, length)
        start, lost[name] = loss(run, first), loss(run, first + length)
    run.turn(METHODS[leader], "benchmark", BACK)
    print(
        f"{start:.5f}",
        {name: round(own - lost["none"], 5) for name, own in lost.items()},
        f"{lost['none']:.5f}",
    )
    return first, {name: (start - own) / (start - lost["none"]) for name, own in lost.items()}


def loss(run: OngoingRun, step: int) -> float:
    """On held-out text before this step, once it is known."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        run.refresh()
        if (found := run.loss_before(step)) is not None:
            return found
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"no loss before step {step}")


if __name__ == "__main__":
    main()
