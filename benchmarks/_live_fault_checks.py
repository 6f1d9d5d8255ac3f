"""One live study with several faults one after the other, and what has to hold after each and at the end."""

from __future__ import annotations

import fcntl
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil

from benchmarks._fault_checks import Shot
from benchmarks._fault_study import PATIENCE_SECONDS, wait_until
from benchmarks._live_fault_study import KINDS, STEPS, LiveVictim, study, wait_for
from engine.checkpoint.checkpoint_folder import complete, read_manifest
from engine.config import run_config
from engine.config.errors import InputError
from engine.run import run_folder
from engine.run.outcome import RecordedOutcome
from engine.run.run_folder import RunStatus
from engine.session import Session
from profilers.analysis.events import change_rows, resume_source
from profilers.analysis.rounds import wall_seconds
from profilers.analysis.steps import JoinedSteps, join_steps
from profilers.records.reader import RunRecords
from tuning.execution.live.starter import STARTING
from tuning.spec.study_file import parse
from tuning.storage import controllers, journal

#: By what share the loss of a step may differ from that of an untouched run, whose sums are in another order.
TOLERANCE = 1e-4
#: For what follows an ending; a busy machine takes half a minute until new ranks have done a step.
_ENDED_SECONDS = 60.0
_NONE = RecordedOutcome()


@dataclass(frozen=True, slots=True)
class Before:
    """What was there when a fault came."""

    runs: list[Path]
    step: int
    saved: int
    lines: list[dict[str, Any]]


def steps_of(run: Path) -> JoinedSteps:
    """All that every rank recorded of a run."""
    records = RunRecords(run / run_folder.RECORDS)
    return join_steps({rank: records.table(rank, "step") for rank in records.ranks()})


def losses(run: Path) -> dict[int, float]:
    """The mean loss over ranks of every step that all of them recorded."""
    steps = steps_of(run)
    if not len(steps.steps):  # its ranks are not there yet
        return {}
    values = np.ma.filled(steps.values["loss"].astype(float), np.nan).mean(axis=0)
    return dict(zip(steps.steps.tolist(), values.tolist(), strict=True))


def untouched(home: Path, steps: int = STEPS) -> dict[int, float]:
    """The losses of the run of such a study that nobody turns."""
    file = parse(study(4, steps))
    begun: list[Path] = []
    config = file.search_space.config(file.search_space.baseline[0]).with_values({"train.steps": steps})
    with Session(home) as session:
        session.execute(config, {}, lambda: False, begun.append)
    return losses(begun[0])


def run(
    folder: Path,
    wanted: Sequence[tuple[str, str]],
    seed: int,
    expected: dict[int, float],
    trials: int | None = None,
) -> list[Shot]:
    """Inject each kind at its moment into one study and bring it to its end. What is wrong with the end is told of the
    last fault.
    """
    random = Random(seed)
    victim = LiveVictim(folder, trials or 6 + 2 * len(wanted), seed, len(expected))
    victim.home.mkdir(parents=True)
    shots: list[Shot] = []
    try:
        victim.start()
        for kind, moment in wanted:
            shot = _shoot(victim, kind, moment, random)
            shots += [] if shot is None else [shot]
            words = f"{shot.seconds:5.1f} s" if shot else "   nothing to harm"
            print(f"  {words}  {kind} in a {moment}", file=sys.stderr, flush=True)
        problems = _finish(victim, expected)
    finally:
        victim.kill()
    if shots:
        shots[-1].problems += problems
    return shots


def _shoot(victim: LiveVictim, name: str, moment: str, random: Random) -> Shot | None:
    """None where the study was over before, or where there was nothing to harm."""
    kind = KINDS[name]
    wait_for(moment, victim, random)
    if not victim.alive or victim.run is None:
        return None
    victim.note_holdings()
    saved = [manifest.step for path in complete(victim.run) if (manifest := read_manifest(path))]
    before = Before(victim.runs, victim.step(), max(saved, default=0), victim.lines())
    began = time.monotonic()
    fault = kind.inject(victim, random)
    shot = Shot(f"{name} in a {moment}", f"{fault.words}, {moment} at step {before.step}")
    if kind.command_dies:
        victim.start()
    _check_goes_on(victim, before, kind.run_dies and fault.done, shot)
    try:
        fault.undo()
    except OSError as error:
        shot.problems.append(f"could not be undone: {error}")
    _check_journal(victim, before, shot)
    shot.seconds = round(time.monotonic() - began, 1)
    return shot if fault.done or shot.problems else None


