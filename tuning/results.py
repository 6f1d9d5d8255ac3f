"""The result of a study: the numbers that others rely on, made from its state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profilers.statistics import Interval
from tuning import course, ranking, wording
from tuning.confidence import Comparison, compare
from tuning.ranking import Standing
from tuning.state import StudyState, Trial
from tuning.studyfile import StudyFile

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gain:
    """How much faster than the baseline. ``confirmed``: both were measured again, so run-to-run noise counts."""

    ratio: float
    low: float | None
    high: float | None
    verdict: str
    confirmed: bool

    def as_dict(self) -> Document:
        """Plain values."""
        names = ("ratio", "low", "high", "verdict", "confirmed")
        return {name: getattr(self, name) for name in names}


def result(state: StudyState, file: StudyFile, study_state: str = "ended") -> Document:
    """The document of a study: ``result.json``, ``tune --json`` and ``show``."""
    stands = ranking.standing(state, file)
    compared = _compare(state, file, stands)
    gain = _gain(stands, compared)
    baseline, best = (compared.baseline, compared.better) if compared else (None, None)
    if stands.best and stands.baseline and stands.best.config == stands.baseline.config:
        best = baseline
    document: Document = {
        "study": file.name,
        "objective": file.objective,
        "target_loss": file.target_loss,
        "ranks": file.ranks,
        "state": study_state,
        "best": _entry(stands.best, file, best),
        "baseline": _entry(stands.baseline, file, baseline),
        "gain": gain.as_dict() if gain else None,
        "recommended": _recommended(stands, gain, file),
        "trials": [
            _row(trial, file) | _guard(trial, stands, file)
            for trial in state.trials
            if trial.confirms is None
        ],
        "confirmations": [_row(trial, file) for trial in state.trials if trial.confirms is not None],
        "trials_done": len(ranking.counted(state)),
        "trials_total": file.trials,
        "best_exact": _entry(stands.best_exact, file, None),
        "fastest_lossy": _lossy(stands, file),
        "runner_up": _entry(stands.runner_up, file, None),
        "loss_guard": file.guard.model_dump() | {"steps": file.config.train.steps},
        "baseline_note": file.search_space.baseline[1],
        "space_note": file.space_note,
        "skipped_illegal": sum(trial.skipped_illegal for trial in state.trials),
        "damage": list(state.damage),
    } | course.document(state, file)
    return document | {"result_line": wording.result_line(document, state)}


def _compare(state: StudyState, file: StudyFile, stands: Standing) -> Comparison | None:
    """Best against baseline; against itself for the best's own interval when there is no other."""
    if stands.best is None or stands.baseline is None:
        return None
    if stands.best.config == stands.baseline.config:
        same = _runs(state, stands.baseline)
        return compare(same, same, file.seed)
    again = [trial.samples for trial in ranking.confirmations(state, stands.best) if trial.value is not None]
    baseline = _runs(state, stands.baseline)
    if again:
        return compare(again, baseline, file.seed, spread=[stands.best.samples])
    return compare([stands.best.samples], baseline, file.seed)


def _runs(state: StudyState, trial: Trial) -> list[tuple[float, ...]]:
    again = [other.samples for other in ranking.confirmations(state, trial) if other.value is not None]
    return [trial.samples, *again]


def _gain(stands: Standing, compared: Comparison | None) -> Gain | None:
    if compared is None or stands.best is None or stands.baseline is None:
        return None
    if stands.best.config == stands.baseline.config:
        return Gain(1.0, 1.0, 1.0, "tie", confirmed=True)
    ratio = compared.ratio
    return Gain(ratio.value, ratio.low, ratio.high, compared.verdict, compared.repeated)


def _entry(trial: Trial | None, file: StudyFile, interval: Interval | None) -> Document | None:
    if trial is None:
        return None
    value, low, high = interval or (trial.value, trial.low, trial.high)
    return {
        "trial": trial.number,
        "run": trial.run,
        "config": trial.config,
        "value": value,
        "low": low,
        "high": high,
        "label": file.search_space.label(trial.config),
        "validation_loss": trial.validation_loss,
    }


def _recommended(stands: Standing, gain: Gain | None, file: StudyFile) -> Document | None:
    """What to use: the best if its gain is real, else the baseline, which is simpler."""
    if stands.best is None:
        return None
    real = gain is None or gain.verdict == "better"
    chosen = stands.best if real else stands.baseline
    entry = _entry(chosen, file, None)
    why = "the fastest" if real else "nothing was shown to be faster, and it is the simplest"
    return entry | {"why": why} if entry else None


def _lossy(stands: Standing, file: StudyFile) -> Document | None:
    entry = _entry(stands.fastest_lossy, file, None)
    if entry is None or stands.fastest_lossy is None:
        return None
    judged = ranking.judged(stands.fastest_lossy, stands.baseline, file)
    guard = {"state": judged.state, "reason": judged.reason, "violation": judged.violation}
    faster = stands.best_exact is None or (entry["value"] or 0) > (stands.best_exact.value or 0)
    return entry | {"guard": guard, "faster_than_best_exact": faster}


def _guard(trial: Trial, stands: Standing, file: StudyFile) -> Document:
    """What the loss guard says about a trial that ended well."""
    judged = ranking.judged(trial, stands.baseline, file) if trial.outcome == "completed" else None
    return {"guard": None if judged is None else {"state": judged.state, "reason": judged.reason}}


def _row(trial: Trial, file: StudyFile) -> Document:
    copied = ("number", "run", "reason", "config", "value", "low", "high", "seconds", "source", "attempt", "retry_of",
              "confirms", "why", "rank", "phase", "validation_loss", "constraints", "steps")  # fmt: skip
    row = {name: getattr(trial, name) for name in copied}
    space = file.search_space
    label = space.remember("label", trial.config, space.label)
    return row | {"outcome": trial.outcome or "running", "label": label}
