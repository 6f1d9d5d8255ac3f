"""What costs time for a while only: the verdicts of short stretches of a run that the whole of it does not show.

A rank that is slow for fifty steps of a thousand is no straggler of the run, and a link that was full for a minute no
bottleneck of an hour. So the rules about steps and communication are asked again of each stretch of the run. What is
above its threshold there and at least twice its share of the whole is an episode; neighbouring stretches with the same
finding are one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from profilers.analysis.anatomy import hosts_of
from profilers.analysis.steps import JoinedSteps, rank_skew
from profilers.model.verdict import Episode, Setting, Verdict, judge
from profilers.records.reader import RunRecords
from profilers.records.table import Table
from profilers.verdicts.communication import exposed_findings
from profilers.verdicts.evidence import RuleInputs, exposures
from profilers.verdicts.steps import SAME_FRACTION, step_findings

#: A run is looked at in so many stretches at the most, of so many steps at the least.
MOST_STRETCHES, LEAST_STEPS = 20, 10
#: How much larger than in the whole run a share has to be.
TIMES = 2.0

_Key = tuple[str, str | None, int | None]


def episodes_of(
    records: RunRecords, measured: JoinedSteps, setting: Setting, whole: Sequence[Verdict], period: int = 1
) -> list[Episode]:
    """In the order of their first steps. ``measured`` are the steps in detail, ``whole`` the findings of all of them.

    A stretch has whole rounds of ``period`` steps.
    """
    shares = {_key(finding): finding.share or 0.0 for finding in whole}
    stretches = list(_stretches(measured, period))
    if len(stretches) < 2:
        return []
    above: dict[_Key, list[int]] = {}
    for place, stretch in enumerate(stretches):
        for verdict in judge(_findings(records, stretch, setting), setting.thresholds):
            known = shares.get(_key(verdict), 0.0)
            if verdict.share is not None and verdict.share >= TIMES * known:
                above.setdefault(_key(verdict), []).append(place)
    found = [
        _episode(records, measured, stretches, places, key, setting)
        for key, all_places in above.items()
        for places in _neighbours(all_places)
    ]
    return sorted((one for one in found if one is not None), key=lambda one: one.first_step)


def _key(finding: Verdict) -> _Key:
    """What makes two findings the same one; which rank it is counts for a straggler."""
    return finding.name, finding.axis, finding.rank if finding.name == "straggler" else None


def _stretches(measured: JoinedSteps, period: int) -> Iterator[JoinedSteps]:
    """Steps one after the other, equally many, whole rounds; a rest belongs to the last."""
    count = len(measured.steps)
    length = max(LEAST_STEPS, -(-count // MOST_STRETCHES))
    length = -(-length // period) * period
    starts = list(range(0, count - length + 1, length))
    for start, stop in itertools.pairwise([*starts, count]):
        yield measured.chosen(slice(start, stop))


def _findings(records: RunRecords, stretch: JoinedSteps, setting: Setting) -> list[Verdict]:
    calls = [_within(records.table(rank, "comm"), stretch) for rank in stretch.ranks]
    inputs = RuleInputs(stretch, setting, exposures(calls, stretch, setting.groups), hosts_of(records))
    found = [*step_findings(inputs, ()), *exposed_findings(inputs, ())]
    steady = rank_skew(stretch).share >= SAME_FRACTION
    return [one for one in found if one.name != "straggler" or steady]


def _within(calls: Table, stretch: JoinedSteps) -> Table:
    """The calls of a stretch: a rank writes them in the order of its steps."""
    steps = np.ma.getdata(calls.column("step"))
    return calls.part(
        int(np.searchsorted(steps, stretch.steps[0])),
        int(np.searchsorted(steps, stretch.steps[-1], side="right")),
    )


def _neighbours(places: Sequence[int]) -> Iterator[list[int]]:
    for _, group in itertools.groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        yield [place for _, place in group]


def _episode(
    records: RunRecords,
    measured: JoinedSteps,
    stretches: Sequence[JoinedSteps],
    places: Sequence[int],
    key: _Key,
    setting: Setting,
) -> Episode | None:
    """With the finding over all of its stretches together."""
    first, last = int(stretches[places[0]].steps[0]), int(stretches[places[-1]].steps[-1])
    findings = _findings(records, measured.between(first, last + 1), setting)
    finding = next((one for one in judge(findings, setting.thresholds) if _key(one) == key), None)
    goes_on = places[-1] == len(stretches) - 1
    return None if finding is None else Episode(first, last, goes_on, finding)
