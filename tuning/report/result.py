"""The result of a study, made from its state: trials, best, recommendation, constraints, pareto front. Pure.

``confirmation_rounds`` holds the values of each arm, the tie-break, and conditions that differed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from engine.run.outcome import GOOD
from profilers.analysis.statistics import Interval
from tuning.analysis import conditions, confirmation, leaderboard
from tuning.analysis.comparison import Comparison, compare, compare_single
from tuning.analysis.confirmation import Arm, Confirmed, Decision, decide, memory_of
from tuning.analysis.leaderboard import Standing
from tuning.report import failures, summary_line
from tuning.search import budgets
from tuning.space import labels
from tuning.spec.objectives import Aim
from tuning.spec.study_file import StudyFile
from tuning.storage import controllers, effective_config
from tuning.storage.controllers import HELD
from tuning.storage.state import StudyState, Trial

Document = dict[str, Any]


def confirmation_rounds(found: Confirmed, decision: Decision, file: StudyFile) -> Document:
    """``confirmation_rounds`` of a study's document."""
    return {
        "arms": [_arm(arm, found, file) for arm in found.arms],
        "beside": found.baseline.trial.number,
        "order": [number for _, number in _order(found)],
        "winner": found.fastest.trial.number,
        "tied": [arm.trial.number for arm in found.tied],
        "recommended": decision.arm.trial.number,
        "decided_by": decision.rule,
        "why": decision.why,
        "flags": condition_flags(found),
    }


def condition_flags(found: Confirmed) -> list[str]:
    """Where arms ran under different conditions: what is claimed of them wants another look."""
    pairs = combinations(found.arms, 2)
    shown = [pair for pair in pairs if found.fastest in pair or found.baseline in pair]
    return [line for one, other in shown for line in _different(one, other)]


def _different(one: Arm, other: Arm) -> list[str]:
    names = (f"trial {one.trial.number}", f"trial {other.trial.number}")
    return conditions.differences(_known(one), _known(other), names)


def _known(arm: Arm) -> list[dict[str, float]]:
    return [run.conditions for run in arm.again]


def _order(found: Confirmed) -> list[tuple[int, int]]:
    return sorted((run.number, arm.trial.number) for arm in found.arms for run in arm.again)


def _arm(arm: Arm, found: Confirmed, file: StudyFile) -> Document:
    ratio = found.between(arm, found.baseline).ratio
    same = arm is found.baseline
    return {
        "trial": arm.trial.number,
        "label": file.search_space.label(arm.trial.config),
        "is_baseline": same and found.plain,
        "searched_value": arm.trial.value,
        "rounds": [_run(run) for run in arm.again],
        "ratio": 1.0 if same else ratio.value,
        "low": 1.0 if same else ratio.low,
        "high": 1.0 if same else ratio.high,
        "peak_memory_bytes": memory_of(arm),
        "complexity": labels.complexity(file.search_space, arm.trial.config),
    }


def _run(run: Trial) -> Document:
    return {"number": run.number, "run": run.run, "value": run.value, "conditions": run.conditions}


def asked_terms(file: StudyFile) -> Document:
    """All objectives, the price of a rank, the model that a study is played on, and the constraints."""
    return {
        "objectives": [aim.name for aim in file.aims],
        "price": file.price.model_dump() if file.price else None,
        "simulate": file.simulate.cluster if file.simulate else None,
        "constraints": file.constraints.given() if file.constraints else {},
    }


def shown(value: float | None, low: float | None, high: float | None, aim: Aim) -> Document:
    """A kept value as people see it."""
    ends = aim.bounds(low, high)
    return {"value": aim.shown(value), "low": ends[0], "high": ends[1], "unit": aim.unit}


def limits(state: StudyState, trial: Trial, file: StudyFile) -> Document:
    """The constraints beside a trial that has a value, over all of its runs."""
    found = leaderboard.limits(state, trial, file) if trial.value is not None else []
    return {"limits": [limit.as_dict() for limit in found]}


def is_kept(state: StudyState, trial: Trial | None, file: StudyFile) -> bool:
    """Whether a trial meets every constraint."""
    return trial is None or leaderboard.keeps(state, trial, file)


