"""What a study does next, decided from its state alone. Pure, so that a restart decides the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.config.knobs.catalogue import facts_of, loses_as_much
from engine.config.knobs.facts import AUTO
from engine.run.outcome import NO_MEMORY, Ending
from tuning.analysis import confirmation, leaderboard, live_comparison
from tuning.analysis.scoring import is_lossy
from tuning.search import phases
from tuning.search.budgets import exhausted_budget, is_spent, no_room_again
from tuning.space.first_tries import Tries, automatic_point, first_tries, fitting_tries
from tuning.space.points import Point, point_key
from tuning.spec.study_file import StudyFile
from tuning.spec.trainers.tuned_command import baseline_words
from tuning.storage import effective_config
from tuning.storage.state import CHECK, StudyState, Trial

#: The last part of the trials, in which what was worked out for the best is taken back, one thing at a time.
TAKES_BACK = 0.4
#: At most this share of the trials goes to lossy settings that this study cannot prove.
UNPROVABLE_SHARE = 0.25
_OF_A_WINDOW = ("confirms", "round", "window")


@dataclass(frozen=True, slots=True)
class Step:
    """The next thing to do: measure a point, ask the sampler for one, wait for other controllers, or nothing more."""

    phase: Literal["baseline", "search", "confirm", "done", "wait"]
    source: str = "sampler"
    point: Point | None = None
    why: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def next_step(
    state: StudyState,
    file: StudyFile,
    exhausted: bool,
    predicted_failures: Callable[[], Collection[str]] = frozenset,
) -> Step:
    """Retries first, then the baseline, points by hand, a few first tries, the sampler, and the confirmation.
    ``predicted_failures`` are keys of points that are predicted to fail.
    """
    failed_trial = next((trial for trial in state.trials if leaderboard.wants_retry(state, trial)), None)
    if failed_trial:
        return _retry(state, failed_trial, file)
    if (check := next(iter(unchecked_leaders(state)), None)) is not None:
        return check
    if (spared := _ended_for_nothing(state, file)) is not None:
        words = "ended early beside one that learns too little, as is known now"
        return Step("search", "retry", spared.config, words, _next_attempt(spared))
    if not any(trial.source == "baseline" for trial in state.trials):
        point, note = file.search_space.baseline
        usual = _baseline_words(file)
        return Step("baseline", "baseline", point, note or f"{usual}, the yardstick")
    if has_search_budget(state, file):
        queued = next(iter(enqueued_points(state)), None)
        if queued:
            return Step("search", "enqueued", queued[1], "added by hand", {"command": queued[0]})
        first = None if state.enough else _first(state, file, predicted_failures)
        if first:
            return first
        if not exhausted and not state.enough:
            return Step("search")
    return _confirmation(state, file)


def _baseline_words(file: StudyFile) -> str:
    if file.trainer is not None:
        return baseline_words(file.trainer.model_dump(mode="json"), file.config.trainer)
    return "plain data parallel" if file.live is None else "what the run begins with"


def has_search_budget(state: StudyState, file: StudyFile) -> bool:
    """Whether every budget allows one more trial beside those that run, leaving what it takes to confirm the best."""
    searching = sum(trial.confirms is None for trial in state.under_way)
    return exhausted_budget(state, file, searching) is None


def enqueued_points(state: StudyState) -> list[tuple[str, Point]]:
    """Points that were accepted by hand and not proposed yet, oldest first."""
    proposed = {trial.command for trial in state.trials}
    accepted = [
        answer for answer in state.answers.values() if answer.accepted and answer.command == "enqueue"
    ]
    return [(answer.id, answer.point) for answer in accepted if answer.id not in proposed and answer.point]


def unchecked_leaders(state: StudyState) -> list[Step]:
    """Checks of a leader's loss that were asked for and not begun yet, oldest first."""
    begun = {trial.command for trial in state.trials}
    unchecked = []
    for answer in state.answers.values():
        if answer.command == "check" and answer.accepted and answer.id not in begun and answer.point:
            changes = answer.changes or {}
            why = f"takes the loss of trial {changes['checks']} again, over {changes['steps']:,} steps"
            details = {"command": answer.id, "confirms": changes["checks"], "window": changes["steps"]}
            unchecked.append(Step("confirm", CHECK, answer.point, why, details))
    return unchecked


