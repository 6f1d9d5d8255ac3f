"""Random layouts of a small decoder on four hosts of the lab: drawn, run, and kept in a file as they end."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import _table as table
from benchmarks.published.run_trials import trial_of
from engine.config.errors import InputError
from engine.config.run_config import RunConfig, parse
from engine.config.validation import rules
from engine.schedules.registry import SCHEDULES
from engine.session import Session
from tuning.predict.fit.finished_runs import Trial
from tuning.predict.traffic.rank import why_not_known

RANKS = 4
#: 3.6 million parameters: gradients and activations take about as long on the slower link.
MODEL = {"layers": 8, "hidden": 192, "heads": 4, "kv_heads": 4, "ffn_hidden": 512}
#: Mbit/s of every host's link.
RATES = (250.0, 1000.0)
#: Layouts to fit to, those whose errors were looked at while constants were chosen, and fresh ones to score: how many,
#: and the seed that they are drawn by.
PARTS = {"seen": (30, 1), "fit": (28, 2), "score": (30, 3)}
#: A trial that began while the machine was busier (1-minute load; four ranks with gloo's threads make up to 9 of it)
#: is measured again.
BUSY = 10.0
#: Of a run; the first is not measured.
STEPS = 4

Row = dict[str, Any]


def drawn(part: str) -> list[RunConfig]:
    """The layouts of a part, without a lab; none is in two of them."""
    found = list[RunConfig]()
    for name, (count, seed) in PARTS.items():
        new = [config for config in layouts(count + len(found), seed) if config not in found][:count]
        if name == part:
            return new
        found += new
    raise KeyError(part)


def layouts(count: int, seed: int) -> list[RunConfig]:
    """So many different legal ones."""
    random_, found = random.Random(seed), list[RunConfig]()
    while len(found) < count:
        config = draw(random_)
        if config not in found and is_legal(config):
            found.append(config)
    return found


def is_legal(config: RunConfig) -> bool:
    """Whether it keeps every rule, and formulas tell what it sends."""
    try:
        return not any(True for _ in rules.problems(config)) and why_not_known(config) is None
    except InputError:
        return False


def draw(random_: random.Random) -> RunConfig:
    """Any layout of four ranks; some break a rule."""
    degrees = random_.choice(list(factors()))
    kind, chunks = "1f1b", 1
    if degrees["pp"] > 1:
        kind = random_.choice(list(SCHEDULES))
        chunks = random_.choice([count for count in (1, 2) if SCHEDULES[kind].chunks_problem(count) is None])
    return parse(
        {
            "model": MODEL,
            "data": {"sequence_length": 128},
            "batch": {"global_batch": 8, "micro_batch": random_.choice([1, 2, 4])},
            "parallel": {**degrees, "zero_stage": random_.choice([0, 1, 2, 3])},
            "schedule": {"kind": kind, "chunks": chunks},
            "memory": {"recompute": random_.choice(["none", "selective", "full"])},
            "overlap": {"bucket_mb": random_.choice([1.0, 4.0, 25.0])},
            "train": {"steps": STEPS, "warmup": 1, "validation_batches": 0},
            "device": "cpu",
        }
    )


def factors() -> Iterator[dict[str, int]]:
    """All degrees that multiply to four."""
    names = ("dp", "tp", "pp", "cp")
    for one in range(len(names)):
        for other in range(one, len(names)):
            yield {name: 2 ** ((name == names[one]) + (name == names[other])) for name in names}


def in_lab(config: RunConfig, rate: float) -> RunConfig:
    """On hosts of their own."""
    return config.with_values({"lab.hosts": RANKS, "lab.rate_mbit": rate})


def measure(path: Path, minutes: float) -> None:
    """Run what is not in the file yet, or was on a busy machine, until all is done or the minutes are over."""
    end = time.monotonic() + 60 * minutes
    for rate in RATES:
        with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
            for part in PARTS:
                for number, config in enumerate(drawn(part)):
                    key = f"{part} {number} at {rate:g}"
                    before = kept(path).get(key)
                    if time.monotonic() > end or (before and before["load_before"] <= BUSY):
                        continue
                    keep(path, key, run(session, in_lab(config, rate)))


def run(session: Session, config: RunConfig) -> Row:
    """One trial as it is kept; without seconds where it did not end well."""
    begun, load, folder = time.time(), os.getloadavg()[0], list[Path]()
    outcome, summary = session.execute(config, {}, lambda: False, folder.append)
    known = {"begun": begun, "load_before": load, "wall": time.time() - begun, "machine": table.machine()}
    known |= {"outcome": str(outcome.ending), "reason": outcome.reason, "steps": summary.step_samples}
    return {**known, "trial": trial_of(folder[0]).as_dict() if summary.step_seconds else None}


def kept(path: Path) -> dict[str, Row]:
    """All that is in the file, by part, number and rate."""
    found: dict[str, Row] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def keep(path: Path, key: str, row: Row) -> None:
    """Add one."""
    rows = {**kept(path), key: row}
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    scratch.replace(path)
    trial = row["trial"]
    told = f"{trial['seconds']:.2f} s" if trial else row["reason"]
    print(f"{key}: {told}, {row['wall']:.0f} s in all", flush=True)


def trials_of(path: Path, part: str) -> list[Trial]:
    """The finished ones of a part."""
    rows = kept(path)
    return [
        Trial.from_dict(row["trial"]) for key, row in rows.items() if key.startswith(part) and row["trial"]
    ]
