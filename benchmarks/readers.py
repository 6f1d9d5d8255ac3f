"""How fast readers are: age of a sample when it is read, eight writers at 1,000 records/s, a figure of a million.

The writers are processes of their own that write a record each millisecond, stamped with the time; the reader is
the page's (``workbench.records.live_snapshot``), which looks twenty times a second. Series are made from a cold start:
open the run, read, and make the numbers of the figure.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from engine.run import run_folder
from profilers.records.schema import CommSample, StepSample
from profilers.records.writer import RecordWriter
from workbench.figures.steps import collective_series, loss_series, phase_series, rank_series, slowest_rank
from workbench.home import compaction
from workbench.records.live_snapshot import LiveRun

WRITERS = 8
PER_SECOND = 1000
LOOKS_PER_SECOND = 20
RECORDS = 1_000_000
REPEATS = 5
_CHUNK = 5000


def step(number: int, seconds: float, now: float) -> StepSample:
    """A step that began at ``now`` and is half forward, half backward."""
    half = seconds / 2
    return StepSample(number, True, now, seconds, 0.1, 0.0, half, half, *[0.0] * 4, 64, 2.0, None)  # type: ignore[arg-type]


def call(number: int, now: float) -> CommSample:
    """One of a step's forty calls."""
    operation, axis = ("all_reduce", "all_gather")[number % 2], ("dp", "tp")[number // 2 % 2]
    return CommSample(
        number // 40, operation, axis, "float32", 4, 1 << 20, now, 1e-3 * (1 + number % 7), 5e-4
    )


def write_steadily(records: Path, rank: int, stop: Event, written: Any) -> None:
    """A record each millisecond until told to stop; counts how many there were."""
    with RecordWriter(records, f"rank-{rank}") as writer:
        due, number = time.monotonic(), 0
        while not stop.is_set():
            writer.write(step(number, 0.001, time.time()))
            number += 1
            written[rank] = number
            due += 1 / PER_SECOND
            if (ahead := due - time.monotonic()) > 0:
                time.sleep(ahead)


def follow(run: LiveRun, seconds: float) -> tuple[np.ndarray, list[float]]:
    """Looks at a run for a while: the age of every sample when it was there to see, and how long a look took."""
    seen = {rank: len(columns["step"]) for rank, columns in run.read().steps.items()}
    ages, looks = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        snapshot = run.read()
        starts = {rank: columns["start_unix"][seen[rank] :] for rank, columns in snapshot.steps.items()}
        now = time.time()
        looks.append(time.perf_counter() - began)
        for rank, new in starts.items():
            ages.append(now - new)
            seen[rank] += len(new)
        time.sleep(max(0.0, 1 / LOOKS_PER_SECOND - looks[-1]))
    return np.concatenate(ages), looks


def live_rows(seconds: float) -> list[list[str]]:
    """Latency and throughput with all writers going."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / run_folder.RECORDS
        records.mkdir()
        context = multiprocessing.get_context("spawn")
        stop, written = context.Event(), context.Array("q", WRITERS)
        arguments = [(records, rank, stop, written) for rank in range(WRITERS)]
        writers = [context.Process(target=write_steadily, args=each) for each in arguments]
        for writer in writers:
            writer.start()
        while min(written) < PER_SECOND:
            time.sleep(0.05)
        run = LiveRun(Path(folder))
        began, before = time.monotonic(), sum(written)
        ages, looks = follow(run, seconds)
        rate = (sum(written) - before) / (time.monotonic() - began)
        stop.set()
        for writer in writers:
            writer.join()
        read = sum(len(columns["step"]) for columns in run.read().steps.values())
        lost = sum(written) - read
    kept_up = f"{rate:,.0f} records/s written; {read:,} read in all, {lost} missed"
    return [
        ["age of a sample when it is read", *_three(ages), kept_up],
        ["one look", *_three(looks), f"{LOOKS_PER_SECOND} looks per second"],
    ]


def _three(seconds: Any) -> list[str]:
    return [
        f"{1e3 * value:.0f}" for value in (np.median(seconds), np.percentile(seconds, 95), np.max(seconds))
    ]


def write_finished(folder: Path, ranks: int, kind: str) -> None:
    """A finished run of a million records: steps or calls, the same number for each rank."""
    (folder / run_folder.RECORDS).mkdir(parents=True)
    run_folder.write_json(folder / run_folder.STATUS, {"state": "ended", "outcome": {"ending": "completed"}})
    noise = np.random.default_rng(0)
    for rank in range(ranks):
        with RecordWriter(folder / run_folder.RECORDS, f"rank-{rank}") as writer:
            count = RECORDS // ranks
            for first in range(0, count, _CHUNK):
                chunk = range(first, first + _CHUNK)
                times = 0.1 + 0.01 * noise.standard_normal(_CHUNK)
                if kind == "calls":
                    writer.write_many([call(number, 1.7e9 + 0.001 * number) for number in chunk])
                    chunk = range(first // 40, first // 40 + _CHUNK // 40)
                writer.write_many([step(n, s, 1.7e9 + 0.1 * n) for n, s in zip(chunk, times, strict=False)])


FIGURES: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("steps", "step time of each rank", lambda seen: rank_series(seen.steps)),
    ("steps", "phases of the slowest rank", lambda seen: phase_series(slowest_rank(seen.steps), "slowest")),
    ("steps", "loss", lambda seen: loss_series(seen.steps)),
    ("calls", "collectives", lambda seen: collective_series(seen.communication)),
]


def timed(folder: Path, series: Callable[[Any], Any]) -> float:
    """Seconds from opening a run to the numbers of a figure."""
    began = time.perf_counter()
    series(LiveRun(folder).read())
    return time.perf_counter() - began


def series_rows() -> list[list[str]]:
    """Each figure's series, from files as written and from Parquet."""
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for kind, ranks in (("steps", 8), ("steps", 1), ("calls", 8)):
            folder = Path(home) / f"{kind}-{ranks}"
            write_finished(folder, ranks, kind)
            figures = [(name, series) for wanted, name, series in FIGURES if wanted == kind]
            before = [[timed(folder, series) for _ in range(REPEATS)] for _, series in figures]
            began = time.perf_counter()
            done = compaction.compact(folder)
            took = time.perf_counter() - began
            size = f"{done.raw_bytes / 1e6:.0f} MB become {done.parquet_bytes / 1e6:.1f} MB"
            rows.append([f"{kind} of {ranks} ranks: compaction", *_three([took]), size])
            for (name, series), raw in zip(figures, before, strict=True):
                parquet = [timed(folder, series) for _ in range(REPEATS)]
                title = f"{kind} of {ranks} ranks: {name}"
                rows += [[title, *_three(raw), "as written"], [title, *_three(parquet), "Parquet"]]
            shutil.rmtree(folder)
    return rows


def main() -> None:
    """Measure and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=20.0, help="how long the writers are followed")
    given = arguments.parse_args()
    rows = live_rows(given.seconds) + series_rows()
    header = ["what", "ms p50", "ms p95", "ms max", "beside"]
    table.show(
        "readers",
        f"How fast readers are: {WRITERS} writers, and runs of {RECORDS:,} records",
        header,
        rows,
        given.save,
    )


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
