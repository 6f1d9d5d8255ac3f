"""Who leads, by the steps around a window; and when a run that nobody turns is called slower or faster."""

from __future__ import annotations

import math
import random

import pytest

from profilers.model.run_summary import RunSummary
from tests.support.studies.offline import build_summary
from tests.tuning.execution.live.test_live_study import live_study
from tuning.execution.executor import CostlyBaselineError, EndOfTrialsError
from tuning.execution.live.leader import STEPS, Leader, drift_words, lead_of_window, may_lead_after_all
from tuning.spec.study_file import parse


def test_too_few_steps_say_nothing() -> None:
    assert drift_words([1.0] * STEPS + [9.0] * (STEPS - 1), 0.3) == ""


def test_a_lasting_change_is_told_with_its_size() -> None:
    assert (
        drift_words([1.0] * 50 + [1.5] * STEPS, 0.3) == "a step takes 50 % longer than when the search ended"
    )
    assert drift_words([1.0] * 50 + [0.5] * STEPS, 0.3) == "a step takes 50 % less than when the search ended"


def test_a_hiccup_is_no_drift() -> None:
    assert drift_words([1.0] * 70 + [30.0] + [1.0] * 10, 0.3) == ""
    assert drift_words([1.0] * 80 + [2.0] * (STEPS // 2), 0.3) == ""


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_no_drift(seed: int) -> None:
    draw = random.Random(seed)
    seconds = [draw.lognormvariate(0.0, 0.15) for _ in range(2_000)]
    assert not any(drift_words(seconds[:end], 0.3) for end in range(2 * STEPS, 2_000, 7))


def test_the_search_that_follows_begins_with_what_leads(leader: int = 4) -> None:
    file = live_study(name="job")
    first = file.looking_again({"parallel.dp": 2, "batch.micro_batch": leader, "memory.recompute": "full"})
    assert (first.name, first.inherit, first.following) == ("job-look-1", ["job"], "job-look-2")
    baseline = first.search_space.baseline[0]
    assert baseline["batch.micro_batch"] == leader
    assert first.config.memory.recompute == "full"
    assert first.fingerprint() != file.fingerprint()
    second = first.looking_again({"batch.micro_batch": 2})
    assert (second.name, second.inherit) == ("job-look-2", ["job-look-1"])
    assert parse(second._dump_given()).name == second.name


def test_a_drift_cancels_between_the_two_sides() -> None:
    """Each step takes 2 % longer than the one before, whoever does it; alone after A, B seems slower."""
    steps = [1.02**number for number in range(24)]
    before, window, after = steps[:6], steps[6:18], steps[18:]
    one, both = lead_of_window(before, window), lead_of_window(before, window, after)
    assert one is not None and both is not None and not one.both and both.both
    assert one.slower and one.ratio.value == pytest.approx(1.02**-6)
    assert both.ratio.value == pytest.approx(1.0) and not both.slower
    assert both.ratio.low is not None and both.ratio.high is not None
    assert both.ratio.low < 1 < both.ratio.high


def test_a_challenger_that_is_faster_is_told_so_on_both_sides() -> None:
    draw = random.Random(3)
    leader, challenger = ([seconds * draw.gauss(1, 0.01) for _ in range(12)] for seconds in (1.0, 0.8))
    found = lead_of_window(leader[:6], challenger, leader[6:])
    assert found is not None and found.lead.verdict(0.0) == "better"
    assert found.ratio.low is not None and found.ratio.high is not None
    assert found.ratio.low < 1.25 < found.ratio.high


def test_too_few_steps_have_a_ratio_and_no_interval() -> None:
    found = lead_of_window([1.0, 1.1, 0.9], [0.5, 0.51])
    assert found is not None and found.ratio.low is None and not found.slower
    assert found.ratio.value == pytest.approx((1.1 * 0.9 / (0.5 * 0.51)) ** 0.5)
    assert lead_of_window([], [1.0]) is None


@pytest.mark.parametrize("seed", range(4))
def test_the_leader_beside_itself_is_seldom_told_apart(seed: int) -> None:
    """Steps that resemble each other (r = 0.6) by 10 %: at most one in twenty of 300 windows of either length."""
    draw = random.Random(seed)
    for half in (6, 12):
        wrong = 0
        for _ in range(300):
            away, steps = 0.0, []
            for _ in range(4 * half):
                away = 0.6 * away + draw.gauss(0, 0.08)
                steps.append(math.exp(away))
            found = lead_of_window(steps[:half], steps[half : 3 * half], steps[3 * half :])
            assert found is not None
            wrong += found.lead.verdict(0.0) != "undecided"
        assert wrong <= 15, (half, wrong)


def test_a_window_that_was_given_up_counts_where_the_leader_became_as_slow() -> None:
    assert may_lead_after_all([0.8, 0.8], [1.0, 1.0, 1.0])
    assert not may_lead_after_all([0.8, 0.8], [0.5, 0.5, 0.5]) and not may_lead_after_all([0.8], [])


def test_half_a_round_is_not_begun_for_nothing() -> None:
    """Whether it is worth it is asked before the first window of a round alone."""
    leader = Leader()
    one, other = (live_study().config.with_values({"batch.micro_batch": size}) for size in (1, 2))
    for config, seconds in ((one, 1.0), (other, 0.1)):
        leader.rank(config, summary_with([seconds] * 4), is_repeat=False, spoilt=False)
    leader.check_round(one, 100_000)
    leader.check_round(other, 1)
    with pytest.raises(EndOfTrialsError, match="would cost"):
        leader.check_round(other, 1)


def test_on_an_uneven_machine_a_window_is_given_up_beside_the_leader_right_before() -> None:
    """Its steps stray so much that a level of 1.6 is not told from 1."""
    leader = Leader()
    fast, other = (live_study().config.with_values({"batch.micro_batch": size}) for size in (1, 2))
    leader.rank(fast, summary_with([0.5, 1.5, 0.4, 1.6]), is_repeat=False, spoilt=False)
    before = [1.0, 2.2, 0.9, 2.3]
    assert leader.level(before) == 1.0
    assert leader.why_behind(other, [1.5, 1.5, 1.5], before) == ""
    assert "as the machine is now" in leader.why_behind(other, [1.9, 1.9, 1.9], before)
    assert "as it was at first" in leader.why_behind(other, [1.5, 1.5, 1.5], [0.5, 1.5])


def test_whoever_is_measured_next_leads_once_nobody_may_have_the_leader_s_values() -> None:
    leader = Leader()
    fast, slow = (live_study().config.with_values({"batch.micro_batch": size}) for size in (1, 2))
    leader.rank(fast, summary_with([0.1] * 4), is_repeat=False, spoilt=False, trial=0)
    assert leader.why_behind(slow, [1.0] * 4, [])
    leader.forget()
    assert (leader.config, leader.trial) == (fast, None), "what it was is still better than nothing known"
    assert not leader.why_behind(slow, [1.0] * 4, [])
    assert leader.rank(slow, summary_with([1.0] * 4), is_repeat=False, spoilt=False, trial=1)
    assert (leader.config, leader.trial) == (slow, 1)


def test_a_dear_baseline_is_spared_once() -> None:
    leader = Leader()
    slow, one, other = (live_study().config.with_values({"batch.micro_batch": size}) for size in (1, 2, 4))
    for config, seconds in ((slow, 10.0), (one, 1.0), (other, 1.01)):
        leader.rank(config, summary_with([seconds, 1.01 * seconds] * 2), is_repeat=False, spoilt=False)
    with pytest.raises(CostlyBaselineError, match="again without the baseline"):
        leader.check_round(slow, 500)
    leader.check_round(one, 500)
    leader.check_round(other, 500)
    with pytest.raises(EndOfTrialsError, match="would cost") as over:
        leader.check_round(one, 1)
    assert not isinstance(over.value, CostlyBaselineError)


def summary_with(seconds: list[float]) -> RunSummary:
    config = live_study().config
    return build_summary("window", config, seconds)
