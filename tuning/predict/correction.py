"""What a user's finished runs teach: constants and an allowance for memory, fitted to the runs that count here. Pure.

Runs count that ran whole, on this machine as it is set up now, with nothing that is not modelled; none counts that
contradicts another one. This corrects every later prediction for this machine. Inside a study, trials correct the
prior in the study's own space instead: ``tuning.search.surrogate`` and ``tuning.search.prediction_prior``.

A fit starts from this machine's calibration. Its error is that of layouts which were held out: each is predicted by
constants that were fitted to runs of the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.config.errors import InputError, several
from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from engine.footprint import footprint
from engine.run.calibration.fingerprint import Fingerprint
from tuning.predict import forecast_document
from tuning.predict.cluster.this_machine import LabRanks, seats_of
from tuning.predict.fit import allowances, calibrate
from tuning.predict.fit.allowances import Peaks
from tuning.predict.fit.calibrate import (
    CONTRADICTION,
    CalibratedConstants,
    TrialMeasurements,
    small_sample_factor,
)
from tuning.predict.fit.finished_runs import FinishedRun, Trial, join_machines, layout
from tuning.predict.model.cases import cases_of
from tuning.predict.model.constants import MEASURED_LIMITS
from tuning.predict.model.headroom import Allowance
from tuning.predict.target import BELIEVED_HERE, Errors, ExcludedRun, Experience, Target

#: With fewer layouts each would be predicted from one other one, which cannot tell what a change of layout costs;
#: with fewer configurations the ends of 90 % would be those of almost nothing.
LEAST_CONFIGURATIONS, LEAST_LAYOUTS = 6, 3
#: The newest that count, which bounds the time of a fit; and parts of the layouts that are held out one at a time.
_MOST, _PARTS = 300, 10
#: Contradictions and reasons that are told in notes; all of them are in ``Experience.left_out``.
_TOLD = 3

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


class RunGroups(NamedTuple):
    """Runs that count by what formulas can tell apart, each group in the order given, and those that do not."""

    groups: list[list[Run]]
    left_out: list[ExcludedRun]


class Contradiction(NamedTuple):
    """Two runs of what formulas cannot tell apart, the faster one first."""

    fast: Run
    slow: Run

    def __str__(self) -> str:
        seconds = " and ".join(f"{run.trial.seconds:.3g} s" for run in self)
        return (
            f"runs {self.fast.id} and {self.slow.id} contradict each other: {seconds} of the same configuration, "
            "as far as formulas can tell; neither counts: measure again, or remove the wrong one"
        )


def select_runs(runs: Sequence[FinishedRun], target: Target, machine: Fingerprint) -> RunGroups:
    """Those that ran whole, on this machine as it is set up now, with nothing that is not modelled."""
    groups, left_out = dict[tuple[Any, ...], list[Run]](), list[ExcludedRun]()
    ours = machine.as_dict()
    for run in runs:
        reason = why_not(run, target, ours)
        if reason is None and run.trial is not None:
            groups.setdefault(_key(run.trial.config), []).append(Run(run.run, run.trial))
        else:
            left_out.append(ExcludedRun(run.run, reason or run.reason))
    return RunGroups(list(groups.values()), left_out)


def why_not(run: FinishedRun, target: Target, machine: Mapping[str, Any]) -> str | None:
    """Why a run does not count; None if it does."""
    if run.trial is None:
        return run.reason
    config = run.trial.config
    return (
        _why_elsewhere(run, config, machine)
        or _of_other_devices(run, config, target)
        or _why_not_modelled(config)
        or _why_illegal(config)
    )


def split_contradictions(groups: Sequence[Sequence[Run]]) -> tuple[list[list[Run]], list[Contradiction]]:
    """Groups without runs that cannot both be true: nobody knows which of two is wrong, so both are left out.

    As long as the slowest of a group took more than 1.5 times the fastest, both are; what is left agrees.
    """
    consistent, contradictions = list[list[Run]](), list[Contradiction]()
    for group in groups:
        remaining = sorted(group, key=lambda run: run.trial.seconds)
        while len(remaining) > 1 and remaining[-1].trial.seconds > CONTRADICTION * remaining[0].trial.seconds:
            contradictions.append(Contradiction(remaining.pop(0), remaining.pop()))
        consistent += [remaining] if remaining else []
    return consistent, contradictions


def _key(config: RunConfig) -> tuple[Any, ...]:
    """The same where formulas know no difference: sizes, layout, format of numbers, and links."""
    return cases_of([config]).rows()[0], config.precision, seats_of(config)


def _why_elsewhere(run: FinishedRun, config: RunConfig, machine: Mapping[str, Any]) -> str | None:
    fingerprint = run.fingerprint
    if fingerprint is None:
        return "does not tell its machine"
    names = [name for name in machine if name not in _NOT_COMPARED]
    other = [name.replace("_", " ") for name in names if fingerprint.get(name) != machine[name]]
    if other:
        return f"ran on another machine, or one set up otherwise ({', '.join(other)})"
    if fingerprint.get("network") is not None and not config.lab.is_wanted:
        return f"ran over {fingerprint['network']}"
    return None


def _of_other_devices(run: FinishedRun, config: RunConfig, target: Target) -> str | None:
    if (run.backend == "gloo") != target.on_cpu:
        return f"ran on {run.backend}, not on {target.group.accelerator.name}"
    rates = target.group.accelerator.peak_flops
    if config.precision not in rates:
        return f"ran in {config.precision}, of which the calibration has no rate"
    return None


def _why_not_modelled(config: RunConfig) -> str | None:
    """What the closed forms leave out; a lab is modelled where each rank is a host, on links of one rate."""
    seats_differ = seats_of(config) != LabRanks(layout_of(config).world_size)
    return next(iter(forecast_document.notes(config, seats_differ)), None)


def _why_illegal(config: RunConfig) -> str | None:
    try:
        problems: list[InputError] = list(rules.problems(config))
    except InputError as error:
        problems = [error]
    return f"breaks a rule of this version: {problems[0]}" if problems else None


Groups = Sequence[Sequence[Run]]


def learn_target(target: Target, runs: Sequence[FinishedRun], machine: Fingerprint) -> Target:
    """This machine as ``target.calibrated_target`` has it, with what finished runs tell of it; ``runs`` by rising age.

    Too few change no constant, and a note says how many are missing. Runs that contradict each other never count.
    """
    usable, excluded = select_runs(runs, target, machine)
    groups, contradictions = split_contradictions(usable)
    excluded += _contradictory_or_old(groups, contradictions)
    newest = groups[-_MOST:]
    widened = _with_sharing_up_to(target, newest)
    memory_runs, allowance = _memory(usable[-_MOST:], target)
    experience = Experience(
        runs=len(_flatten(newest)),
        configurations=len(newest),
        layouts=len(_layouts(newest)),
        links=tuple(sorted({widened.adapt_to_config(group[0].config).links_name for group in newest} - {""})),
        memory_runs=memory_runs,
        allowance=allowance,
        left_out=tuple(excluded),
    )
    if experience.configurations >= LEAST_CONFIGURATIONS and experience.layouts >= LEAST_LAYOUTS:
        learned = _fit_target(replace(widened, experience=experience), summarize_runs(newest, widened))
    else:
        notes = (*target.notes, _too_few(experience))
        learned = replace(target, experience=experience, notes=notes)
    return replace(learned, notes=(*learned.notes, *_of_left_out(experience, contradictions)))


def _contradictory_or_old(groups: Groups, contradictions: Sequence[Contradiction]) -> list[ExcludedRun]:
    """Runs that contradict each other, and those of all but the newest configurations."""
    contradictory = [
        ExcludedRun(run.id, str(contradiction)) for contradiction in contradictions for run in contradiction
    ]
    why_old = f"is older than the {_MOST} newest configurations"
    return contradictory + [ExcludedRun(run.id, why_old) for run in _flatten(groups[:-_MOST])]


def summarize_runs(groups: Groups, target: Target) -> TrialMeasurements:
    """Medians of runs alike, on the machine as each configuration's ranks have it; layouts are held out as a whole."""
    configs = [group[0].config for group in groups]
    seats = [target.adapt_to_config(config) for config in configs]
    machines = [seat.machine(config.precision) for seat, config in zip(seats, configs, strict=True)]
    seconds = np.array([np.median([run.trial.seconds for run in group]) for group in groups])
    cases = cases_of(configs, [seat.devices_per_node for seat in seats])
    return TrialMeasurements(cases, join_machines(machines), seconds, _parts(groups))


