"""Real repetitions of a small study with a planted gain: does the confirmed winner stay ahead when measured again?

Two ranks on this machine; the baseline cuts a step into many small micro-batches, so a larger one is faster by more
than 5 %. Each repetition is a study of its own, then the winner and the baseline are run once more each, in turns.
Needs a quiet machine: with others on it the noise is theirs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from engine.session import Session
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study

#: A claim of a smaller gain is not asked to hold in nine of ten.
CLAIM = 1.05
ROUNDS = 2
#: Studies that are begun for each claim that is asked for.
MOST = 3
STUDY: dict[str, Any] = {
    "ranks": 2,
    "trials": 4,
    "base": {
        "batch": {"global_batch": 16, "micro_batch": 2},
        "data": {"sequence_length": 64},
        "train": {"steps": 24, "warmup": 4, "validation_batches": 0},
        "device": "cpu",
    },
    "space": {"batch.micro_batch": [1, 2, 4, 8]},
}


def main(claims: int, save: bool) -> None:
    """Go on until so many studies claimed 5 % or more; a line for each, and how many of the claims held."""
    rows = list[tuple[bool, bool, list[str]]]()
    with tempfile.TemporaryDirectory() as folder, Session(Path(folder)) as session:
        while sum(claimed for _, claimed, _ in rows) < claims and len(rows) < MOST * claims:
            rows.append(repetition(session, len(rows)))
    large = [held for held, claimed, _ in rows if claimed]
    header = ["study", "claimed", "gain, 95 %", "measured again", "steps spared", "held"]
    title = f"Real studies: {sum(large)} of {len(large)} claims of 5 % or more held when measured again"
    table.show("confirmation_real", title, header, [row for *_, row in rows], save)


def repetition(session: Session, number: int) -> tuple[bool, bool, list[str]]:
    """Whether its claim held, whether it claims 5 % or more, and its line."""
    file = parse(STUDY | {"name": f"real-{number}", "seed": number})
    found = run_study(file, session.home / STUDIES / file.name, session.execute).as_dict()
    gain, best = found["gain"], found["best"]
    claimed = gain["verdict"] == "better" and gain["ratio"] >= CLAIM
    again = measured_again(session, file, best["config"], found["baseline"]["config"])
    interval = f"{gain['ratio']:.3f} ({gain['low']:.3f} to {gain['high']:.3f})"
    spared = f"{found['racing']['steps_spared_fraction']:.0%}"
    line = [str(number), gain["verdict"], interval, f"{again:.3f}", spared, "yes" if again > 1 else "no"]
    return again > 1, claimed, line


def measured_again(
    session: Session, file: StudyFile, best: dict[str, Any], baseline: dict[str, Any]
) -> float:
    """The ratio of the two in new runs, A B B A, by their geometric mean."""
    ratio = 1.0
    for number in range(ROUNDS):
        order = ((best, 1), (baseline, -1)) if number % 2 else ((baseline, -1), (best, 1))
        for point, sign in order:
            config = file.search_space.config(point)
            _, summary = session.execute(config, {"purpose": "again"}, lambda: False)
            ratio *= (summary.tokens_per_second or float("nan")) ** (sign / ROUNDS)
    return ratio
