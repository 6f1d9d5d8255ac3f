"""One study with several faults one after the other, and what has to hold after each and at the end."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks._fault_study import PATIENCE_SECONDS, Line, Victim, wait_until
from benchmarks._faults import KINDS, Fault
from engine.run import run_folder
from tuning.space.points import point_key
from tuning.storage import journal
from tuning.storage.study_folder import DATABASE

#: After these the command ends: killed, or with bad input where its folder cannot be written.
_ENDS = {"kill_controller": -9, "journal_tail": -9, "record_tail": -9, "disk_full": 2}
_DISK = "96m"


@dataclass
class Shot:
    """One fault and what came of it. ``endings`` are of trials that it cost."""

    kind: str
    words: str
    endings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def run(folder: Path, kinds: Sequence[str], seed: int) -> list[Shot]:
    """Inject each kind into one study and bring it to its end. What is wrong with the end is told of the last fault."""
    random = Random(seed)
    with _disk(folder, "disk_full" in kinds):
        victim = Victim(folder, trials=4 + 2 * len(kinds), seed=seed)
        shots: list[Shot] = []
        try:
            victim.start()
            explained: set[int] = set()
            for kind in kinds:
                shot = _shoot(victim, kind, random, explained)
                shots += [] if shot is None else [shot]
            problems = _finish(victim, explained)
        finally:
            victim.kill()
    if shots:
        shots[-1].problems += problems
    return shots


def _shoot(victim: Victim, kind: str, random: Random, explained: set[int]) -> Shot | None:
    """None where the study was over before, or where there was nothing to harm and nothing came of it."""
    wait_until(lambda: bool(victim.open_trials()) or not victim.alive)
    time.sleep(random.uniform(0.0, 1.5))
    if not victim.alive:
        return None
    victim.note_holdings()
    began, before = time.monotonic(), victim.lines()
    fault = KINDS[kind](victim, random)
    shot = Shot(kind, fault.words)
    told = _next_trial_ends(victim, kind, shot)
    try:
        fault.undo()
    except OSError as error:
        shot.problems.append(f"could not be undone: {error}")
    if not told:
        shot.problems.append("no trial after the fault came to an end")
    _check(shot, fault, before, victim, explained)
    shot.seconds = round(time.monotonic() - began, 1)
    return shot if fault.done or shot.problems else None


def _next_trial_ends(victim: Victim, kind: str, shot: Shot) -> bool:
    """Wait for the end of a trial that was proposed after the fault, starting the command again where it ended."""
    known = {line["number"] for line in victim.lines() if line["kind"] == "proposal"}

    def told() -> bool:
        tells = {line["number"] for line in victim.lines() if line["kind"] == "tell"}
        return bool(tells - known)

    for _ in range(2):
        wait_until(lambda: told() or not victim.alive)
        if victim.alive or victim.exit_code == 0:
            return told() or victim.exit_code == 0
        _check_command(victim, kind, shot)
        victim.start()
    wait_until(lambda: told() or not victim.alive)
    return told() or victim.exit_code == 0


def _check_command(victim: Victim, kind: str, shot: Shot) -> None:
    """How the command ended, and what it left behind."""
    error = victim.error()
    shot.words += f"; the command ended with {victim.exit_code}"
    if victim.exit_code != _ENDS.get(kind):
        shot.problems.append(f"the command ended with {victim.exit_code}: {error[-400:]}")
    if "Traceback" in error or (kind == "disk_full" and not error.splitlines()[-1:][0].startswith("error:")):
        shot.problems.append(f"the command said no clear line: {error[-400:]}")
    shot.problems += [f"left behind: {words}" for words in victim.left_behind()]


def _check(shot: Shot, fault: Fault, before: list[Line], victim: Victim, explained: set[int]) -> None:
    after = victim.lines()
    missing = [line for line in before if line not in after and line not in fault.cut]
    if fault.cut or "cut" in fault.words:
        missing = [line for line in missing if line["kind"] == "tell"]
    shot.problems += [f"a line is gone from the journal: {json.dumps(line)[:200]}" for line in missing]
    settled = {line["number"] for line in before if line["kind"] == "tell" and line not in fault.cut}
    fresh = [line for line in after if line["kind"] == "tell" and line not in before]
    for line in fresh:
        if line["number"] in settled:
            shot.problems.append(f"trial {line['number']} was told twice")
        elif line["outcome"] != "completed":
            explained.add(line["number"])
            shot.endings.append(line["outcome"])
            if not fault.right(line):
                status = run_folder.read_json(victim.home / str(line.get("run")) / run_folder.STATUS) or {}
                words = {key: line.get(key) for key in ("number", "outcome", "rank", "phase", "reason")}
                words["last_lines"] = (status.get("outcome") or {}).get("last_lines", [])[-3:]
                shot.problems.append(f"the wrong label: {words}")
    if fault.bites and not shot.endings:
        shot.problems.append("nobody noticed")
    for line in fault.cut:
        again = [other for other in after if other["kind"] == "tell" and other["number"] == line["number"]]
        kept = [(other["outcome"], other["run"], other["value"]) for other in again]
        if kept != [(line["outcome"], line["run"], line["value"])]:
            shot.problems.append(
                f"trial {line['number']} had ended as {line['outcome']} and was lost: {kept}"
            )


def _finish(victim: Victim, explained: set[int]) -> list[str]:
    wait_until(lambda: not victim.alive, 3 * PATIENCE_SECONDS)
    if victim.exit_code != 0:
        return [f"the study did not end well: exit code {victim.exit_code}, {victim.error()[-400:]}"]
    victim.note_holdings()
    document, state = victim.document(), journal.load(victim.journal)
    problems = []
    if (document["state"], document["trials_done"]) != ("ended", victim.trials):
        problems.append(f"{document['trials_done']} of {victim.trials} trials, state {document['state']}")
    good = [trial for trial in state.trials if trial.outcome == "completed" and trial.confirms is None]
    if len({point_key(trial.config) for trial in good}) != len(good):
        problems.append("a configuration was counted twice")
    runs = Counter(trial.run for trial in state.trials if trial.run)
    problems += [f"run {run} belongs to {count} trials" for run, count in runs.items() if count > 1]
    for trial in state.trials:
        if trial.outcome != "completed" and trial.number not in explained:
            problems.append(f"trial {trial.number} ended as {trial.outcome} without a fault: {trial.reason}")
        status = run_folder.read_json(victim.home / (trial.run or "none") / run_folder.STATUS) or {}
        ending = (status.get("outcome") or {}).get("ending")
        if trial.outcome == "lost" and ending == "completed":
            problems.append(f"trial {trial.number} is lost, but its run completed")
    problems += _index(victim, len([trial for trial in state.trials if trial.confirms is None]))
    return problems + [f"left behind: {words}" for words in victim.left_behind()]


def _index(victim: Victim, trials: int) -> list[str]:
    import sqlite3

    database = sqlite3.connect(victim.journal.parent / DATABASE)
    try:
        count = database.execute("select count(*) from trials").fetchone()[0]
    except sqlite3.Error as error:
        return [f"{DATABASE} cannot be read: {error}"]
    finally:
        database.close()
    return [] if count == trials else [f"{DATABASE} has {count} trials, the journal {trials}"]


@contextmanager
def _disk(folder: Path, small: bool) -> Iterator[None]:
    """A small file system for the runs."""
    home = folder / "home"
    home.mkdir(parents=True)
    if not small:
        yield
        return
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(home)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)