def _with_sharing_up_to(target: Target, groups: Groups) -> Target:
    """The same for as many ranks as runs had, if these are more than were timed."""
    if target.sharing is None:
        return target
    most = max((layout_of(group[0].config).world_size for group in groups), default=0)
    return replace(target, sharing=replace(target.sharing, most=max(target.sharing.most, most)))


def _fit_target(target: Target, measurements: TrialMeasurements) -> Target:
    experience = target.experience
    assert experience is not None
    calibrated = calibrate.calibrate(measurements, target.calibrated.constants, MEASURED_LIMITS)
    error = Errors(math.expm1(calibrated.low), math.expm1(calibrated.high))
    note = (
        f"constants fitted to {experience.runs:,} of your finished runs ({experience.layouts:,} layouts); layouts "
        f"that were held out were predicted within {_percent(error.low)} to {_percent(error.high)}"
    )
    return replace(
        target,
        calibrated=calibrated,
        unsure=_uncertainty(calibrated, experience.layouts),
        notes=(note, *(note for note in target.notes if note != BELIEVED_HERE)),
        constants_source=f"fitted to {experience.runs:,} finished runs of this machine",
        experience=replace(experience, error=error),
    )


def _uncertainty(calibrated: CalibratedConstants, layouts: int) -> float:
    """What an interval from so few layouts lacks."""
    return (small_sample_factor(layouts) - 1) * max(abs(calibrated.low), abs(calibrated.high))


