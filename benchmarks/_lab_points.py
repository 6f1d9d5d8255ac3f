"""Every legal point of a study in the lab, measured three times in turns and kept in a file as each run ends."""

from __future__ import annotations

import json
import random
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from engine.config.run_config import RunConfig
from engine.run.calibration import fingerprint, store
from engine.run.calibration.table import Calibration
from engine.session import Session
from tuning.space.points import point_key
from tuning.spec.study_file import StudyFile, parse

REPEATS = 3
#: Gradients and weights of 1.8 million parameters take longer on a link of 100 Mbit/s than the step's arithmetic.
MODEL = {"layers": 8, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn_hidden": 384}
STUDY: dict[str, Any] = {
    "name": "lab-100",
    "ranks": 4,
    "base": {
        "model": MODEL,
        "data": {"sequence_length": 128},
        "batch": {"global_batch": 8, "micro_batch": 1},
        "train": {"steps": 4, "warmup": 1, "validation_batches": 0},
        "device": "cpu",
        "lab": {"hosts": 4, "rate_mbit": 100.0},
    },
    "space": {
        "parallel.tp": [1, 2, 4],
        "parallel.pp": [1, 2, 4],
        "parallel.cp": [1, 2, 4],
        "parallel.zero_stage": [0, 1, 3],
        "batch.micro_batch": [1, 2, 4],
    },
}

Row = dict[str, Any]


def study(**changes: Any) -> StudyFile:
    """The study, with keys of its file changed."""
    return parse(STUDY | changes)


@cache
def points() -> dict[str, RunConfig]:
    """The legal points by their key."""
    space = study().search_space
    return {point_key(point): space.config(point) for point in space.legal_points}


def order() -> list[tuple[str, str]]:
    """What is kept under which key, and the point: all points once, in a drawn order, then again in another one."""
    found = list[tuple[str, str]]()
    for repeat in range(REPEATS):
        keys = sorted(points())
        random.Random(repeat).shuffle(keys)
        found += [(f"{repeat} {key}", key) for key in keys]
    return found


def measure(path: Path, home: Path, minutes: float) -> bool:
    """Run what is not in the file yet until all is there or the minutes are over; whether all is."""
    end, configs, kept = time.monotonic() + 60 * minutes, points(), Kept(path)
    kept.calibrated(home)
    with tempfile.TemporaryDirectory() as folder, Session(Path(folder)) as session:
        for number, (name, key) in enumerate(order()):
            if name in kept.rows:
                continue
            if time.monotonic() > end:
                return False
            kept.add(name, run(session, configs[key]), number)
    return True


def run(session: Session, config: RunConfig) -> Row:
    """One run as it is kept; without samples where it did not end well."""
    begun = time.time()
    outcome, summary = session.execute(config, {}, lambda: False)
    return {
        "begun": begun,
        "wall": time.time() - begun,
        "outcome": str(outcome.ending),
        "reason": outcome.reason,
        "samples": summary.step_samples,
    }


class Kept:
    """The file: the calibration that predictions begin from, and the runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self.machine: str = found.get("machine") or table.machine()
        self.rows: dict[str, Row] = found.get("runs", {})
        self._calibration: Row | None = found.get("calibration")

    @property
    def calibration(self) -> Calibration:
        """What the machine was measured to do, before the first run."""
        assert self._calibration is not None, "nothing was measured yet"
        return Calibration.from_dict(self._calibration)

    def calibrated(self, home: Path) -> None:
        """Take over the calibration of this machine, once."""
        found = store.find(home, fingerprint.this_machine()).calibration
        if self._calibration is None:
            if found is None:
                raise SystemExit(f"no calibration in {home}: workbench calibrate --home {home} --ranks 4")
            self._calibration = found.as_dict()

    def add(self, name: str, row: Row, number: int) -> None:
        """Keep one run."""
        self.rows[name] = row
        scratch = self.path.with_suffix(".part")
        tree = {"machine": self.machine, "calibration": self._calibration, "runs": self.rows}
        scratch.write_text(json.dumps(tree, separators=(",", ":")) + "\n", encoding="utf-8")
        scratch.replace(self.path)
        print(f"{number + 1}: {row['outcome']}, {row['wall']:.1f} s, {row['samples']}", flush=True)

    def runs(self, key: str) -> list[Row]:
        """Of one point."""
        return [self.rows[f"{repeat} {key}"] for repeat in range(REPEATS)]
