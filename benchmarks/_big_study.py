"""A home with one large study: a short one that was searched on a simulated cluster, repeated many times over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.many_trials import file_of
from engine.run import ownership, run_folder
from tuning.execution.simulated_machine import Simulation
from tuning.report.result import result
from tuning.spec import study_file
from tuning.storage import study_folder
from tuning.storage.journal import Journal
from tuning.storage.state import Line
from tuning.study import run_study

NAME = "many"
SEARCHED = 40
_CLUSTER = "frontier"
_BUCKET = "overlap.bucket_mb"
#: More trials than are there: the study has not ended.
_LEFT = 1_000


@dataclass(frozen=True, slots=True)
class Big:
    """Where a large study is."""

    home: Path
    folder: Path
    file: study_file.StudyFile

    @property
    def journal(self) -> Path:
        """Its journal."""
        return self.folder / study_folder.JOURNAL


def make(home: Path, trials: int, runs: bool = True) -> Big:
    """A study that goes on, with so many ended trials, and the folders of their ``runs``."""
    file = _file(trials)
    folder = home / study_folder.STUDIES / NAME
    short = _file(SEARCHED, left=0)
    run_study(short, folder, Simulation(home, _CLUSTER, 0.01))
    lines = [json.loads(line) for line in (folder / study_folder.JOURNAL).read_bytes().splitlines()]
    _rewrite(folder, file, list(repeated(lines, trials, file)))
    if runs:
        _repeat_runs(home, folder)
    _write_documents(Big(home, folder, file))
    return Big(home, folder, file)


def repeated(lines: list[Line], trials: int, file: study_file.StudyFile) -> Iterator[Line]:
    """The journal's first ``SEARCHED`` trials, then the same ones with other buckets, values and runs."""
    yield lines[0] | {"file": file.resolve(), "fingerprint": file.fingerprint()}
    templates = [[line for line in lines if line.get("number") == number] for number in range(SEARCHED)]
    random = np.random.default_rng(0)
    for number in range(trials):
        for line in templates[number % SEARCHED]:
            if number < SEARCHED:
                yield line
            else:
                yield _other(line, number, random)


def more(big: Big, first: int, count: int) -> None:
    """Write so many further trials, as the owner would, from the number ``first`` on."""
    lines = [json.loads(line) for line in big.journal.read_bytes().splitlines()[: 5 * SEARCHED]]
    random = np.random.default_rng(first)
    templates = [[line for line in lines if line.get("number") == number] for number in range(1, SEARCHED)]
    with big.journal.open("ab") as journal:
        for number in range(first, first + count):
            for line in templates[number % len(templates)]:
                journal.write(json.dumps(_other(line, number, random)).encode() + b"\n")


def _file(trials: int, left: int = _LEFT) -> study_file.StudyFile:
    given = file_of(trials + left, "random").resolve()
    model = {"model": {"preset": "3b"}, "data": {"sequence_length": 3072}, "precision": "bf16"}
    given["base"] = given["base"] | model
    return study_file.parse(given | {"name": NAME, "simulate": {"cluster": _CLUSTER, "noise": 0.01}})


def _other(line: Line, number: int, random: np.random.Generator) -> Line:
    """A line about another trial. Values stray by a twentieth; all of a trial stray alike."""
    made = line | {"number": number}
    if line["kind"] == "proposal":
        config = line["config"] | {_BUCKET: float(np.exp(random.uniform(0.0, np.log(64.0))))}
        source = "sampler" if line["source"] == "baseline" else line["source"]
        return made | {"config": config, "source": source, "why": ""}
    if "run" in line:
        made["run"] = run_name(line["run"], number)
    if line["kind"] == "tell" and line.get("value") is not None:
        factor = float(np.random.default_rng(number).lognormal(-0.05, 0.02))
        made |= {name: line[name] * factor for name in ("value", "low", "high")}
        made["samples"] = [sample * factor for sample in line["samples"]]
    return made


def run_name(name: str, number: int) -> str:
    """The run of a repeated trial: as old as its template's, with an ending of its own."""
    return f"{name.rpartition('-')[0]}-{number:06x}"


def _rewrite(folder: Path, file: study_file.StudyFile, lines: list[Line]) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / study_folder.JOURNAL).write_text(text, encoding="utf-8")
    run_folder.write_json(folder / study_folder.STUDY, file.resolve())
    (folder / study_folder.STUDY_GIVEN).write_text(json.dumps(file.resolve()), encoding="utf-8")
    (folder / study_folder.DATABASE).unlink(missing_ok=True)


def _repeat_runs(home: Path, folder: Path) -> None:
    """A folder for each trial, as one whose records were pruned."""
    journal = Journal(folder / study_folder.JOURNAL)
    journal.close()
    trials = journal.state.trials
    names = (run_folder.CONFIG, run_folder.STATUS, run_folder.SUMMARY)
    known = [_texts(home / str(trial.run), names) for trial in trials[:SEARCHED]]
    for trial in trials[SEARCHED:]:
        template, texts = str(trials[trial.number % SEARCHED].run), known[trial.number % SEARCHED]
        (home / str(trial.run)).mkdir()
        number, other = f'"trial": "{trial.number % SEARCHED}"', f'"trial": "{trial.number}"'
        for name, text in texts.items():
            made = text.replace(template, str(trial.run)).replace(number, other)
            (home / str(trial.run) / name).write_text(made, encoding="utf-8")


def _texts(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    return {name: (folder / name).read_text("utf-8") for name in names if (folder / name).exists()}


def _write_documents(big: Big) -> None:
    """What its owner would have left: this process, which lives."""
    journal = Journal(big.journal)
    journal.close()
    document: dict[str, Any] = result(journal.state, big.file, "running").as_dict()
    importance = {"values": {_BUCKET: 0.2, "parallel.tp": 0.5, "parallel.pp": 0.3}, "reason": ""}
    run_folder.write_json(
        big.folder / study_folder.RESULT, document | {"importance": importance}, indented=False
    )
    write_status(big, len(journal.state.trials), "running")


def write_status(big: Big, done: int, state: str) -> None:
    """The status of a study whose owner is this process."""
    status = {
        "study": NAME,
        "state": state,
        "phase": "search",
        "owner": asdict(ownership.this_process()),
        "trials_done": done,
        "trials_total": big.file.trials,
        "updated_unix": time.time(),
    }
    run_folder.write_json(big.folder / run_folder.STATUS, status)
