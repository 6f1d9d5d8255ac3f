"""A user's own finished runs: constants and an allowance for memory that are fitted to those that count here. Pure.

A fit starts from this machine's calibration. Its error is that of layouts which were held out: each is predicted by
constants that were fitted to runs of the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.config.layout import layout_of
from engine.footprint import footprint
from engine.run.calibration.fingerprint import Fingerprint
from tuning.predict.fit import calibrate
from tuning.predict.fit.calibrate import Calibrated, Measured
from tuning.predict.fit.experience import Errors, Experience, LeftOut, of_few
from tuning.predict.learn import allowances
from tuning.predict.learn.allowances import Peaks
from tuning.predict.learn.finished_runs import Finished, joined, layout
from tuning.predict.learn.selection import Contradiction, Run, agreeing, counted
from tuning.predict.model.from_config import cases_of
from tuning.predict.model.headroom import Allowance
from tuning.predict.target import BELIEVED_HERE, Target

#: With fewer layouts each would be predicted from one other one, which cannot tell what a change of layout costs;
#: with fewer configurations the ends of 90 % would be those of almost nothing.
LEAST_CONFIGURATIONS, LEAST_LAYOUTS = 6, 3
#: The newest that count, which bounds the time of a fit; and parts of the layouts that are held out one at a time.
_MOST, _PARTS = 300, 10
#: Contradictions and reasons that are told in notes; all of them are in ``Experience.left_out``.
_TOLD = 3

Groups = Sequence[Sequence[Run]]


def learned(target: Target, runs: Sequence[Finished], here: Fingerprint) -> Target:
    """This machine as ``target.measured_here`` has it, with what finished runs tell of it; ``runs`` by rising age.

    Too few change no constant, and a note says how many are missing. Runs that contradict each other never count.
    """
    known, left_out = counted(runs, target, here)
    groups, contradictions = agreeing(known)
    older = [
        LeftOut(run.id, f"is older than the {_MOST} newest configurations") for run in _flat(groups[:-_MOST])
    ]
    left_out += [LeftOut(run.id, str(one)) for one in contradictions for run in one] + older
    groups = groups[-_MOST:]
    able = _of_as_many(target, groups)
    memory_runs, allowance = _memory(known[-_MOST:], target)
    told = Experience(
        runs=len(_flat(groups)),
        configurations=len(groups),
        layouts=len(_layouts(groups)),
        links=tuple(sorted({able.at(group[0].config).links_name for group in groups} - {""})),
        memory_runs=memory_runs,
        allowance=allowance,
        left_out=tuple(left_out),
    )
    found = replace(target, experience=told)
    if told.configurations >= LEAST_CONFIGURATIONS and told.layouts >= LEAST_LAYOUTS:
        found = _fitted(replace(able, experience=told), measured(groups, able))
    else:
        found = replace(found, notes=(*found.notes, _too_few(told)))
    return replace(found, notes=(*found.notes, *_of_left_out(told, contradictions)))


def measured(groups: Groups, target: Target) -> Measured:
    """Medians of runs alike, on the machine as each configuration's ranks have it; layouts are held out as a whole."""
    configs = [group[0].config for group in groups]
    seats = [target.at(config) for config in configs]
    machines = [one.machine(config.precision) for one, config in zip(seats, configs, strict=True)]
    seconds = np.array([np.median([run.trial.seconds for run in group]) for group in groups])
    cases = cases_of(configs, [one.devices_per_node for one in seats])
    return Measured(cases, joined(machines), seconds, _parts(groups))


def _of_as_many(target: Target, groups: Groups) -> Target:
    """The same for as many ranks as runs had, if these are more than were timed."""
    if target.sharing is None:
        return target
    most = max((layout_of(group[0].config).world_size for group in groups), default=0)
    return replace(target, sharing=replace(target.sharing, most=max(target.sharing.most, most)))


def _fitted(target: Target, of: Measured) -> Target:
    told = target.experience
    assert told is not None
    calibrated = calibrate.calibrate(of, target.calibrated.constants)
    error = Errors(math.expm1(calibrated.low), math.expm1(calibrated.high))
    note = (
        f"constants fitted to {told.runs:,} of your finished runs ({told.layouts:,} layouts); layouts that were held "
        f"out were predicted within {_percent(error.low)} to {_percent(error.high)}"
    )
    return replace(
        target,
        calibrated=calibrated,
        unsure=_unsure(calibrated, told.layouts),
        notes=(note, *(one for one in target.notes if one != BELIEVED_HERE)),
        constants_source=f"fitted to {told.runs:,} finished runs of this machine",
        experience=replace(told, error=error),
    )


def _unsure(calibrated: Calibrated, layouts: int) -> float:
    """What an interval from so few layouts lacks."""
    return (of_few(layouts) - 1) * max(abs(calibrated.low), abs(calibrated.high))


def _memory(groups: Groups, target: Target) -> tuple[int, Allowance | None]:
    """Runs that told their peak, and an allowance where these are enough; contradictory times do not matter here."""
    with_peak = [group for group in groups if any(run.trial.peak_bytes for run in group)]
    count = len([run for run in _flat(with_peak) if run.trial.peak_bytes])
    if len(with_peak) < allowances.LEAST:
        return count, None
    peaks = [
        np.median([run.trial.peak_bytes for run in group if run.trial.peak_bytes]) for group in with_peak
    ]
    held = [footprint.largest(group[0].config).total_bytes for group in with_peak]
    found = Peaks(np.array(held, np.float64), np.array(peaks, np.float64), _parts(with_peak))
    return count, allowances.learned(found, count, target.on_cpu)


def _parts(groups: Groups) -> NDArray[np.int_]:
    """A number for each group's layout; of many layouts some share one and are held out together."""
    number = {name: place % _PARTS for place, name in enumerate(_layouts(groups))}
    return np.array([number[layout(group[0].config)] for group in groups])


def _layouts(groups: Groups) -> list[str]:
    return sorted({layout(group[0].config) for group in groups})


def _flat(groups: Groups) -> list[Run]:
    return [run for group in groups for run in group]


def _too_few(told: Experience) -> str:
    more = max(LEAST_CONFIGURATIONS - told.configurations, 0), max(LEAST_LAYOUTS - told.layouts, 0)
    kinds = zip(more, ("configuration", "layout"), strict=True)
    missing = " and ".join(f"{count} more {name}{'s' if count > 1 else ''}" for count, name in kinds if count)
    return (
        f"finished runs that count here: {told.configurations} configurations in {told.layouts} layouts; "
        f"with {missing} constants are fitted to them ({LEAST_CONFIGURATIONS} in {LEAST_LAYOUTS}: each layout has to "
        "be predicted from others, to tell how wrong they are)"
    )


def _of_left_out(told: Experience, contradictions: Sequence[Contradiction]) -> Iterator[str]:
    yield from map(str, contradictions[:_TOLD])
    both = {run.id for one in contradictions for run in one}
    reasons = Counter(one.reason for one in told.left_out if one.run not in both)
    rest = len(contradictions) - _TOLD
    if rest > 0:
        yield f"{rest} more pairs of runs contradict each other; none of these runs counts"
    if reasons:
        said = "; ".join(f"{count:,}: {reason}" for reason, count in reasons.most_common(_TOLD))
        more = f"; {len(reasons) - _TOLD} more reasons" if len(reasons) > _TOLD else ""
        yield f"{sum(reasons.values()):,} other finished runs do not count ({said}{more})"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:+.0f} %"
