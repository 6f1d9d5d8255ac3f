"""What mattered in a study, as one document: each part with how many trials it stands on, or why it is not known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tuning.analysis import confirmation
from tuning.sensitivity import data, job, outcomes
from tuning.sensitivity.effects import KnobRow, Neighbour, dependence, neighbours
from tuning.sensitivity.job import NAMES, missing_package
from tuning.sensitivity.outcomes import AnalysisResult, Fanova, Importance, PredictedNeighbour, Shap
from tuning.space.points import Point
from tuning.spec.objectives import Aim, find_aim
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState
from tuning.storage.study_folder import StudyView

Outcome = TypeVar("Outcome", bound=Fanova | Shap)
#: From this chance on a predicted neighbour is said to be likely to fail.
RISKY = 0.2


@dataclass(frozen=True, slots=True)
class Winner:
    """The best trial so far, with its value in the search: what neighbours' values are compared with."""

    trial: int
    label: str
    value: float | None
    config: Point


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What ``sensitivity --json`` prints, with keys in this order. ``reason``: why nothing else is known.

    ``trials`` ended, of which ``measured`` have a value and ``failed`` failed because of their configuration.
    """

    study: str
    trials: int
    reason: str = ""
    objective: str = ""
    target_loss: float | None = None
    measured: int = 0
    failed: int = 0
    importance: Importance = field(default_factory=Importance)
    fanova: AnalysisResult[Fanova] = field(default_factory=AnalysisResult)
    shap: AnalysisResult[Shap] = field(default_factory=AnalysisResult)
    dependence: list[KnobRow] = field(default_factory=list)
    winner: Winner | None = None
    neighbours: list[Neighbour] = field(default_factory=list)

    @property
    def aim(self) -> Aim:
        """What decides the study."""
        return find_aim(self.objective, self.target_loss)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and None, ready for JSON."""
        answers = {"fanova": self.fanova.as_dict(), "shap": self.shap.as_dict()}
        return outcomes.plain(replace(self, fanova=AnalysisResult(), shap=AnalysisResult())) | answers


def document(view: StudyView, importance: Importance | None = None) -> Sensitivity:
    """Of a study as its folder shows it. ``importance``: PED-ANOVA's, by default that of the result kept last.

    fANOVA and SHAP are what was worked out before.
    """
    state, file = view.journal, view.file
    trials = data.ended_trials(state)
    if file is None:
        return Sensitivity(view.name, trials, "the study's file cannot be read by this version")
    shap = _newest(view.folder, Shap, trials)
    return Sensitivity(
        study=view.name,
        trials=trials,
        objective=file.objective,
        target_loss=file.target_loss,
        measured=len(data.measured_trials(state)),
        failed=sum(1 for _, bad in data.judged_trials(state) if bad),
        importance=importance or outcomes.importance_of(view.result) or _LATER,
        fanova=_newest(view.folder, Fanova, trials),
        shap=shap,
        dependence=_dependence(state, file, shap),
        winner=_winner(state, file),
        neighbours=_neighbours(state, file, shap),
    )


_LATER = Importance(None, "PED-ANOVA is worked out when a trial ends")


def _newest(folder: Path, kind: type[Outcome], trials: int) -> AnalysisResult[Outcome]:
    """The newest outcome with what makes it old, if anything; without one, how to get it."""
    stored = job.newest(folder, kind, trials)
    if stored is None:
        method = kind.method
        ask = f"is worked out when asked for: workbench sensitivity {folder.name} --method {method}"
        return AnalysisResult(reason=f"{NAMES[method]} {missing_package(method) or ask}")
    notes = []
    if stored.of_trials < trials:
        notes.append(f"of the first {stored.of_trials} of {trials} trials")
    if isinstance(stored.outcome, Fanova) and not stored.outcome.complete:
        notes.append(f"stopped after {stored.outcome.trees} trees")
    return AnalysisResult(stored, note="; ".join(notes))


def _dependence(state: StudyState, file: StudyFile, shap: AnalysisResult[Shap]) -> list[KnobRow]:
    """What was measured at each value, and beside it what the model predicts for the same trials moved there."""
    predicted = {
        (row.key, str(value_row.value)): value_row.mean
        for row in (shap.outcome.dependence if shap.outcome else ())
        for value_row in row.values
    }
    return [
        replace(
            row,
            values=[
                replace(value_row, predicted=predicted.get((row.key, str(value_row.value))))
                for value_row in row.values
            ],
        )
        for row in dependence(state, file.search_space)
    ]


def _winner(state: StudyState, file: StudyFile) -> Winner | None:
    best = confirmation.winner(state, file)
    if best is None:
        return None
    return Winner(best.number, file.search_space.label(best.config), best.value, best.config)


def _neighbours(state: StudyState, file: StudyFile, shap: AnalysisResult[Shap]) -> list[Neighbour]:
    """Neighbours that were not measured take the model's word, where its winner is still the winner."""
    best, shap_values = _winner(state, file), shap.outcome
    holds = shap_values is not None and best is not None and shap_values.winner == best.trial
    predicted = shap_values.neighbours if shap_values and holds else ()
    words = {(row.key, str(row.value)): row for row in predicted}
    rows = [
        _with_word(neighbour, words.get((neighbour.key, str(neighbour.value))), shap)
        for neighbour in neighbours(state, file)
    ]
    return sorted(rows, key=lambda row: row.place)


def _with_word(
    neighbour: Neighbour, word: PredictedNeighbour | None, shap: AnalysisResult[Shap]
) -> Neighbour:
    if neighbour.stands != "unknown":
        return neighbour
    if word is None:
        return replace(neighbour, reason=_no_word(shap.outcome))
    chance = word.failure_chance
    return replace(
        neighbour,
        stands="predicted",
        reason="" if chance is None or chance < RISKY else f"likely to fail ({chance:.0%})",
        loss_percent=word.loss_percent,
        low_percent=word.low_percent,
        high_percent=word.high_percent,
    )


def _no_word(shap: Shap | None) -> str:
    if shap is None:
        return "SHAP's model may predict it"
    if shap.value.knobs is None:
        return "the model is not good enough to predict it"
    return "the model knew another winner, or has not seen this value"