def _check_goes_on(victim: LiveVictim, before: Before, dies: bool, shot: Shot) -> None:
    """The same run goes on, or another one from its last checkpoint; a window is measured after the fault."""
    known = {line["number"] for line in before.lines if line["kind"] == "proposal"}

    def fresh() -> bool:
        told = {line["number"] for line in victim.lines() if line["kind"] == "tell"}
        return bool(told - known)

    wait_until(lambda: fresh() or not victim.alive)
    if not victim.alive and victim.exit_code != 0:
        shot.problems.append(f"the command ended with {victim.exit_code}: {victim.error()[-400:]}")
    elif not fresh() and victim.exit_code != 0:
        shot.problems.append("no window after the fault came to an end")
    if dies:
        wait_until(lambda: len(victim.runs) > len(before.runs) or not victim.alive, _ENDED_SECONDS)
    new = victim.runs[len(before.runs) :]
    if victim.runs[: len(before.runs)] != before.runs or len(new) > 1 or (new and not dies):
        shot.problems.append(f"the runs were {len(before.runs)}, and are {len(victim.runs)}")
    if dies and not new and (RunStatus.from_folder(before.runs[-1]).outcome or _NONE).ending != "completed":
        shot.problems.append("the run died and does not go on")
    for run, parent in zip(new, before.runs[-1:], strict=False):
        shot.words += f"; goes on as {run.name}"
        _check_resumed(run, parent, before, shot)
        _check_gone(parent, shot)


def _check_resumed(run: Path, parent: Path, before: Before, shot: Shot) -> None:
    """From the last checkpoint that there is; it says so once its ranks are built."""
    wait_until(lambda: bool(losses(run)) or RunStatus.from_folder(run).state == "ended", _ENDED_SECONDS)
    point = resume_source(RunRecords(run / run_folder.RECORDS))
    saved = [manifest.step for path in complete(parent) if (manifest := read_manifest(path))]
    if saved and (point is None or point.step != max(saved)):
        at = None if point is None else point.step
        shot.problems.append(f"it went on with step {at}, its last checkpoint is of step {max(saved)}")
    if point is not None and point.step < before.saved:
        shot.problems.append(
            f"it went on with step {point.step}, it was saved at {before.saved} before the fault"
        )


def _check_gone(run: Path, shot: Shot) -> None:
    """No rank of a run that died lives on."""
    status = RunStatus.from_folder(run)
    pids = [*status.rank_pids, *([status.owner.pid] if status.owner else [])]

    def left() -> list[int]:
        return [
            pid for pid in pids if psutil.pid_exists(pid) and _began(pid) < (status.started_unix or 0) + 30
        ]

    if not wait_until(lambda: not left(), _ENDED_SECONDS):
        shot.problems.append(f"left behind of {run.name}: processes {left()}")


def _began(pid: int) -> float:
    try:
        return float("inf") if psutil.Process(pid).status() == "zombie" else psutil.Process(pid).create_time()
    except psutil.Error:
        return float("inf")


def _check_journal(victim: LiveVictim, before: Before, shot: Shot) -> None:
    after = victim.lines()
    shot.problems += [
        f"a line is gone from the journal: {line}" for line in before.lines if line not in after
    ]
    fresh = [line for line in after if line["kind"] == "tell" and line not in before.lines]
    twice = [number for number, count in Counter(line["number"] for line in fresh).items() if count > 1]
    shot.problems += [f"trial {number} was told twice" for number in twice]
    shot.endings += [line["outcome"] for line in fresh if line["outcome"] != "completed"]
    wrong = [line for line in fresh if line["outcome"] in ("illegal", "diverged", "timed_out", "pruned")]
    shot.problems += [
        f"trial {line['number']} ended as {line['outcome']}: {line.get('reason')}" for line in wrong
    ]


