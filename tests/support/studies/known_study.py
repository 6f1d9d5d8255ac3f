"""A made-up study with a known answer: what each knob does to throughput is written down here.

Recomputation takes 30 % of it, a larger micro-batch adds 10 % each step, tp and ZeRO do nothing, compiling adds 25 %
where pp is 1 and takes 10 % where it is more, and micro-batches of 8 without recomputation do not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import yaml

from engine.run import run_folder
from tuning.report import result
from tuning.space.points import Point
from tuning.spec import study_file
from tuning.spec.study_file import StudyFile
from tuning.storage.journal import Journal, load
from tuning.storage.state import StudyState, fold

NAME = "known"
SPACE: dict[str, Any] = {
    "parallel.tp": [1, 2],
    "parallel.pp": [1, 2, 4],
    "parallel.zero_stage": [0, 3],
    "batch.micro_batch": [2, 4, 8],
    "memory.recompute": ["none", "full"],
    "compile": [False, True],
}
TREE: dict[str, Any] = {
    "name": NAME,
    "ranks": 4,
    "trials": 120,
    "base": {"batch": {"global_batch": 32, "micro_batch": 2}, "train": {"steps": 24, "warmup": 4}},
    "space": SPACE,
}
NOISE = 0.01
#: Legal points of the space.
EVERY = 96
Value = Callable[[Point], float | None]


def file() -> StudyFile:
    """The study's file."""
    return study_file.parse(TREE)


def value(point: Point) -> float | None:
    """Tokens per second without noise; None where it runs out of memory."""
    if point["batch.micro_batch"] == 8 and point["memory.recompute"] == "none":
        return None
    made = 10_000.0 * (0.7 if point["memory.recompute"] == "full" else 1.0)
    made *= {2: 1.0, 4: 1.1, 8: 1.21}[point["batch.micro_batch"]]
    if point["compile"]:
        made *= 1.25 if point["parallel.pp"] == 1 else 0.9
    return made


def noise(_: Point) -> float:
    """A study in which no knob does anything."""
    return 10_000.0


def lines(count: int = EVERY, worth: Value = value, spread: float = NOISE) -> list[dict[str, Any]]:
    """The journal of a study that drew legal points at random."""
    random, chosen = Random(7), file()
    points = list(chosen.search_space.legal_points)
    random.shuffle(points)
    head: dict[str, Any] = {"kind": "study", "file": chosen.resolve(), "fingerprint": chosen.fingerprint()}
    found = [head]
    for number, point in enumerate(points[:count]):
        asked = {"number": number, "config": point, "params": {}, "source": "sampler", "at_unix": 1.0}
        told = _told(worth(point), random, spread)
        found += [{"kind": "proposal"} | asked, {"kind": "tell", "number": number, "at_unix": 2.0} | told]
    return found


def state(count: int = EVERY, worth: Value = value, spread: float = NOISE) -> StudyState:
    """What that journal amounts to."""
    return fold(lines(count, worth, spread))


def write(home: Path, count: int = EVERY, worth: Value = value, spread: float = NOISE) -> Path:
    """The study's folder under a home."""
    folder = home / "studies" / NAME
    (folder / "commands").mkdir(parents=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(TREE, sort_keys=False), "utf-8")
    run_folder.write_json(folder / "study.json", file().resolve())
    journal = Journal(folder / "journal.jsonl")
    for line in lines(count, worth, spread):
        journal.append(
            line["kind"], **{key: item for key, item in line.items() if key not in ("kind", "at_unix")}
        )
    journal.close()
    run_folder.write_json(
        folder / "status.json", {"state": "ended", "trials_done": count, "trials_total": count}
    )
    return folder


def _told(made: float | None, random: Random, spread: float) -> dict[str, Any]:
    if made is None:
        return {"outcome": "oom", "reason": "out of memory", "constraints": {"oom": 1.0}}
    own = made * random.lognormvariate(0, spread)
    samples = [own * random.lognormvariate(0, spread) for _ in range(12)]
    return {"outcome": "completed", "value": own, "low": own * 0.99, "high": own * 1.01, "samples": samples}


def add_trial(folder: Path, number: int) -> None:
    """One more trial in the journal of a study that was written."""
    journal = Journal(folder / "journal.jsonl")
    for line in lines(number + 1)[-2:]:
        journal.append(
            line["kind"], **{key: item for key, item in line.items() if key not in ("kind", "at_unix")}
        )
    journal.close()


def write_result(folder: Path, more: dict[str, Any]) -> None:
    """The result that the owner of the study would leave, with more in it."""
    run_folder.write_json(
        folder / "result.json",
        result.result(load(folder / "journal.jsonl"), file(), "ended").as_dict() | more,
    )