def front(state: StudyState, stands: Standing, file: StudyFile) -> Document:
    """The pareto front of a study with several objectives, and what there is to say of it; None without."""
    if not file.objectives:
        return {"pareto": None, "pareto_note": ""}
    names = [aim.name for aim in file.aims]
    points = [
        {
            "trial": trial.number,
            "run": trial.run,
            "config": trial.config,
            "label": file.search_space.label(trial.config),
            "decides": stands.best is not None and trial.number == stands.best.number,
            "objectives": {name: trial.measures[name] for name in names},
        }
        for trial in leaderboard.pareto_front(leaderboard.may_win(state, file), file.aims)
    ]
    return {"pareto": points, "pareto_note": "" if file.turns_work else leaderboard.pareto_note(file.aims)}


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
    stands, found = leaderboard.standing(state, file), confirmation.confirmed(state, file)
    decision = _decided(found, state, file) if found else None
    stands = _with_winner(stands, found) if found else stands
    compared = _compare(state, file, stands, found)
    gain = _gain(stands, compared)
    baseline, best = (compared.baseline, compared.better) if compared else (None, None)
    if stands.best and stands.baseline and stands.best.config == stands.baseline.config:
        best = baseline
    document: Document = {
        "study": file.name,
        "objective": file.objective,
        "target_loss": file.target_loss,
        **asked_terms(file),
        "ranks": file.ranks,
        "state": study_state,
        "best": _entry(stands.best, file, best),
        "baseline": _entry(stands.baseline, file, baseline),
        "gain": gain.as_dict() if gain else None,
        "recommended": _recommended(stands, gain, file, decision, is_kept(state, stands.baseline, file)),
        **_rows(state, stands, file),
        "running": controllers.running_trials(state, file) if study_state in HELD else [],
        "confirmation_rounds": confirmation_rounds(found, decision, file) if found and decision else None,
        "racing": _racing(state, file),
        "trials_done": len(leaderboard.counted(state)),
        "trials_total": file.trials,
        "budget": budgets.document(state, file, study_state),
        **front(state, stands, file),
        **_others(stands, file),
        "loss_guard": file.guard.model_dump() | {"steps": file.config.train.steps},
        "baseline_note": file.search_space.baseline[1],
        "space_note": file.space_note,
        "skipped_illegal": sum(trial.skipped_illegal for trial in state.trials),
        "damage": list(state.damage),
        "failures": failures.board(state, file),
    } | effective_config.document(state, file)
    return document | {"result_line": summary_line.result_line(document, state)}


def _rows(state: StudyState, stands: Standing, file: StudyFile) -> Document:
    """All trials, those that measured one again apart."""
    yardstick = stands.baseline and (stands.baseline.number, stands.baseline.validation_loss)
    known = state.cache("row", (file, yardstick))
    for trial in state.trials:
        if trial.number not in known:
            known[trial.number] = _whole_row(state, trial, stands, file)
    return {
        "trials": [dict(known[trial.number]) for trial in state.trials if trial.confirms is None],
        "confirmations": [dict(known[trial.number]) for trial in state.trials if trial.confirms is not None],
    }


def _whole_row(state: StudyState, trial: Trial, stands: Standing, file: StudyFile) -> Document:
    row = _row(trial, file)
    if trial.confirms is not None:
        return row
    return row | _guard(trial, stands, file) | limits(state, trial, file)


def _others(stands: Standing, file: StudyFile) -> Document:
    """The best of their kind."""
    return {
        "best_exact": _entry(stands.best_exact, file, None),
        "fastest_lossy": _lossy(stands, file),
        "runner_up": _entry(stands.runner_up, file, None),
    }


def _decided(found: Confirmed, state: StudyState, file: StudyFile) -> Decision:
    ruled_out = {arm.trial.number for arm in found.arms if not leaderboard.keeps(state, arm.trial, file)}
    return decide(found, file, ruled_out)


