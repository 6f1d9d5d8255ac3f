"""The demo study on this machine, again and again: does it decide, in which time, and does a new run keep what it says?

Each repetition is `examples/quickstart.yaml` in a home of its own, on warm ranks, with another seed. Afterwards the
recommended configuration is run once more as a whole trial: told beside a stop-watch over its steps, and whether it
falls into the interval that the study told. Needs a quiet machine: *others* is the share of the cores that went to
other processes than the ranks, in the mean of what was measured again, and in the new run; studies with more than
``QUIET`` of either count apart.
Rows are kept in ``results/confirmation_demo.json``; each call adds as many as it is asked for.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks import _table as table
from engine.session import Session
from tuning.analysis import conditions
from tuning.report.study_result import StudyResult
from tuning.spec.study_file import StudyFile, load
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study

DEMO = Path("examples/quickstart.yaml")
DECIDED = ("better", "worse", "equal")
LIMIT_SECONDS = 180.0
#: What the study's own process, the system's, and recording take of two cores is a few percent.
QUIET = 0.1
KEPT = table.RESULTS / "confirmation_demo.json"
HEADER = ["seed", "verdict", "gain, 95 %", "rounds", "windows", "seconds", "recommended", "told, 95 % of runs",
          "a new run", "in the interval", "others, %", "commit"]  # fmt: skip


def main(repetitions: int, save: bool) -> None:
    """A line for each study, those of earlier calls first."""
    kept: list[list[str]] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else []
    for number in range(len(kept), len(kept) + repetitions):
        with tempfile.TemporaryDirectory() as folder, Session(Path(folder)) as session:
            row = repetition(session, load(DEMO).model_copy(update={"seed": number}))
        kept.append([str(number), *row, table.commit()])
        print(*kept[-1], sep=" | ", flush=True)
        if save:
            table.keep(KEPT, kept)
    quiet = [row for row in kept if all(float(share) <= 100 * QUIET for share in row[10].split())]
    decided = sum(row[1] in DECIDED and float(row[5]) <= LIMIT_SECONDS for row in quiet)
    held = sum(row[9] == "yes" for row in quiet)
    title = (
        f"The demo study: {decided} of {len(quiet)} on a quiet machine decide within {LIMIT_SECONDS:.0f} seconds; "
        f"{held} new runs within what was told"
    )
    table.show("confirmation_demo", title, HEADER, kept, save)


def repetition(session: Session, file: StudyFile) -> list[str]:
    """Its line of the table, without seed and commit."""
    began = time.monotonic()
    found = run_study(file, session.home / STUDIES / file.name, session.execute)
    seconds = time.monotonic() - began
    gain, rounds, entry = found.gain, found.confirmation_rounds, found.recommended
    assert gain is not None
    assert entry is not None
    percent = [f"{100 * (each - 1):+.1f}" if each else "-" for each in (gain.ratio, gain.low, gain.high)]
    windows = [len(arm.rounds) for arm in rounds.arms] if rounds else [0]
    told = told_interval(found)
    again, beside = new_run(session, file, found)
    return [gain.verdict, f"{percent[0]} ({percent[1]} to {percent[2]})", str(max(windows)), str(sum(windows)),
            f"{seconds:.0f}", entry.label, f"{told[0]:,.0f} to {told[1]:,.0f}", f"{again:,.0f}",
            "yes" if told[0] <= again <= told[1] else "no",
            f"{others(found)} {beside}"]  # fmt: skip


def others(found: StudyResult) -> str:
    """The percentage of the cores that other processes took while it was measured again; empty if it was not."""
    arms = found.confirmation_rounds.arms if found.confirmation_rounds else []
    shares = [
        row.conditions["others_share"]
        for arm in arms
        for row in arm.rounds
        if "others_share" in row.conditions
    ]
    return f"{100 * sum(shares) / len(shares):.0f}" if shares else ""


def told_interval(found: StudyResult) -> tuple[float, float]:
    """Where the study says that 95 % of runs of the recommended configuration fall."""
    entry = found.recommended
    for known in (found.best, found.baseline):
        if known and entry and known.trial == entry.trial:
            entry = replace(entry, low=known.low, high=known.high)
    return (entry.low or 0.0, entry.high or 0.0) if entry else (0.0, 0.0)


def new_run(session: Session, file: StudyFile, found: StudyResult) -> tuple[float, str]:
    """Tokens per second of the recommended configuration in one more trial, and the percentage that others took."""
    assert found.recommended is not None
    config = file.search_space.config(found.recommended.config)
    _, summary = session.execute(config, {"purpose": "again"}, lambda: False)
    share = conditions.run_conditions(summary).get("others_share")
    return summary.tokens_per_second or float("nan"), "" if share is None else f"{100 * share:.0f}"
