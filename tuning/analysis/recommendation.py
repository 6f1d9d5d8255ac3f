"""Which of several equally fast configurations to use, and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tuning.analysis.confirmation import Arm, ConfirmationResult
from tuning.space import labels
from tuning.spec.objectives import likelihood
from tuning.spec.study_file import StudyFile

#: Less memory by more than this is headroom worth having, unless runs of one configuration differ by more.
HEADROOM = 0.05
#: The rule of a recommendation where nothing is equal to it, or where no other rule could choose.
SPEED = "speed"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to use, by which rule (``SPEED``, or the name of a ``TieRule``), and why in words. ``probability``: that it
    is ahead of the one that comes nearest to it; None where it is shown to be, or is as fast.
    """

    arm: Arm
    rule: str
    why: str
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class TieRule:
    """A rule that chooses among configurations that are as fast.

    ``name`` stands in documents, ``title`` behind "recommended by". ``best`` takes arms and returns those that are best
    by this rule, in their order; all of them where it cannot tell. ``why`` completes "it ..." for the one that is
    left of all that are equal.
    """

    name: str
    title: str
    best: Callable[[list[Arm], StudyFile], list[Arm]]
    why: Callable[[Arm, list[Arm], StudyFile], str]


def decide(result: ConfirmationResult, file: StudyFile, ruled_out: Collection[int] = ()) -> Decision:
    """The fastest; of those that are as fast the one that ``TIE_RULES`` leave, in their order, then the fastest of
    what they leave. Who may be faster still is not waited for: the likely faster one is taken, with its probability.
    Trials that are ``ruled_out`` by a constraint are none of them.
    """
    equal = [arm for arm in result.equal if arm.trial.number not in ruled_out] or [result.fastest]
    most = file.aim.objective.most
    if len(equal) == 1:
        return _fastest(result, most, ruled_out)
    numbers, candidates = _join_with_and([arm.trial.number for arm in equal]), equal
    for rule in TIE_RULES:
        candidates = rule.best(candidates, file)
        if len(candidates) == 1:
            return Decision(
                candidates[0],
                rule.name,
                f"trials {numbers} are equal; it {rule.why(candidates[0], equal, file)}",
            )
    fastest, criteria = (
        max(candidates, key=lambda arm: arm.speed),
        _join_with_and([rule.name for rule in TIE_RULES]),
    )
    if len(candidates) < len(equal):
        also = _join_with_and([arm.trial.number for arm in candidates])
        words = f"trials {numbers} are equal, {also} also in {criteria}; of these it was {most}"
        return Decision(fastest, SPEED, words)
    return Decision(fastest, SPEED, f"trials {numbers} are equal, also in {criteria}; it was {most}")


def _fastest(result: ConfirmationResult, most: str, ruled_out: Collection[int]) -> Decision:
    """The fastest by its speed alone: shown, or only likely."""
    open_still = [arm for arm in result.undecided if arm.trial.number not in ruled_out]
    if not open_still:
        return Decision(result.fastest, SPEED, f"{most}, measured again")
    probabilities = [(sure, arm) for arm in open_still if (sure := result.lead(arm).probability) is not None]
    if not probabilities:
        return Decision(result.fastest, SPEED, f"so far {most}, by a single round")
    sure, nearest = min(probabilities, key=lambda item: item[0])
    words = f"probably {most} ({likelihood(sure)} beside trial {nearest.trial.number}), which is not decided"
    return Decision(result.fastest, SPEED, words, sure)


def rule_title(name: str) -> str:
    """What stands behind "recommended by" for the rule that a document names."""
    return next((rule.title for rule in TIE_RULES if rule.name == name), name)


def memory_of(arm: Arm) -> int | None:
    """The largest peak that any run of an arm had, in bytes; None if that is not known of all."""
    peaks = [run.peak_memory_bytes for run in (arm.trial, *arm.repeats)]
    peaks_known = [peak for peak in peaks if peak is not None]
    return max(peaks_known) if len(peaks_known) == len(peaks) else None


def _lightest(equal: list[Arm], file: StudyFile) -> list[Arm]:
    """Those within 5 % of the least memory, or within what runs of one of them differ by; all of them if it is not
    known. Warm ranks on CPUs grow from run to run, which says nothing about the configuration.
    """
    peaks = [peak for arm in equal if (peak := memory_of(arm)) is not None]
    if len(peaks) < len(equal):
        return equal
    apart = max(HEADROOM, *map(_peak_spread, equal))
    return [arm for arm in equal if (memory_of(arm) or 0) * (1 - apart) <= min(peaks)]


def _peak_spread(arm: Arm) -> float:
    """By how much the peaks of an arm's runs differ, as a share of the largest."""
    peaks = [run.peak_memory_bytes or 0 for run in (arm.trial, *arm.repeats)]
    return 1 - min(peaks) / max(peaks) if max(peaks) else 0.0


def _memory_reason(chosen: Arm, equal: list[Arm], file: StudyFile) -> str:
    saved = 1 - (memory_of(chosen) or 0) / min(memory_of(arm) or 1 for arm in equal if arm is not chosen)
    return f"needs at least {100 * saved:.0f} % less memory"


def _simplest(equal: list[Arm], file: StudyFile) -> list[Arm]:
    sizes = [labels.complexity(file.search_space, arm.trial.config) for arm in equal]
    return [arm for arm, size in zip(equal, sizes, strict=True) if size == min(sizes)]


def _simplicity_reason(chosen: Arm, equal: list[Arm], file: StudyFile) -> str:
    turned = labels.turned_keys(file.search_space, chosen.trial.config)
    return "is the simplest: " + (
        f"only {', '.join(turned)} turned" if turned else "everything at its plain value"
    )


#: In the order in which they are asked.
TIE_RULES: tuple[TieRule, ...] = (
    TieRule("memory", "memory headroom", _lightest, _memory_reason),
    TieRule("simplicity", "simplicity", _simplest, _simplicity_reason),
)


def _join_with_and(items: Sequence[object]) -> str:
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last
