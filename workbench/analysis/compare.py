"""Two to eight runs side by side: what differs in their configurations and in what they measured; is it real?

A trial stands for its run. Times are for as many tokens as the first run has in a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.config.errors import InputError
from engine.config.formulas.batch_ramp import BATCH
from engine.run import run_folder
from profilers.model.run_summary import RunSummary
from profilers.records.schema import PHASES
from tuning.analysis import comparison, paired_comparison
from tuning.analysis.measures import measure
from tuning.report.study_result import ArmRow, StudyResult
from tuning.spec.objectives import Aim
from tuning.storage.study_folder import STUDIES
from workbench.analysis.quality import values_of
from workbench.analysis.studies import best_run, document
from workbench.home.notes import annotations_of
from workbench.home.resolve import Target, resolve
from workbench.home.runs import RunView
from workbench.records import archive

FEWEST, MOST = 2, 8
#: A trial of a study, as ``STUDY:NUMBER``.
TRIAL_MARK = ":"
#: What decides how much work a token is: rates of runs that differ here do not compare.
_WORK = ("model.", "data.sequence_length")
_SEED = 0


@dataclass(frozen=True, slots=True)
class Side:
    """One run. ``factor`` makes its seconds and bytes a step those for the first run's tokens; 1 where nobody told the
    tokens of one of them.
    """

    id: str
    study: str | None
    trial: str | None
    state: str
    layout: dict[str, int]
    ranks: int | None
    tokens_per_step: int | None
    factor: float | None
    measured_steps: int
    tokens_per_second: float | None
    low: float | None
    high: float | None
    step_seconds: float | None
    peak_memory_bytes: int | None
    wire_bytes_per_step: float | None
    mfu: float | None
    last_loss: float | None
    validation_loss: float | None
    note: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A key of the configuration whose values are not all the same."""

    key: str
    values: list[Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A part of a step in seconds of each run; None where it has none or was not recorded."""

    name: str
    seconds: list[float | None]


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One operation on one axis, in each run: seconds and bytes of a rank."""

    operation: str
    axis: str
    seconds: list[float | None]
    exposed_seconds: list[float | None]
    bytes: list[float | None]


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The loss after each step, beside the tokens and the seconds since the run's first step until then."""

    run: str
    steps: list[int]
    #: None of a job whose tokens nobody told.
    tokens: list[int | None]
    #: None where the records of its steps are gone.
    seconds: list[float | None]
    losses: list[float | None]


@dataclass(frozen=True, slots=True)
class Pair:
    """How a run's rate stands to the first one's. ``how``: rounds (measured in turns), steps (of one run each), or
    nothing. ``line`` says it in a sentence.
    """

    run: str
    beside: str
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str
    how: str
    rounds: int = 0
    line: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it, run by run in the order that was asked for."""

    runs: list[Side]
    differences: list[Difference]
    same_keys: int
    phases: list[Row]
    collectives: list[CollectiveRow]
    pairs: list[Pair]
    losses: list[LossCurve]
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values; loss curves are in ``show`` of each run, and left out."""
        plain = asdict(self)
        plain.pop("losses")
        return plain


def find_runs(home: Path, texts: Sequence[str]) -> list[Target]:
    """The runs that these name: runs, trials as STUDY:NUMBER, or studies for their best runs.

    Raises:
        InputError: fewer than two or more than eight, one twice, or one that is not there.
    """
    if not FEWEST <= len(texts) <= MOST:
        raise InputError("ids", " ".join(texts), f"takes {FEWEST} to {MOST} runs or trials")
    targets = [run_of(home, text) for text in texts]
    repeated_id = next((target.id for place, target in enumerate(targets) if target in targets[:place]), None)
    if repeated_id is not None:
        raise InputError("ids", repeated_id, "is named twice; give each run once")
    return targets


def run_of(home: Path, text: str) -> Target:
    """The run that a run's, a study's or a trial's name means.

    Raises:
        InputError: there is none.
    """
    study, mark, number = text.partition(TRIAL_MARK)
    if not mark:
        return best_run(home, resolve(home, text))
    target = resolve(home, study)
    if target.kind != "study" or not number.isdecimal():
        raise InputError("ids", text, f"is no trial; give a study and a number, as STUDY{TRIAL_MARK}3")
    result = document(target.folder).result
    run = next((row.run for row in result.trials if row.number == int(number)), None)
    if run is None:
        raise InputError("ids", text, f"{target.id} has no run of a trial {number}")
    return resolve(home, run)


def compare(home: Path, views: Sequence[RunView]) -> Comparison:
    """Runs with what they measured (:func:`workbench.home.runs.add_numbers_so_far`), the first one as the measure."""
    values = [values_of(view.folder) for view in views]
    keys = dict.fromkeys(key for value in values for key in value)
    differing_keys = [key for key in keys if any(value.get(key) != values[0].get(key) for value in values)]
    sides = [_side(view, views[0]) for view in views]
    return Comparison(
        runs=sides,
        differences=[Difference(key, [value.get(key) for value in values]) for key in differing_keys],
        same_keys=len(keys) - len(differing_keys),
        phases=_phases(views, sides),
        collectives=_collectives(views, sides),
        pairs=[_pair(home, views[0], view) for view in views[1:]],
        losses=[_losses(view) for view in views if view.summary is not None],
        notes=list(_notes(views, differing_keys)),
    )


def _side(view: RunView, first: RunView) -> Side:
    summary = view.summary
    tokens, bounds = (
        (summary.tokens_per_step, summary.tokens_per_second_interval) if summary else (None, None)
    )
    wanted = first.summary.tokens_per_step if first.summary else None
    losses = [loss for loss in summary.losses if loss is not None] if summary else []
    annotations = annotations_of(view.folder)
    return Side(
        id=view.id,
        study=view.labels.get("study"),
        trial=view.labels.get("trial"),
        state=view.outcome or view.state,
        layout=view.layout,
        ranks=summary.world_size if summary else view.status.world_size,
        tokens_per_step=tokens,
        factor=None if summary is None else wanted / tokens if wanted and tokens else 1.0,
        measured_steps=summary.measured_steps if summary else 0,
        tokens_per_second=summary.tokens_per_second if summary else None,
        low=bounds.low if bounds else None,
        high=bounds.high if bounds else None,
        step_seconds=summary.step_seconds.mean if summary and summary.step_seconds else None,
        peak_memory_bytes=summary.peak_memory_bytes if summary else None,
        wire_bytes_per_step=summary.wire_bytes_per_step if summary else None,
        mfu=summary.mfu if summary else None,
        last_loss=losses[-1] if losses else None,
        validation_loss=summary.validation_loss if summary else None,
        note=annotations.note,
        tags=annotations.tags,
    )


def _scale(value: float | None, side: Side) -> float | None:
    return None if value is None or side.factor is None else value * side.factor


def _phases(views: Sequence[RunView], sides: Sequence[Side]) -> list[Row]:
    """The seven phases and what passes between two steps: together the mean step."""
    parts = [
        view.summary.phases | {"between": view.summary.between_seconds or 0.0} if view.summary else {}
        for view in views
    ]
    rows = [
        Row(name, [_scale(part.get(name), side) for part, side in zip(parts, sides, strict=True)])
        for name in (*PHASES, "between")
    ]
    return [row for row in rows if any(row.seconds)]


def _collectives(views: Sequence[RunView], sides: Sequence[Side]) -> list[CollectiveRow]:
    """The longest first, by the run in which it is longest."""
    rows_of_sides = [
        {(row.operation, row.axis): row for row in view.summary.communication} if view.summary else {}
        for view in views
    ]
    rows = []
    for operation, axis in dict.fromkeys(key for rows_by_key in rows_of_sides for key in rows_by_key):
        rows_of_key = [rows_by_key.get((operation, axis)) for rows_by_key in rows_of_sides]
        seconds, exposed, size = (
            [
                _scale(getattr(row, name) if row else None, side)
                for row, side in zip(rows_of_key, sides, strict=True)
            ]
            for name in ("seconds", "exposed_seconds", "bytes")
        )
        rows.append(CollectiveRow(operation, axis, seconds, exposed, size))
    return sorted(
        rows, key=lambda row: -max((value or 0.0) for value in (*row.seconds, *row.exposed_seconds))
    )


def _losses(view: RunView) -> LossCurve:
    summary = view.summary or RunSummary(view.id, {}, 0, "", 0, 0)
    steps = [summary.first_step + place for place in range(len(summary.losses))]
    ended = _ends(view)
    tokens = _tokens(summary, steps)
    return LossCurve(view.id, steps, tokens, [ended.get(step) for step in steps], list(summary.losses))


def _tokens(summary: RunSummary, steps: Sequence[int]) -> list[int | None]:
    """Tokens up to the end of each step; those of the last one tell how many a sequence has where the batch grew."""
    changes = {row.step: row for row in summary.changes if row.key == BATCH}
    size, tokens = summary.tokens_per_step, list[int | None]()
    if size is None:
        return [None] * len(steps)
    last = list(changes.values())[-1].new if changes else 1
    batch = next(iter(changes.values())).old if changes else 1
    tokens_before = (steps[0] if steps else 0) * batch
    for step in steps:
        batch = changes[step].new if step in changes else batch
        tokens_before += batch
        tokens.append(tokens_before * size // last)
    return tokens


def _ends(view: RunView) -> dict[int, float]:
    """When each step of the first rank was over, in seconds since its first one began."""
    table = archive.records(view.folder / run_folder.RECORDS).table(0, "step")
    if not len(table):
        return {}
    starts, seconds = (np.asarray(table.column(name), float) for name in ("start_unix", "step_seconds"))
    return dict(zip(map(int, table.column("step")), map(float, starts + seconds - starts[0]), strict=True))


def _pair(home: Path, first: RunView, other: RunView) -> Pair:
    rounds = _in_turns(home, first, other)
    return rounds if rounds is not None else _by_steps(first, other)


def _by_steps(first: RunView, other: RunView) -> Pair:
    """From the rounds of one run each: what changes from one run to the next is not in this interval."""
    measured = [measure(view.summary, Aim()) if view.summary else None for view in (other, first)]
    if measured[0] is None or measured[1] is None or not (measured[0].samples and measured[1].samples):
        missing = " and ".join(
            view.id for view, value in zip((other, first), measured, strict=True) if not value
        )
        line = f"{missing or other.id} measured no rate yet"
        return Pair(other.id, first.id, None, None, None, "undecided", "nothing", 0, line)
    compared = comparison.compare(measured[0].samples, measured[1].samples, _SEED)
    ratio = compared.ratio
    return Pair(other.id, first.id, ratio.value, ratio.low, ratio.high, compared.verdict, "steps")


def _in_turns(home: Path, first: RunView, other: RunView) -> Pair | None:
    """From the rounds in which a study measured both again, one after the other; None if it did not."""
    study = first.labels.get("study")
    folder = home / STUDIES / (study or "")
    if not study or study != other.labels.get("study") or not folder.is_dir():
        return None
    result = document(folder).result
    arms = [_arm(result, view.id) for view in (other, first)]
    if result.aim.name != Aim().name or None in arms or arms[0] is arms[1]:
        return None
    logs = [
        {row.round: math.log(row.value) for row in arm.rounds if row.value and row.round is not None}
        for arm in arms
        if arm is not None
    ]
    settings = result.confirmation_rounds
    if settings is None:
        return None
    lead = paired_comparison.lead(logs[0], logs[1], settings.error)
    if lead.rounds < 2:
        return None
    verdict = lead.verdict(settings.equal_within or 0.0)
    return Pair(other.id, first.id, *lead.interval, verdict, "rounds", lead.rounds)


def _arm(result: StudyResult, run: str) -> ArmRow | None:
    """The configuration that was measured again, of which this is one run: of the search, or of a round."""
    trial = next((row.number for row in result.trials if row.run == run), None)
    arms = result.confirmation_rounds.arms if result.confirmation_rounds else []
    return next((arm for arm in arms if arm.trial == trial or run in [row.run for row in arm.rounds]), None)


def _notes(views: Sequence[RunView], differing_keys: Sequence[str]) -> list[str]:
    notes = []
    work = [key for key in differing_keys if key.startswith(_WORK)]
    if work:
        notes.append(f"a token is not the same work in all of them: {', '.join(work)} differ")
    tokens = {view.summary.tokens_per_step for view in views if view.summary}
    if None in tokens:
        notes.append("tokens are not known of all of them: times and bytes are of a step of each")
    elif len(tokens) > 1:
        notes.append("steps have different numbers of tokens: times and bytes are for the first run's")
    if running_ids := [view.id for view in views if view.state != "ended"]:
        notes.append(f"still going, numbers so far: {', '.join(running_ids)}")
    machines = {(view.status.fingerprint or {}).get("id") for view in views} - {None}
    if len(machines) > 1:
        notes.append("they ran on different machines")
    return notes