def _compare(
    state: StudyState, file: StudyFile, stands: Standing, found: Confirmed | None
) -> Comparison | None:
    """Best against baseline; against itself for the best's own interval when there is no other."""
    if found is not None:
        return found.against(found.baseline)
    if stands.best is None or stands.baseline is None:
        return None
    if stands.best.config == stands.baseline.config:
        same = _runs(state, stands.baseline)
        return compare_single(same, same) if file.aim.objective.single else compare(same, same, file.seed)
    if file.aim.objective.single:
        return compare_single([stands.best.samples], [stands.baseline.samples])
    return compare([stands.best.samples], [stands.baseline.samples], file.seed)


def _runs(state: StudyState, trial: Trial) -> list[tuple[float, ...]]:
    return [trial.samples, *(other.samples for other in leaderboard.repeats(state, trial))]


def _with_winner(stands: Standing, found: Confirmed) -> Standing:
    """The best is who was the fastest when measured again, the runner-up the fastest other one of the search."""
    best = found.fastest.trial
    others = (trial for trial in stands.ranked if trial.config != best.config)
    return replace(stands, best=best, runner_up=next(others, None))


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
        "shown": shown(value, low, high, file.aim),
        "measures": trial.measures,
    }


def _recommended(
    stands: Standing, gain: Gain | None, file: StudyFile, decision: Decision | None, baseline_kept: bool
) -> Document | None:
    """What to use. Without a confirmation: the best if its gain is real, else the baseline, which is simpler."""
    if stands.best is None:
        return None
    if decision is not None:
        entry = _entry(decision.arm.trial, file, None)
        return entry | {"why": decision.why, "decided_by": decision.rule} if entry else None
    real = gain is None or gain.verdict == "better"
    ruled_out = not baseline_kept
    chosen = stands.best if real or ruled_out else stands.baseline
    entry = _entry(chosen, file, None)
    better, most = file.aim.objective.better, file.aim.objective.most
    why = most if real else f"nothing was shown to be {better}, and it is the simplest"
    rule = "speed" if real else "simplicity"
    if ruled_out and not real:
        why, rule = f"{most} of those that meet every constraint", "constraints"
    return entry | {"why": why, "decided_by": rule} if entry else None


def _lossy(stands: Standing, file: StudyFile) -> Document | None:
    entry = _entry(stands.fastest_lossy, file, None)
    if entry is None or stands.fastest_lossy is None:
        return None
    judged = leaderboard.judged(stands.fastest_lossy, stands.baseline, file)
    guard = {"state": judged.state, "reason": judged.reason, "violation": judged.violation}
    faster = stands.best_exact is None or (entry["value"] or 0) > (stands.best_exact.value or 0)
    return entry | {"guard": guard, "faster_than_best_exact": faster}


def _guard(trial: Trial, stands: Standing, file: StudyFile) -> Document:
    """What the loss guard says about a trial that ended well."""
    judged = leaderboard.judged(trial, stands.baseline, file) if trial.outcome in GOOD else None
    return {"guard": None if judged is None else {"state": judged.state, "reason": judged.reason}}


def _racing(state: StudyState, file: StudyFile) -> Document:
    """Trials that ended early, and the share of the search's steps that this spared."""
    asked = file.config.train.steps
    early = [
        trial for trial in leaderboard.measured(state) if trial.outcome == "pruned" or 0 < trial.steps < asked
    ]
    spared = sum(asked - trial.steps for trial in early)
    total = asked * len(leaderboard.measured(state))
    return {
        "pruned": [trial.number for trial in early if trial.outcome == "pruned"],
        "settled": [trial.number for trial in early if trial.outcome == "completed"],
        "steps_spared_fraction": spared / total if total else 0.0,
    }


def _row(trial: Trial, file: StudyFile) -> Document:
    copied = ("number", "run", "reason", "config", "value", "low", "high", "seconds", "source", "attempt", "retry_of",
              "confirms", "why", "rank", "phase", "validation_loss", "constraints", "steps",
              "peak_memory_bytes")  # fmt: skip
    row = {name: getattr(trial, name) for name in (*copied, "measures")}
    row["shown"] = shown(trial.value, trial.low, trial.high, file.aim)
    space = file.search_space
    label = space.remember("label", trial.config, space.label)
    who = controllers.controller_of(trial)
    ended = {"outcome": trial.outcome or "running", "beside": trial.conditions.get("beside", 0.0)}
    return row | ended | {"label": label, "controller": who}
