"""Which of several equally fast configurations to use, and the words for it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from tuning.analysis.confirmation import Arm, Confirmed
from tuning.space import labels
from tuning.spec.study_file import StudyFile

#: Less memory by more than this is headroom worth having, unless runs of one configuration differ by more.
HEADROOM = 0.05
Rule = Literal["speed", "memory", "simplicity"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to use, by which rule, and why in words."""

    arm: Arm
    rule: Rule
    why: str


def decide(found: Confirmed, file: StudyFile, ruled_out: Collection[int] = ()) -> Decision:
    """The fastest; of those that tie with it the one with memory headroom, then the simplest. Trials that are
    ``ruled_out`` by a constraint are none of them.
    """
    tied = [arm for arm in found.tied if arm.trial.number not in ruled_out]
    most = file.aim.objective.most
    if len(tied) == 1:
        return Decision(found.fastest, "speed", f"{most}, measured again")
    numbers = _listed([arm.trial.number for arm in tied])
    light = _lightest(tied)
    if len(light) == 1:
        saved = 1 - (_memory(light[0]) or 0) / min(_memory(arm) or 1 for arm in tied if arm is not light[0])
        words = f"trials {numbers} tie; it needs at least {100 * saved:.0f} % less memory"
        return Decision(light[0], "memory", words)
    plain = _simplest(light, file)
    if len(plain) == 1:
        return Decision(
            plain[0], "simplicity", f"trials {numbers} tie; it is the simplest: {_turned(plain[0], file)}"
        )
    fastest = max(plain, key=lambda arm: arm.speed)
    if len(plain) < len(tied):
        left = _listed([arm.trial.number for arm in plain])
        words = f"trials {numbers} tie, {left} also in memory and simplicity; of these it was {most}"
        return Decision(fastest, "speed", words)
    return Decision(fastest, "speed", f"trials {numbers} tie, also in memory and simplicity; it was {most}")


def memory_of(arm: Arm) -> int | None:
    """The largest peak that any run of an arm had, in bytes; None if that is not known of all."""
    peaks = [run.peak_memory_bytes for run in (arm.trial, *arm.again)]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if len(known) == len(peaks) else None


_memory = memory_of


def _lightest(tied: list[Arm]) -> list[Arm]:
    """Those within 5 % of the least memory, or within what runs of one of them differ by; all of them if it is not
    known. Warm ranks on CPUs grow from run to run, which says nothing about the configuration.
    """
    known = [peak for arm in tied if (peak := _memory(arm)) is not None]
    if len(known) < len(tied):
        return tied
    apart = max(HEADROOM, *map(_strays, tied))
    return [arm for arm in tied if (_memory(arm) or 0) * (1 - apart) <= min(known)]


def _strays(arm: Arm) -> float:
    """By how much the peaks of an arm's runs differ, as a share of the largest."""
    peaks = [run.peak_memory_bytes or 0 for run in (arm.trial, *arm.again)]
    return 1 - min(peaks) / max(peaks) if max(peaks) else 0.0


def _simplest(tied: list[Arm], file: StudyFile) -> list[Arm]:
    sizes = [labels.complexity(file.search_space, arm.trial.config) for arm in tied]
    return [arm for arm, size in zip(tied, sizes, strict=True) if size == min(sizes)]


def _turned(arm: Arm, file: StudyFile) -> str:
    turned = labels.what_is_turned(file.search_space, arm.trial.config)
    return f"only {', '.join(turned)} turned" if turned else "everything at its plain value"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
