"""A made-up study of eight trials: one ran out of memory, one still goes on; its owner is this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from engine.run import ownership, run_folder
from profilers.model.run_summary import RunSummary
from tuning.analysis.measures import measure
from tuning.report import result
from tuning.spec import study_file
from tuning.spec.objectives import Aim
from tuning.storage.journal import Journal, load

NAME = "quickstart"
BASE: dict[str, Any] = {
    "model": {"preset": "tiny"},
    "data": {"sequence_length": 128},
    "batch": {"global_batch": 16, "micro_batch": 4},
    "train": {"steps": 24, "warmup": 4},
}
SPACE: dict[str, Any] = {
    "parallel.tp": [1, 2, 4],
    "parallel.pp": [1, 2, 4],
    "parallel.zero_stage": [0, 3],
    "batch.micro_batch": [1, 2, 4],
    "schedule.kind": ["1f1b", "gpipe"],
    "memory.recompute": ["none", "full"],
    "compression.method": ["none", "fp16", "topk"],
}
STUDY = {
    "name": NAME,
    "ranks": 4,
    "trials": 12,
    "objective": "tokens_per_second",
    "seed": 0,
    "base": BASE,
    "space": SPACE,
}

#: dp, tp, pp, zero, micro-batch, schedule, recompute, compression, step seconds, source, ending
TRIALS: list[tuple[Any, ...]] = [
    (4, 1, 1, 0, 4, "1f1b", "none", "none", 0.214, "baseline", "completed"),
    (2, 2, 1, 0, 2, "1f1b", "none", "none", 0.252, "sampler", "completed"),
    (1, 1, 4, 0, 2, "1f1b", "none", "none", 0.301, "sampler", "pruned"),
    (4, 1, 1, 3, 4, "1f1b", "none", "none", 0.276, "sampler", "oom"),
    (4, 1, 1, 0, 4, "1f1b", "none", "fp16", 0.189, "enqueued", "completed"),
    (2, 1, 2, 0, 4, "gpipe", "none", "none", 0.232, "sampler", "completed"),
    (2, 1, 2, 0, 2, "1f1b", "full", "none", 0.268, "sampler", "completed"),
    (2, 2, 1, 0, 4, "1f1b", "none", "fp16", 0.203, "sampler", None),
]
KEYS = (
    "parallel.dp",
    "parallel.tp",
    "parallel.pp",
    "parallel.zero_stage",
    "batch.micro_batch",
    "schedule.kind",
    "memory.recompute",
    "compression.method",
)
IMPORTANCE = {
    "values": {
        "parallel.tp": 0.34,
        "compression.method": 0.27,
        "parallel.pp": 0.21,
        "batch.micro_batch": 0.12,
        "memory.recompute": 0.06,
    },
    "reason": "",
}
OOM = "rank 2 ran out of memory in forward: could not allocate 256 MiB above its limit of 0.75 GiB"


def write_study(home: Path, make_run: Callable[..., Any], make_folder: Callable[..., Any]) -> Any:
    """Writes the study and its runs; returns the folder of the trial that is still running."""
    folder = home / "studies" / NAME
    (folder / "commands").mkdir(parents=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False), "utf-8")
    file = study_file.parse(STUDY)
    run_folder.write_json(folder / "study.json", file.resolve())
    journal, live = Journal(folder / "journal.jsonl"), None
    journal.append("study", file=file.resolve(), fingerprint=file.fingerprint())
    for number, trial in enumerate(TRIALS):
        run = _run(number, trial, make_run)
        live = make_folder(home, run)
        if trial[-1] is not None:
            live.write(run.steps)
        _note(journal, number, trial, run, home)
    asked = {"compression.method": "fp16"}
    journal.append(
        "command", id="c-1", command="enqueue", by="page", accepted=True, reason="", arguments=asked
    )
    journal.close()
    assert live is not None
    run_folder.write_json(folder / "status.json", _status(live.run.id))
    document = result.result(load(folder / "journal.jsonl"), file, "running").as_dict()
    run_folder.write_json(folder / "result.json", document | {"importance": IMPORTANCE})
    return live


def _run(number: int, trial: tuple[Any, ...], make_run: Callable[..., Any]) -> Any:
    values = dict(zip(KEYS, trial, strict=False)) | {"batch.global_batch": 16, "data.sequence_length": 128}
    started = time.time() - 9.0 * (len(TRIALS) - number)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(started))
    steps = {"oom": 3, "pruned": 14, "completed": 24}.get(trial[-1], 600)
    reason = {"oom": OOM, "pruned": "its best case is below the best trial's worst"}.get(trial[-1], "")
    return make_run(
        f"{stamp}-{number:02d}f{number}", values, trial[8], steps, trial[-1], reason, NAME, number, started
    )


def _note(journal: Journal, number: int, trial: tuple[Any, ...], run: Any, home: Path) -> None:
    """The lines that the owner of a study would write about a trial."""
    point = dict(zip(KEYS, trial, strict=False))
    journal.append("proposal", number=number, config=point, params={}, source=trial[9], attempt=0)
    journal.append("lease", number=number, pid=os.getpid(), start_time=0.0)
    journal.append("started", number=number, run=run.id)
    if trial[-1] is not None:
        told = _told(trial, home / run.id)
        journal.append("tell", number=number, run=run.id, seconds=run.steps * trial[8] + 1.3, **told)


def _told(trial: tuple[Any, ...], run: Path) -> dict[str, Any]:
    """What the run itself measured, as the owner of a study takes it from its summary."""
    oom = trial[-1] == "oom"
    summary = RunSummary.from_dict(run_folder.read_json(run / run_folder.SUMMARY) or {})
    found = None if oom else measure(summary, Aim("tokens_per_second"))
    return {
        "outcome": trial[-1],
        "reason": OOM if oom else "",
        "rank": 2 if oom else None,
        "phase": "forward" if oom else None,
        "value": found and found.value,
        "low": found and found.low,
        "high": found and found.high,
        "samples": found.samples if found else [],
        "validation_loss": None if oom else summary.validation_loss,
        "constraints": {"oom": 1.0} if oom else {},
        "steps": summary.measured_steps,
    }


def _status(run: str) -> dict[str, Any]:
    return {
        "state": "running",
        "owner": asdict(ownership.this_process()),
        "updated_unix": time.time(),
        "current_run": run,
        "trials_done": 7,
        "trials_total": 12,
        "phase": "search",
    }