def startup_trials(trials: int) -> int:
    """How many trials explore before TPE takes over."""
    return max(3, min(10, trials // 3))


def is_wanted(point: Point, state: StudyState, file: StudyFile) -> bool:
    """Whether a sampled point is worth a trial: lossy ones that cannot be proven here get a small share, and none that
    loses what one of them did which lost too much, or more.
    """
    space = file.search_space
    values = space.base_values | point
    if not is_lossy(values):
        return True
    if any(
        loses_as_much(values, space.base_values | trial.config)
        for trial in leaderboard.forbidden_trials(state, file)
    ):
        return False
    if file.in_time or _usual_steps(state, file) >= file.guard.min_steps:
        return True
    return leaderboard.lossy_points(state, space) < UNPROVABLE_SHARE * file.trials


def _usual_steps(state: StudyState, file: StudyFile) -> int:
    """Those of a trial: where a time ends it, those that the baseline had."""
    if (steps := file.config.train.known_steps) is not None:
        return steps
    baseline = leaderboard.make_leaderboard(state, file).baseline
    return baseline.steps if baseline is not None else 0


def _first(
    state: StudyState, file: StudyFile, predicted_failures: Callable[[], Collection[str]]
) -> Step | None:
    """What is measured before the sampler is asked."""
    return (
        _next_first_try(state, file, predicted_failures)
        or _less_lossy(state, file)
        or _gentlest(state, file)
        or _next_automatic_try(state, file)
    )


def _next_automatic_try(state: StudyState, file: StudyFile) -> Step | None:
    """The best so far with all that can be worked out for it: formulas have that no slower. In the last part of the
    trials it is measured with each of these taken back as well, for what formulas do not know.
    """
    space, best = file.search_space, leaderboard.make_leaderboard(state, file).best
    automatic = automatic_point(space)
    if best is None or not automatic:
        return None
    values = space.base_values | best.config
    twins = [(automatic, "the best so far, with all that can be worked out for it")]
    if len(leaderboard.visited_keys(state, space)) >= (1 - TAKES_BACK) * file.trials:
        twins += [
            ({key: other}, f"the best so far, but {facts_of(key).title.lower()} not as worked out")
            for key in automatic
            if values[key] == AUTO
            for other in space.by_key[key].choices
            if other != AUTO
        ]
    visited, open_now = leaderboard.visited_keys(state, space), effective_config.build_mask(state, space)
    for changed, why in twins:
        point = space.point(values | changed)
        unknown = point_key(point) not in visited and open_now.allows(point, space)
        if unknown and not space.why_outside(point) and not space.problem(point):
            return Step("search", "sampler", point, why)
    return None


def _next_first_try(
    state: StudyState, file: StudyFile, predicted_failures: Callable[[], Collection[str]]
) -> Step | None:
    space = file.search_space
    visited, open_now = leaderboard.visited_keys(state, space), effective_config.build_mask(state, space)

    def untried(tries: Sequence[tuple[Point, str]]) -> list[tuple[Point, str]]:
        return [
            first_try
            for first_try in tries
            if point_key(first_try[0]) not in visited and open_now.allows(first_try[0], space)
        ]

    remaining, details = untried(_of_earlier_studies(state)), dict[str, Any]()
    if not remaining and (usual := untried(_usual_tries(state, file))):
        failing = predicted_failures()
        remaining = [first_try for first_try in usual if point_key(first_try[0]) not in failing]
        first = phases.phases(state, file)[:1]
        details = {"turned": first[0].name} if first else {}
    return Step("search", "sampler", *remaining[0], details) if remaining else None


def _less_lossy(state: StudyState, file: StudyFile) -> Step | None:
    """What was faster than the best so far and lost too much, with the nearest value that loses less; None where there
    is none, or all such were measured.
    """
    space, best = file.search_space, leaderboard.make_leaderboard(state, file).best
    visited, open_now = leaderboard.visited_keys(state, space), effective_config.build_mask(state, space)
    for loser in sorted(leaderboard.forbidden_trials(state, file), key=lambda trial: -(trial.value or 0.0)):
        if best is not None and (loser.value or 0.0) <= (best.value or 0.0):
            return None
        for point in space.less_lossy(loser.config):
            if (
                point_key(point) not in visited
                and open_now.allows(point, space)
                and is_wanted(point, state, file)
            ):
                why = f"loses less than trial {loser.number}, which was fast and lost too much"
                return Step("search", "sampler", point, why)
    return None


def _gentlest(state: StudyState, file: StudyFile) -> Step | None:
    """In a run that goes on, what loses least by the methods of a lossy leader: it leads where it is about as fast."""
    space, best = file.search_space, leaderboard.make_leaderboard(state, file).best
    if best is None or not live_comparison.ranks(file) or not is_lossy(space.base_values | best.config):
        return None
    visited, open_now = leaderboard.visited_keys(state, space), effective_config.build_mask(state, space)
    for point in space.less_lossy(best.config, least=True):
        if (
            point_key(point) not in visited
            and open_now.allows(point, space)
            and is_wanted(point, state, file)
        ):
            why = f"loses least by the methods of trial {best.number}, and leads if it is about as fast"
            return Step("search", "sampler", point, why)
    return None


def _usual_tries(state: StudyState, file: StudyFile) -> Tries:
    """Once plain data parallel ran out of memory: what needs less, until something runs."""
    space = file.search_space
    if not any(
        trial.outcome in NO_MEMORY and leaderboard.is_baseline(state, trial) for trial in state.trials
    ):
        return space.once("first tries", file.trials, first_tries)
    return (
        [] if leaderboard.measured_trials(state) else space.once("fitting tries", file.trials, fitting_tries)
    )


def _of_earlier_studies(state: StudyState) -> list[tuple[Point, str]]:
    """The best points of the studies that were inherited, measured here first."""
    return [
        (point, f"among the best of study {earlier.study}")
        for earlier in state.inherited
        for point in earlier.first
    ]


def _retry(state: StudyState, trial: Trial, file: StudyFile) -> Step:
    phase: Literal["baseline", "search", "confirm"] = "search"
    if trial.confirms is not None:
        phase = "confirm"
    elif leaderboard.is_baseline(state, trial):
        phase = "baseline"
    details = _next_attempt(trial)
    details |= {name: value for name in _OF_A_WINDOW if (value := getattr(trial, name)) is not None}
    point = (
        trial.config if phase != "baseline" or file.live is None else _apply_pins(state, file, trial.config)
    )
    return Step(phase, "retry", point, f"trial {trial.number} ended as {trial.outcome}", details)


def _next_attempt(trial: Trial) -> dict[str, Any]:
    return {"retry_of": trial.number, "attempt": trial.attempt + 1}


def _ended_for_nothing(state: StudyState, file: StudyFile) -> Trial | None:
    """The fastest trial that was given up before a check ruled out who led, and that is faster than who leads now; None
    where there is no time for one, and of what nobody wants to be searched any more.
    """
    failed = [
        check.number
        for check in leaderboard.loss_checks(state)
        if leaderboard.is_ruled_out(state, check, file)
    ]
    if not failed or is_spent(state, file):
        return None
    space = file.search_space
    open_now = effective_config.build_mask(state, space)
    best, retried = confirmation.winner(state, file), leaderboard.retried_trials(state)
    spared = [
        trial
        for trial in leaderboard.measured_trials(state)
        if trial.outcome == Ending.PRUNED.value
        and trial.number < failed[-1]
        and trial.number not in retried
        and not leaderboard.is_ruled_out(state, trial, file)
        and open_now.allows(trial.config, space)
        and (best is None or (trial.value or 0.0) > (best.value or 0.0))
    ]
    return max(spared, key=lambda trial: trial.value or 0.0, default=None)


def _apply_pins(state: StudyState, file: StudyFile, point: Point) -> Point:
    """The baseline of a run that goes on has what somebody set by hand within its window."""
    limits = effective_config.build_mask(state, file.search_space).by_key
    pinned = {key: limits[key].choices[0] for key in point if key in limits and len(limits[key].choices) == 1}
    return file.search_space.canonical_point(point | pinned)


def _confirmation(state: StudyState, file: StudyFile) -> Step:
    window = confirmation.next_window(state, file)
    if window is None or no_room_again(state, file, window.rest_of_round):
        return Step("done")
    number, steps = window.trial.number, window.steps
    why = f"measures trial {number} again, round {window.round + 1}"
    details = {"confirms": number, "round": window.round} | ({"window": steps} if steps else {})
    return Step("confirm", "confirm", window.trial.config, why, details)
