"""What costs time for a while only: the verdicts of short stretches of a run that the whole of it does not show.

A rank that is slow for fifty steps of a thousand is no straggler of the run, and a link that was full for a minute no
bottleneck of an hour. So the rules about steps and communication are asked again of each stretch of the run. What is
above its threshold there and at least twice its share of the whole is an episode; neighbouring stretches with the same
finding are one. The newest steps are one more stretch, however long the run is: who looks at a run that goes on wants
to know of a rank that stalls while it stalls, and not that it did some thousand steps ago.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from profilers.analysis.anatomy import hosts_of
from profilers.analysis.steps import JoinedSteps, rank_skew
from profilers.model.rows import FIXED
from profilers.model.verdict import Episode, Setting, Verdict, judge
from profilers.records.reader import RunRecords
from profilers.records.table import Table
from profilers.verdicts.communication import exposed_findings
from profilers.verdicts.evidence import RuleInputs, exposures
from profilers.verdicts.steps import SAME_FRACTION, step_findings

#: A run is looked at in so many stretches at the most, of so many steps at the least.
MOST_STRETCHES, LEAST_STEPS = 20, 10
#: So many newest steps in detail tell what holds now, in whole rounds.
NEWEST_STEPS = 20
#: Of these, a rank that is the slowest in this part, and more often than by chance, is the one that stalls.
_NOW_FRACTION = 0.5
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
        for verdict in _notable_findings(_findings(records, stretch, setting), shares, setting):
            above.setdefault(_key(verdict), []).append(place)
    episodes = [
        _make_episode(records, measured, *_span(stretches[places[0]], stretches[places[-1]]), key, setting)
        for key, all_places in above.items()
        for places in _neighbours(all_places)
    ]
    latest = _latest(measured, period)
    now = _notable_findings(_findings(records, latest, setting, now=True), shares, setting)
    ended = [
        replace(episode, goes_on=_goes_on(episode, stretches[-1], now))
        for episode in episodes
        if episode is not None
    ]
    return sorted(
        _with_now(records, measured, ended, latest, now, setting), key=lambda episode: episode.first_step
    )


def _with_now(
    records: RunRecords,
    measured: JoinedSteps,
    ended: Sequence[Episode],
    latest: JoinedSteps,
    now: Sequence[Verdict],
    setting: Setting,
) -> list[Episode]:
    """With what the newest steps show: it goes on with an episode of the same finding that reaches into them."""
    episodes = {(_key(episode.verdict), episode.first_step): episode for episode in ended}
    first, last = _span(latest, latest)
    for verdict in now:
        of_verdict = [episode for episode in episodes.values() if _key(episode.verdict) == _key(verdict)]
        if any(episode.goes_on for episode in of_verdict):
            continue
        into = next((episode for episode in of_verdict if episode.last_step >= first - 1), None)
        longer = (
            None
            if into is None
            else _make_episode(records, measured, into.first_step, last, _key(verdict), setting)
        )
        continued = longer or Episode(first, last, True, verdict)
        episodes[_key(verdict), continued.first_step] = replace(continued, goes_on=True)
    return list(episodes.values())


def _notable_findings(
    findings: Sequence[Verdict], shares: Mapping[_Key, float], setting: Setting
) -> list[Verdict]:
    """What is above its threshold, and far above its share of the whole."""
    judged = judge(findings, setting.thresholds)
    return [
        verdict
        for verdict in judged
        if verdict.share is not None and verdict.share >= TIMES * shares.get(_key(verdict), 0.0)
    ]


def _latest(measured: JoinedSteps, period: int) -> JoinedSteps:
    count = -(-NEWEST_STEPS // period) * period
    return measured.select(slice(max(0, len(measured.steps) - count), None))


def _goes_on(episode: Episode, last: JoinedSteps, now: Sequence[Verdict]) -> bool:
    """Whether it reaches the last step: a long stretch at the end may have it at its beginning alone."""
    reaches = episode.last_step == int(last.steps[-1])
    short = len(last.steps) <= NEWEST_STEPS
    return reaches and (short or _key(episode.verdict) in [_key(verdict) for verdict in now])


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
        yield measured.select(slice(start, stop))


def _findings(
    records: RunRecords, stretch: JoinedSteps, setting: Setting, *, now: bool = False
) -> list[Verdict]:
    calls = [_stretch_calls(records.table(rank, "comm"), stretch) for rank in stretch.ranks]
    inputs = RuleInputs(stretch, setting, exposures(calls, stretch, setting.groups), hosts_of(records))
    findings = [*step_findings(inputs, ()), *exposed_findings(inputs, ())]
    share = rank_skew(stretch).share
    return [verdict for verdict in findings if verdict.name != "straggler" or _steady(verdict, share, now)]


def _steady(straggler: Verdict, share: float, now: bool) -> bool:
    """Whether it is always the same rank; of the newest steps it is enough that it is so more often than by chance."""
    return share >= SAME_FRACTION or (now and straggler.kind == FIXED and share >= _NOW_FRACTION)


def _stretch_calls(calls: Table, stretch: JoinedSteps) -> Table:
    """The calls of a stretch: a rank writes them in the order of its steps."""
    steps = np.ma.getdata(calls.column("step"))
    return calls.part(
        int(np.searchsorted(steps, stretch.steps[0])),
        int(np.searchsorted(steps, stretch.steps[-1], side="right")),
    )


def _neighbours(places: Sequence[int]) -> Iterator[list[int]]:
    for _, group in itertools.groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        yield [place for _, place in group]


def _span(begin: JoinedSteps, end: JoinedSteps) -> tuple[int, int]:
    return int(begin.steps[0]), int(end.steps[-1])


def _make_episode(
    records: RunRecords, measured: JoinedSteps, first: int, last: int, key: _Key, setting: Setting
) -> Episode | None:
    """A finding as it is from one step to another one, if it is above its threshold; ``goes_on`` is not known here."""
    findings = _findings(records, measured.select_range(first, last + 1), setting)
    finding = next((verdict for verdict in judge(findings, setting.thresholds) if _key(verdict) == key), None)
    return None if finding is None else Episode(first, last, False, finding)
