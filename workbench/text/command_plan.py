"""What a study of a command will run, and the command that it found, in words."""

from __future__ import annotations

from typing import Any

from engine.config.errors import several
from tuning.execution.command.allowance import Allowance
from tuning.spec.study_file import StudyFile
from tuning.spec.trainers.command_input import PREFIX
from tuning.spec.trainers.invocation import FOLDER
from tuning.spec.trainers.tuned_command import TunedCommand, baseline_words


def plan(file: StudyFile) -> dict[str, Any]:
    """The plan of a study of a command, as ``tune --dry-run --json`` prints it."""
    command = _command(file)
    return {
        "study": file.name,
        "trainer": command.kind.name,
        "command": command.today.text,
        "directory": command.directory,
        "ranks": command.today.ranks,
        "objective": file.objective,
        "baseline": file.config.trainer,
        "space": {knob.key: knob.document() for knob in file.knobs},
        "first_trial": command.trial_invocation(file.config.trainer).text,
        "trials": file.trials,
        "steps": file.config.train.steps,
        "warmup": file.config.train.warmup,
        "seconds_each": _seconds_each(file),
        "step_lines": [line.pattern.pattern for line in command.lines],
    }


def plan_lines(file: StudyFile) -> list[str]:
    """The same as lines for people."""
    command, train = _command(file), file.config.train
    ranks = command.today.ranks
    knob_lines = [f"  {knob.key} = {knob}{_today(file, knob.key)}" for knob in file.knobs]
    return [
        f"study {file.name}: {command.kind.title} on {several(ranks, 'ranks')}, aims at {file.objective}",
        f"trial 0, {baseline(file)}: {readable_command(command.trial_invocation(file.config.trainer).text)}",
        f"then at most {several(file.trials - 1, 'others')}, {several(train.steps, 'steps')} each, "
        f"{train.warmup} of them warm-up, which turn:",
        *_time(file),
        *knob_lines,
        "another space: --set 'space.trainer.NAME=[..]'; steps: --set base.train.steps=N; "
        "time: --set budget.wall_seconds=600",
    ]


def baseline(file: StudyFile) -> str:
    """What trial 0 is."""
    assert file.trainer is not None
    return baseline_words(file.trainer.model_dump(mode="json"), file.config.trainer)


def _seconds_each(file: StudyFile) -> float | None:
    """Seconds after which a trial ends that can be judged; None without a budget of time."""
    return None if file.budget_seconds is None else Allowance.from_file(file).share


def _time(file: StudyFile) -> list[str]:
    if file.budget_seconds is None:
        return []
    allowance = Allowance.from_file(file)
    least = several(allowance.least, "steps")
    return [
        f"  in {allowance.total_seconds:g} s: each ends after {allowance.share:.0f} s, but not before {least}"
    ]


def _command(file: StudyFile) -> TunedCommand:
    assert file.command is not None
    return file.command


def readable_command(text: str) -> str:
    """For people: each trial has a folder of its own in its run's."""
    return text.replace(FOLDER, "RUN/trainer")


def _today(file: StudyFile, key: str) -> str:
    name = key.removeprefix(PREFIX)
    when = "today" if _command(file).has(name) is not None else "not in it today, and in trial 0"
    return f", {when} {file.config.trainer[name]}"
