"""The numbers of a study's figures: which trials count, what the best so far is, where failures stand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuning.analysis.test_confirmation import FILE as CONFIRMED
from tests.tuning.analysis.test_confirmation import rerun, searched
from tests.tuning.report.test_result import FILE, compared
from tuning.report.result import result
from tuning.report.study_result import Entry, StudyResult, TrialRow
from tuning.sensitivity.outcomes import Importance
from workbench.figures import study
from workbench.figures.study import best_so_far, importance_series, trial_series, trials


def trial(number: int, value: float | None, **more: Any) -> TrialRow:
    outcome = "completed" if value is not None else "oom"
    low, high = (None, None) if value is None else (value * 0.9, value * 1.2)
    known = {"value": value, "low": low, "high": high, "outcome": outcome} | more
    return TrialRow(number, **known)


LOSSY = {"config": {"compression.method": "topk"}}


def test_the_best_so_far_never_falls_and_waits_for_a_first_value() -> None:
    rows = [trial(0, None), trial(1, 10.0), trial(2, 8.0), trial(3, None), trial(4, 12.0)]
    assert best_so_far(rows) == [(1, 10.0), (2, 10.0), (3, 10.0), (4, 12.0)]


def test_a_lossy_trial_is_the_best_only_if_the_guard_allows_it() -> None:
    rows = [trial(0, 10.0), trial(1, 20.0, **LOSSY)]
    assert best_so_far(rows)[-1] == (1, 10.0)
    rows.append(trial(2, 15.0, constraints={"loss_guard": -0.01}, **LOSSY))
    assert best_so_far(rows)[-1] == (2, 15.0)
    rows.append(trial(3, 30.0, constraints={"loss_guard": 0.01}, **LOSSY))
    assert best_so_far(rows)[-1] == (3, 15.0)


def test_trials_fall_into_groups() -> None:
    rows = [
        trial(0, 10.0, label="dp=4"),
        trial(1, None, reason="rank 2 ran out"),
        trial(2, 12.0, **LOSSY),
        trial(3, None, outcome="running", label="tp=2"),
    ]
    found = trial_series(
        StudyResult(trials=rows, confirmations=[trial(4, 11.0, confirms=2)], baseline=Entry(0, value=10.0))
    )
    assert [(point.number, point.words) for point in found.exact] == [(0, "dp=4")]
    assert (found.exact[0].lower_error, found.exact[0].upper_error) == pytest.approx((1.0, 2.0))
    assert [point.number for point in found.lossy] == [2]
    assert [point.number for point in found.repeated] == [2]
    assert [tuple(mark) for mark in found.failed] == [(1, "oom", "rank 2 ran out")]
    assert [tuple(mark) for mark in found.running] == [(3, "running", "tp=2")]
    assert found.baseline == 10.0


def test_before_anything_is_measured_the_figure_has_no_made_up_scale() -> None:
    row = trial(0, None, outcome="running")
    waiting = study.trials(trial_series(StudyResult(trials=[row]))).layout
    assert waiting.yaxis.showticklabels is False and waiting.xaxis.autorangeoptions.clipmin == -0.5
    measured = study.trials(trial_series(StudyResult(trials=[trial(0, 10.0), row]))).layout
    assert measured.yaxis.showticklabels is None


def test_failures_stand_below_every_value_but_not_below_zero() -> None:
    low = trial_series(StudyResult(trials=[trial(0, 10.0), trial(1, 20.0)])).floor
    assert 0 < low < 9.0
    assert trial_series(StudyResult(trials=[trial(0, 0.5), trial(1, 20.0)])).floor == 0.0
    assert trial_series(StudyResult(trials=[trial(0, None)])).floor == 0.0
    assert trial_series(StudyResult()).exact == []


def test_a_value_without_an_interval_has_no_error_bar() -> None:
    point = trial_series(StudyResult(trials=[trial(0, 10.0, low=None, high=None)])).exact[0]
    assert (point.lower_error, point.upper_error) == (0.0, 0.0)


def test_importance_is_ordered_or_says_why_it_is_not_known() -> None:
    found = importance_series(Importance({"a": 0.2, "b": 0.8}))
    assert (found.names, found.shares) == (["b", "a"], [0.8, 0.2])
    assert importance_series(Importance(None, "needs 8")).reason == "needs 8"
    assert importance_series(None).reason


def test_what_was_measured_again_is_labelled_apart_from_the_search() -> None:
    """The line of the search ends at the lucky 1,200; the study claims what the repeats say."""
    again = trial_series(result(compared(1.1), FILE))
    assert again.confirmed_value == pytest.approx(1100, rel=0.01)
    assert max(again.best_values) == pytest.approx(1200, rel=0.01)
    drawing = trials(again)
    words = [one.text for one in drawing.layout.annotations]
    assert "baseline,\nmeasured again" in words and "best,\nmeasured again" in words
    assert "best of the search so far" in [trace.name for trace in drawing.data]


@pytest.mark.parametrize("ratio", [1.001, 0.999])
def test_words_of_two_levels_stand_apart_however_near_these_are(ratio: float) -> None:
    """The upper ones end at their line and the lower ones begin at theirs."""
    series = trial_series(result(compared(1.1), FILE))._replace(
        baseline=1000.0, confirmed_value=1000.0 * ratio
    )
    levels = [one for one in trials(series).layout.annotations if "measured again" in one.text]
    lower, upper = sorted(levels, key=lambda one: float(one.y))
    assert (lower.yanchor, upper.yanchor, lower.y < upper.y) == ("top", "bottom", True)
    alone = trials(series._replace(confirmed_value=None)).layout.annotations
    assert [one.yanchor for one in alone] == ["middle"]


def test_the_course_of_a_confirmation_ends_with_what_the_study_claims() -> None:
    """The last point of the fastest and its interval are the gain of the document; before there are rounds enough it
    has no interval.
    """
    found = result(rerun(searched(1000.0, 1010.0, 1005.0), {0: 1000.0, 1: 1060.0, 2: 1003.0}), CONFIRMED)
    leader, other = sorted(study.arm_curves(found), key=lambda course: not course.leads)
    assert (leader.name, leader.leads, other.leads) == ("trial 1", True, False)
    assert found.gain is not None
    ends = [leader.percent[-1], leader.low[-1], leader.high[-1]]
    claimed = [found.gain.ratio, found.gain.low, found.gain.high]
    assert ends == pytest.approx([100 * ((value or 0) - 1) for value in claimed])
    assert leader.low[:3] == [None, None, None]
    drawing = study.confirmation([leader, other], 0.03, "% faster than the baseline")
    assert [trace.name for trace in drawing.data if trace.name] == ["trial 1, the fastest", "trial 2"]
    assert study.arm_curves(StudyResult()) == []
