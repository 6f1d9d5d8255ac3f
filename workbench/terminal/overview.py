"""What goes on in a home: sentences for the page and the terminal, and what the terminal prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuning.spec.objectives import text
from workbench.analysis.overview import CurrentRun, CurrentStudy, Overview
from workbench.text import words

if TYPE_CHECKING:
    from rich.console import Console

_TRIED = "{done} of {total} configurations tried"


def headline(overview: Overview) -> str:
    """What runs now, in a sentence."""
    studies, run_count = len(overview.studies), len(overview.runs)
    if not studies and not run_count:
        return "Nothing is running." if overview.run_count else "Nothing has run here yet."
    parts = ["a study" if studies == 1 else f"{studies} studies"] if studies else []
    parts += ["a run" if run_count == 1 else f"{run_count} runs"] if run_count else []
    text = f"{' and '.join(parts)} {'is' if studies + run_count == 1 else 'are'} running."
    return text[:1].upper() + text[1:]


def counts(overview: Overview) -> str:
    """How much there is."""
    studies = "1 study" if overview.study_count == 1 else f"{overview.study_count:,} studies"
    return f"{words.several(overview.run_count, 'runs')} and {studies} in {overview.home}"


def study_progress(study: CurrentStudy) -> str:
    """How far a study is, and how long the rest will take."""
    progress_text = _TRIED.format(done=study.trials_done, total=study.trials_total)
    if study.state != "running":
        return f"{progress_text}; {words.ending_words(study.state)}"
    if study.phase == "confirm":
        return f"{progress_text}; now the best are measured again, to be sure"
    if study.seconds_left is None:
        return f"{progress_text}; how long it takes can be told after the first one"
    after = ", then the best are measured again" if study.repeats else ""
    return f"{progress_text}; {words.estimate(study.seconds_left)} for the rest{after}"


def leader(study: CurrentStudy) -> str:
    """Who leads, with its value."""
    if study.leader is None:
        return "nothing measured yet"
    so_far = " so far" if study.state == "running" else ""
    return f"best{so_far}: {study.leader}, {text(study.leader_value)} {study.unit}"


def current_trial_text(study: CurrentStudy) -> str:
    """What is measured now; empty while nothing is."""
    parts = [f"trial {trial.number}: {trial.label or 'its values are being chosen'}" for trial in study.now]
    return "; ".join(parts)


def run(current: CurrentRun) -> str:
    """How far a run is."""
    total_text = f" of {current.steps:,}" if current.steps else ""
    remaining = "" if current.seconds_left is None else f", {words.estimate(current.seconds_left)} left"
    return f"{words.layout(current.layout)}: step {current.step:,}{total_text}{remaining}"


def print_overview(console: Console, overview: Overview) -> None:
    """The page Start in lines."""
    lines = [headline(overview)]
    for study in [*overview.studies, *([overview.last] if overview.last else [])]:
        lines.append(f"{study.name}: {study_progress(study)}")
        lines.append(f"  {leader(study)}" + (f"; {study.gain_line}" if study.gain_line else ""))
        if trial_text := current_trial_text(study):
            lines.append(f"  now {trial_text}")
    lines += [f"{current.id}: {run(current)}" for current in overview.runs]
    lines += [f"problem: {problem.text}; {problem.remedy}" for problem in overview.problems]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
