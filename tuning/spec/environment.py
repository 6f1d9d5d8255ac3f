"""Environment variables of a study: refused where they cannot act on any trial; trials on which one did not act."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import environment
from engine.config.environment import SECTION
from engine.config.errors import InputError
from engine.config.knobs import may_use_gpus
from engine.config.run_config import RunConfig
from engine.run.devices import selection
from engine.run.outcome import Ending, RunOutcome
from profilers.model.environment import without_effect
from profilers.model.run_summary import RunSummary
from tuning.space.knobs import STUDY_KEYS, Knob


def check(config: RunConfig, knobs: Sequence[Knob], ranks: int) -> None:
    """That no variable of a study is without effect on all its trials, as far as its file tells.

    Raises:
        InputError: one is.
    """
    kind = "cuda" if may_use_gpus(config.flat()) else "cpu"
    _refuse(settings(config, knobs), kind, most_ranks(knobs, ranks), "")


def check_here(config: RunConfig, knobs: Sequence[Knob], ranks: int, simulated: bool) -> None:
    """The same of this machine's devices.

    Raises:
        InputError: it has none on which a variable acts, or the study is simulated, and so has no processes at all.
    """
    found = settings(config, knobs)
    for name, value in found.items() if simulated else ():
        raise InputError(name, value, "a simulated study has no processes to set it in; leave it out")
    if found:
        chosen = selection.choose(config, ranks)
        _refuse(found, chosen.kind, most_ranks(knobs, ranks), f" ({chosen.reason})")


def settings(config: RunConfig, knobs: Sequence[Knob]) -> dict[str, object]:
    """What a study asks of the environment, fixed or turned, by where its file says so."""
    fixed = environment.asked(config.environment)
    turned = {knob.key: knob.document() for knob in knobs if knob.key.startswith(f"{SECTION}.")}
    return {f"base.{SECTION}.{name}": value for name, value in fixed.items()} | {
        f"space.{key}": value for key, value in turned.items()
    }


def as_asked(outcome: RunOutcome, summary: RunSummary) -> RunOutcome:
    """How a trial ended as far as its point is concerned: with a variable that did not act it was another point."""
    why = without_effect(summary.environment) if outcome.good else None
    return outcome if why is None else RunOutcome(Ending.ILLEGAL, why)


def _refuse(found: dict[str, object], kind: str, ranks: int, reason: str) -> None:
    for name, value in found.items():
        why = environment.silent(name.rpartition(".")[2], kind, ranks)
        if why is not None:
            raise InputError(name, value, f"{why}{reason}; leave it out")


def most_ranks(knobs: Sequence[Knob], ranks: int) -> int:
    """Of any trial."""
    counts: list[int] = [count for knob in knobs if knob.key == STUDY_KEYS[0] for count in knob.choices]
    return max([ranks, *counts])