def _memory(groups: Groups, target: Target) -> tuple[int, Allowance | None]:
    """Runs that told their peak, and an allowance where these are enough; contradictory times do not matter here."""
    with_peak = [group for group in groups if any(run.trial.peak_bytes for run in group)]
    count = len([run for run in _flatten(with_peak) if run.trial.peak_bytes])
    if len(with_peak) < allowances.LEAST:
        return count, None
    peaks = [
        np.median([run.trial.peak_bytes for run in group if run.trial.peak_bytes]) for group in with_peak
    ]
    counted = [footprint.largest(group[0].config).total_bytes for group in with_peak]
    measured = Peaks(np.array(counted, np.float64), np.array(peaks, np.float64), _parts(with_peak))
    return count, allowances.learn_allowance(measured, count, target.on_cpu)


def _parts(groups: Groups) -> NDArray[np.int_]:
    """A number for each group's layout; of many layouts some share one and are held out together."""
    number = {name: place % _PARTS for place, name in enumerate(_layouts(groups))}
    return np.array([number[layout(group[0].config)] for group in groups])


def _layouts(groups: Groups) -> list[str]:
    return sorted({layout(group[0].config) for group in groups})


def _flatten(groups: Groups) -> list[Run]:
    return [run for group in groups for run in group]


def _too_few(experience: Experience) -> str:
    additional = (
        max(LEAST_CONFIGURATIONS - experience.configurations, 0),
        max(LEAST_LAYOUTS - experience.layouts, 0),
    )
    kinds = zip(additional, ("configurations", "layouts"), strict=True)
    missing = " and ".join(several(count, f"more {name}") for count, name in kinds if count)
    runs_seen = (
        f"{several(experience.configurations, 'configurations')} in {several(experience.layouts, 'layouts')}"
    )
    return (
        f"finished runs that count here: {runs_seen}; "
        f"with {missing} constants are fitted to them ({LEAST_CONFIGURATIONS} in {LEAST_LAYOUTS}: each layout has to "
        "be predicted from others, to tell how wrong they are)"
    )


def _of_left_out(experience: Experience, contradictions: Sequence[Contradiction]) -> Iterator[str]:
    yield from map(str, contradictions[:_TOLD])
    both = {run.id for contradiction in contradictions for run in contradiction}
    reasons = Counter(excluded.reason for excluded in experience.left_out if excluded.run not in both)
    unnamed = len(contradictions) - _TOLD
    if unnamed > 0:
        pairs = "pair of runs contradicts itself" if unnamed == 1 else "pairs of runs contradict each other"
        yield f"{unnamed} more {pairs}; none of these runs counts"
    if reasons:
        text = "; ".join(f"{count:,}: {reason}" for reason, count in reasons.most_common(_TOLD))
        more_text = f"; {several(len(reasons) - _TOLD, 'more reasons')}" if len(reasons) > _TOLD else ""
        yield f"{sum(reasons.values()):,} other finished runs do not count ({text}{more_text})"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:+.0f} %"