def _finish(victim: LiveVictim, expected: dict[int, float]) -> list[str]:
    wait_until(lambda: not victim.alive, 2 * PATIENCE_SECONDS)
    if victim.exit_code != 0:
        return [f"the study did not end well: exit code {victim.exit_code}, {victim.error()[-400:]}"]
    problems = _windows(victim) + _record(victim.runs, expected)
    state = journal.load(victim.journal)
    problems += [f"trial {trial.number} is open" for trial in state.under_way]
    folder = victim.journal.parent
    problems += [
        f"a controller is left: {path.name}" for path in (folder / controllers.CONTROLLERS).glob("*.json")
    ]
    with (folder / STARTING).open("r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            problems.append("somebody still holds the lock of who starts a run")
    return problems + [f"left behind: {words}" for words in victim.left_behind()]


def _record(runs: list[Path], expected: dict[int, float]) -> list[str]:
    """Each step once, and with the loss that it has in a run that nobody touched."""
    problems, final, end = list[str](), dict[int, float](), 0
    for run in runs:
        found = steps_of(run).steps.tolist()
        if len(set(found)) != len(found):
            problems.append(f"{run.name} has steps twice")
        if found and (found != list(range(found[0], found[0] + len(found))) or found[0] > end):
            problems.append(
                f"{run.name} has a gap: {found[0]} to {found[-1]}, {len(found)} steps, after {end}"
            )
        own = losses(run)
        final = {step: loss for step, loss in final.items() if not found or step < found[0]} | own
        end = max(final, default=-1) + 1
    if sorted(final) != sorted(expected):
        problems.append(f"{len(final)} steps in the end, not {len(expected)}")
    off = {step: abs(loss / expected[step] - 1) for step, loss in final.items() if step in expected}
    worst = max(off, key=lambda step: off[step], default=None)
    if worst is not None and not off[worst] <= TOLERANCE:
        problems.append(f"the loss of step {worst} is off by {off[worst]:.2e}")
    return problems


def _windows(victim: LiveVictim) -> list[str]:
    """What was judged is what the run recorded of steps that nothing disturbed: all of them, under the values of the
    window.
    """
    problems = []
    for trial in journal.load(victim.journal).trials:
        if trial.outcome != "completed" or trial.value is None or trial.run is None:
            continue
        folder = victim.home / trial.run
        window = (run_folder.read_json(folder / run_folder.STATUS) or {}).get("window") or {}
        run, first, end = victim.home / str(window.get("run")), window.get("first"), window.get("end")
        steps = steps_of(run)
        inside = steps.select_range(first, end)
        if len(inside.steps) != end - first:
            problems.append(f"trial {trial.number} was judged by {len(inside.steps)} of {end - first} steps")
            continue
        tokens = 8 * 32 / wall_seconds(inside)[window.get("settling") or 0 :].mean()
        if abs(trial.value / tokens - 1) > 1e-6:
            problems.append(
                f"trial {trial.number} has {trial.value:.1f} tokens/s, its steps say {tokens:.1f}"
            )
        changes = change_rows(RunRecords(run / run_folder.RECORDS))
        turned = [row.key for row in changes if first < row.step < end]
        if turned:
            problems.append(f"trial {trial.number} was judged though {turned} changed within its window")
        problems += _held(folder, run, trial, first)
    return problems


def _held(folder: Path, run: Path, trial: Any, first: int) -> list[str]:
    """The values that a run had at a step are those of the trial."""
    try:
        now = run_config.load(
            run / run_folder.STARTED if (run / run_folder.STARTED).exists() else run / run_folder.CONFIG
        )
    except InputError as problem:
        return [str(problem)]
    values = now.flat()
    for row in change_rows(RunRecords(run / run_folder.RECORDS)):
        values |= {row.key: row.new} if row.step <= first else {}
    wrong = {
        key: values.get(key)
        for key, value in trial.config.items()
        if key in ("batch.micro_batch", "memory.recompute", "overlap.bucket_mb") and values.get(key) != value
    }
    return [f"trial {trial.number} ran with {wrong}"] if wrong else []
