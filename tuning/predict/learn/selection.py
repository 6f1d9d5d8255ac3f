"""Which finished runs count for a prediction on this machine, and which contradict each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine.config.errors import InputError
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.run.calibration.fingerprint import Fingerprint
from tuning.predict import answer
from tuning.predict.cluster.this_machine import Seats, seats_of
from tuning.predict.fit.calibrate import CONTRADICTION
from tuning.predict.fit.experience import LeftOut
from tuning.predict.learn.finished_runs import Finished, Trial
from tuning.predict.model.from_config import cases_of
from tuning.predict.target import Target

#: Of a machine's description, what a lab changes and what only names it.
_NOT_COMPARED = ("id", "network")


class Run(NamedTuple):
    """A run that counts."""

    id: str
    trial: Trial

    @property
    def config(self) -> RunConfig:
        """What ran."""
        return self.trial.config


class Counted(NamedTuple):
    """Runs that count by what formulas can tell apart, each group in the order given, and those that do not."""

    groups: list[list[Run]]
    left_out: list[LeftOut]


class Contradiction(NamedTuple):
    """Two runs of what formulas cannot tell apart, the faster one first."""

    fast: Run
    slow: Run

    def __str__(self) -> str:
        seconds = " and ".join(f"{one.trial.seconds:.3g} s" for one in self)
        return (
            f"runs {self.fast.id} and {self.slow.id} contradict each other: {seconds} of the same configuration, "
            "as far as formulas can tell; neither counts: measure again, or remove the wrong one"
        )


def counted(runs: Sequence[Finished], target: Target, here: Fingerprint) -> Counted:
    """Those that ran whole, on this machine as it is set up now, with nothing that is not modelled."""
    groups, left_out = dict[tuple[Any, ...], list[Run]](), list[LeftOut]()
    ours = here.as_dict()
    for one in runs:
        reason = why_not(one, target, ours)
        if reason is None and one.trial is not None:
            groups.setdefault(_key(one.trial.config), []).append(Run(one.run, one.trial))
        else:
            left_out.append(LeftOut(one.run, reason or one.reason))
    return Counted(list(groups.values()), left_out)


def why_not(one: Finished, target: Target, here: Mapping[str, Any]) -> str | None:
    """Why a run does not count; None if it does."""
    if one.trial is None:
        return one.reason
    config = one.trial.config
    return (
        _elsewhere(one, config, here)
        or _of_other_devices(one, config, target)
        or _not_modelled(config)
        or _broken(config)
    )


def agreeing(groups: Sequence[Sequence[Run]]) -> tuple[list[list[Run]], list[Contradiction]]:
    """Groups without runs that cannot both be true: nobody knows which of two is wrong, so both are left out.

    As long as the slowest of a group took more than 1.5 times the fastest, both are; what is left agrees.
    """
    kept, found = list[list[Run]](), list[Contradiction]()
    for group in groups:
        rest = sorted(group, key=lambda run: run.trial.seconds)
        while len(rest) > 1 and rest[-1].trial.seconds > CONTRADICTION * rest[0].trial.seconds:
            found.append(Contradiction(rest.pop(0), rest.pop()))
        kept += [rest] if rest else []
    return kept, found


def _key(config: RunConfig) -> tuple[Any, ...]:
    """The same where formulas know no difference: sizes, layout, format of numbers, and links."""
    return cases_of([config]).rows()[0], config.precision, seats_of(config)


def _elsewhere(one: Finished, config: RunConfig, here: Mapping[str, Any]) -> str | None:
    theirs = one.fingerprint
    if theirs is None:
        return "does not tell its machine"
    names = [name for name in here if name not in _NOT_COMPARED]
    other = [name.replace("_", " ") for name in names if theirs.get(name) != here[name]]
    if other:
        return f"ran on another machine, or one set up otherwise ({', '.join(other)})"
    if theirs.get("network") is not None and not config.lab.wanted:
        return f"ran over {theirs['network']}"
    return None


def _of_other_devices(one: Finished, config: RunConfig, target: Target) -> str | None:
    if (one.backend == "gloo") != target.on_cpu:
        return f"ran on {one.backend}, not on {target.group.accelerator.name}"
    rates = target.group.accelerator.peak_flops
    if config.precision not in rates:
        return f"ran in {config.precision}, of which the calibration has no rate"
    return None


def _not_modelled(config: RunConfig) -> str | None:
    """What the closed forms leave out; a lab is modelled where each rank is a host, on links of one rate."""
    known = seats_of(config) != Seats(layout_of(config).world_size)
    return next(iter(answer.notes(config, known)), None)


def _broken(config: RunConfig) -> str | None:
    try:
        problems: list[InputError] = list(rules.problems(config))
    except InputError as error:
        problems = [error]
    return f"breaks a rule of this version: {problems[0]}" if problems else None
