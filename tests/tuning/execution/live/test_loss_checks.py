"""A lossy leader's loss is taken again while its run goes on: when, what it costs, and what follows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from engine.config.run_config import RunConfig, load
from engine.lifecycle import summary_of
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from profilers.records.reader import RunRecords
from tests.support.studies.offline import OfflineExecutor, build_summary
from tests.tuning.execution.live.test_live_study import losses
from tests.tuning.execution.live.test_lossy_windows import Lossy, lossy_study
from tuning.analysis.confirmation import arms, winner
from tuning.execution.executor import OnStart, Ran, ShouldStop, trial_record
from tuning.execution.live import exploitation, windows
from tuning.execution.live.exploitation import run_to_the_end
from tuning.execution.live.loss_checks import (
    LEAST_STEPS,
    OF_THE_GAIN,
    TELLS,
    LeaderLossChecks,
    LossCheck,
    LossChecks,
)
from tuning.report.result import result
from tuning.report.study_result import Measurement, StudyResult
from tuning.search.policy import next_step
from tuning.storage import commands
from tuning.storage.state import CHECK, StudyState, Trial
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study
from workbench.analysis import live_report, studies


def played(checks: LossChecks, end: int) -> list[LossCheck]:
    """All checks of a run whose every step is looked at; a check does its steps twice, and is at them then."""
    done, step = list[LossCheck](), checks.since
    while step < end:
        if steps := replace(checks, checks=done).due(step, end):
            done.append(LossCheck(step, steps))
            step += steps
        step += 1
    return done


@pytest.mark.drawn(24)
@pytest.mark.parametrize("end", [100, 1000, 20_000])
@pytest.mark.parametrize("ratio", [1.0, 1.3, 4.5, 30.0])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("since", [0, 60, 400])
def test_checks_keep_to_their_share(end: int, ratio: float, share: float, since: int) -> None:
    found = played(LossChecks(share, ratio, since, 200), end)
    cost = sum(one.steps for one in found) * ratio
    rest_of_run = max(0, end - since)
    one = LEAST_STEPS * ratio <= OF_THE_GAIN * rest_of_run * (ratio - 1)
    assert cost <= max(share * rest_of_run, LEAST_STEPS * ratio if one else 0) + 1e-9
    places = [since, *(check.first for check in found)]
    assert all(later >= 2 * max(1, before) for before, later in itertools.pairwise(places))
    assert all(LEAST_STEPS <= check.steps <= 200 and check.first + 2 * check.steps <= end for check in found)
    assert all(check.first <= TELLS * check.steps for check in found[1:]), "fewer steps tell nothing by then"
    if one and since and 2 * since + 2 * LEAST_STEPS <= end:
        assert found, "what gains much is checked once at the least"


def test_a_long_run_is_checked_often_and_for_long() -> None:
    found = played(LossChecks(0.05, 2.0, 500, 1000), 100_000)
    assert [one.first for one in found] == [6250, 12500, 25000]
    assert all(one.steps > 600 for one in found)
    assert [one.first for one in played(LossChecks(0.05, 2.0, 500, 50), 100_000)] == [1000]
    assert [one.first for one in played(LossChecks(0.05, 2.0, 500, 100), 100_000)] == [1500, 3000]
    assert not played(LossChecks(0.0, 2.0, 500, 1000), 100_000)


def test_few_checks_lie_where_they_tell_most() -> None:
    """The first soon: what loses much shows it by then. Others while so few steps can tell."""
    (one,) = played(LossChecks(0.05, 4.7, 12, 200), 1000)
    assert one.first == 63 and one.steps >= LEAST_STEPS
    assert [check.first for check in played(LossChecks(0.05, 3.3, 12, 200), 1000)] == [63, 126]


class AtOnce(OfflineExecutor):
    """Windows that take no time."""

    def play(self, config: RunConfig, run: str) -> Ran:
        return RunOutcome(Ending.COMPLETED), build_summary(run, config, [1.0] * 4)


def test_a_check_that_was_asked_for_and_told_counts_once(tmp_path: Path) -> None:
    file = lossy_study(["none", "topk"], trials=2)
    result = run_study(file, tmp_path / STUDIES / file.name, AtOnce())
    row = next(row for row in result.trials if row.config["compression.method"] == "topk")
    values, checking = file.search_space.config(row.config).flat(), LeaderLossChecks(file)

    def done(*told: Measurement) -> Sequence[LossCheck]:
        found = checking.update_checks(replace(result, confirmations=[*told]), values, 60)
        assert found is not None
        return found.checks

    assert done() == ()
    checking.ask(63, 10)
    assert done() == (LossCheck(63, 10),), "withdrawn, or going on"
    told = replace(row, source=CHECK, steps_before=66, steps=10)
    assert done(told) == (LossCheck(66, 10),)
    checking.ask(200, 12)
    assert done(told) == (LossCheck(66, 10), LossCheck(200, 12))


def test_a_search_is_checked_from_its_last_loss_on() -> None:
    """It was over after 150 steps; its leader's loss was taken before step 40, or not since."""
    assert played(LossChecks(0.08, 3.0, 150, 200, first_loss_step=40), 1000)[0].first == 150
    assert played(LossChecks(0.08, 3.0, 150, 200, first_loss_step=150), 1000)[0].first == 300


def test_who_was_given_up_beside_one_that_is_ruled_out_is_tried_again() -> None:
    guard = {"threshold": 0.01, "min_steps": 1}
    file = lossy_study(["none", "topk", "int8"], trials=3, loss_guard=guard)
    usual = file.search_space.baseline[0]

    def trial(number: int, method: str, value: float, **more: Any) -> Trial:
        told = {
            "outcome": "completed",
            "steps": 12,
            "source": "sampler",
            "leader_ratio": value / 100,
            "leader_trial": 0,
        }
        config = usual | {"compression.method": method}
        return Trial(number=number, config=config, value=value, **told | more)

    windows = (
        trial(0, "none", 100.0, source="baseline", leader_ratio=None, leader_trial=None, validation_loss=3.9),
        trial(1, "topk", 500.0, validation_loss=3.9, reference_loss=3.9),
        trial(2, "int8", 300.0, outcome="pruned"),
    )
    before = next_step(StudyState(trials=windows), file, True)
    assert (before.phase, before.source) != ("search", "retry")
    failed = trial(
        3, "topk", 400.0, source=CHECK, confirms=1, window=12, validation_loss=3.8, reference_loss=3.5,
        loss_before=3.9, steps_before=200,
    )  # fmt: skip
    step = next_step(StudyState(trials=(*windows, failed)), file, True)
    assert (step.phase, step.source, step.details) == ("search", "retry", {"retry_of": 2, "attempt": 1})
    assert step.point == windows[2].config
    unwanted = StudyState(trials=(*windows, failed), limits={"compression.method": ["none"]})
    assert next_step(unwanted, file, True).source != "retry"
    short = lossy_study(["none", "topk", "int8"], trials=3, loss_guard=guard, budget={"wall_seconds": 4.5})
    slow = StudyState(trials=tuple(replace(one, seconds=1.0) for one in (*windows, failed)))
    assert next_step(slow, file, True).source == "retry" and next_step(slow, short, True).phase == "done"
    again = trial(4, "int8", 300.0, retry_of=2, attempt=1, validation_loss=3.5, reference_loss=3.5)
    after = StudyState(trials=(*windows, failed, again))
    assert next_step(after, file, True).source != "retry"
    # One more is searched for the one that is ruled out.
    assert next_step(StudyState(trials=windows), file, False).phase != "search"
    assert next_step(after, file, False).phase == "search"
    found = trial(5, "int8", 310.0, validation_loss=3.5, reference_loss=3.5)
    assert next_step(StudyState(trials=(*after.trials, found)), file, False).phase != "search"
    assert winner(after, file) == again


def test_a_check_rules_out_who_was_measured_again_as_well() -> None:
    """Rounds of re-measurement keep their arms while they go on, but not one that a check found out."""
    file = lossy_study(
        ["none", "topk"], trials=2, confirm_repeats=1, loss_guard={"threshold": 0.01, "min_steps": 1}
    )
    usual, told = file.search_space.baseline[0], {"outcome": "completed", "steps": 12}
    lossy = usual | {"compression.method": "topk"}
    good = {"validation_loss": 3.9, "reference_loss": 3.9, "leader_ratio": 3.0, "leader_trial": 0}
    trials = [
        Trial(0, usual, "baseline", value=100.0, validation_loss=3.9, **told),
        Trial(1, lossy, "sampler", value=300.0, **told | good),
    ]
    for place in range(6):
        config, value = (usual, 100.0 + place) if place % 2 == 0 else (lossy, 300.0 + place)
        again = {"confirms": place % 2, "round": place // 2, "window": 6}
        trials.append(Trial(2 + place, config, "confirm", value=value, **told | again))
    before = winner(StudyState(trials=tuple(trials)), file)
    assert before is not None and before.number == 1
    failing = {"validation_loss": 3.5, "reference_loss": 3.3, "loss_before": 3.6, "steps_before": 200}
    check = Trial(8, lossy, CHECK, confirms=1, window=12, value=300.0, **told | failing)
    after = winner(StudyState(trials=(*trials, check)), file)
    assert after is None or after.number == 0


def test_a_check_may_be_longer_than_a_trial() -> None:
    file = lossy_study(["none", "topk"])
    steps = file.config.train.steps + 8
    check = Trial(3, file.search_space.baseline[0], CHECK, confirms=1, window=steps)
    summary = replace(
        summary_of(file.config, "window", "gloo", None),
        losses=[4.0] * steps,
        validation_loss=3.5,
        reference_loss=3.4,
    )
    told = trial_record(check, RunOutcome(Ending.COMPLETED), summary, StudyState(), file)
    assert (told["validation_loss"], told["reference_loss"]) == (3.5, 3.4)


class Flattered:
    """Windows of what loses seem three times as fast as the baseline, and those of the search to lose nothing; checks
    are as they are.
    """

    def __init__(self, windows_of_run: Any) -> None:
        self._windows = windows_of_run

    def __call__(
        self, config: RunConfig, labels: dict[str, str], should_stop: ShouldStop, on_start: OnStart = None, /
    ) -> Ran:
        outcome, summary = self._windows(config, labels, should_stop, on_start)
        if config.compression.method == "none" or not outcome.good:
            return outcome, summary
        summary = replace(
            summary, leader_ratio=3.0, leader_ratio_low=2.9, leader_ratio_high=3.1, leader_trial=0
        )
        if labels["purpose"] == CHECK:
            return outcome, summary
        return outcome, replace(summary, validation_loss=summary.reference_loss, loss_before=None)


@pytest.mark.timeout(300)
def test_who_leads_and_learns_nothing_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth of each gradient passes for as good as all of it within the search. The run ends with the exact
    method, its own losses in order, and everybody is told why.
    """
    monkeypatch.setattr(exploitation, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(windows, "IDLE_SECONDS", 60.0)
    steps = 160
    base: dict[str, Any] = lossy_study(["none", "topk"])._dump_given()["base"]
    base["train"] |= {"learning_rate": 3e-3}  # so much is learned in a few steps that nobody can be in doubt
    file = lossy_study(
        ["none", "topk"],
        base=base,
        trials=2,
        loss_guard={"threshold": 0.01, "min_steps": 1},
        live={"steps": steps, "checkpoint_every": 20, "loss_checks": 0.5, "look_again": None},
    )
    tuned = Lossy(tmp_path, file)
    led = list[str]()

    def search() -> StudyResult:
        found = run_study(file, tuned.folder, Flattered(tuned.windows))
        assert found.best is not None
        led.append(found.best.config["compression.method"])
        return found

    result, changed = run_to_the_end(tuned.windows, file, search, lambda: nullcontext(lambda: False))
    assert (led, changed) == (["topk", "none"], "")
    folder = tuned.run
    assert load(folder / run_folder.CONFIG).compression.method == "none"
    assert len(losses(folder)) == steps

    (check,) = [row for row in result.confirmations if row.source == CHECK]
    lossy = next(row for row in result.trials if row.config["compression.method"] == "topk")
    assert check.confirms == lossy.number and lossy.guard is not None
    assert lossy.guard.state == "violated" and f"after {check.steps} steps" in lossy.guard.reason
    assert result.state == "ended" and result.fastest_lossy is not None
    assert result.fastest_lossy.guard is not None and result.fastest_lossy.guard.state == "violated"
    records = RunRecords(folder / run_folder.RECORDS)
    taken = [
        one.data["loss"]
        for rank in records.ranks()
        for one in records.events(rank)
        if one.kind == "validation" and one.data.get("step") == check.steps_before
    ]
    assert len(taken) == 2 and fmean(taken) == pytest.approx(check.loss_before)
    assert check.steps_before is not None and check.loss_before is not None
    assert lossy.steps_before and check.steps_before >= 2 * lossy.steps_before

    report = live_report.report_live_study(tuned.folder, studies.document(tuned.folder).result)
    assert report is not None
    (row,) = [row for row in report.windows if row.checks_loss]
    assert row.learned is not None and row.later_increase is not None and row.undone
    assert row.learned < 0.7 and row.later_increase > 0.02
    # What a check measured of speed counts for nobody.
    assert result.best is not None and result.best.config["compression.method"] == "none"


@pytest.mark.timeout(240)
def test_what_is_asked_while_the_run_trains_on_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that somebody asks for where nothing loses is refused with the reason; the run goes on."""
    monkeypatch.setattr(exploitation, "LOOK_SECONDS", 0.05)
    live = {"steps": 120, "checkpoint_every": 20, "look_again": None}
    file = lossy_study(["none", "int8"], trials=2, live=live)
    tuned, searches = Lossy(tmp_path, file), list[StudyResult]()

    def search() -> StudyResult:
        searches.append(run_study(file, tuned.folder, tuned.windows))
        if len(searches) == 1:
            commands.send(tuned.folder, CHECK, {"steps": 0}, "somebody")
        return searches[-1]

    result, changed = run_to_the_end(tuned.windows, file, search, lambda: nullcontext(lambda: False))
    assert len(searches) >= 2 and not changed
    (answer,) = [one for one in result.steering if one.command == CHECK and one.by == "somebody"]
    assert not answer.accepted and "takes steps=N, with N from 1 on" in answer.reason
    assert len(losses(tuned.run)) == 120


@pytest.mark.timeout(240)
def test_revert_while_the_run_trains_on_gives_it_what_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no window follows. What somebody sets by hand after that stays, as ever."""
    monkeypatch.setattr(exploitation, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(windows, "IDLE_SECONDS", 60.0)
    live = {"steps": 60, "checkpoint_every": 20, "look_again": None, "loss_checks": 0}
    file = lossy_study(["none", "int8"], trials=2, live=live)
    tuned, searches = Lossy(tmp_path, file), list[StudyResult]()

    def search() -> StudyResult:
        searches.append(run_study(file, tuned.folder, Flattered(tuned.windows)))
        if len(searches) == 1:
            commands.send(tuned.folder, "revert", {}, "somebody")
        return searches[-1]

    run_to_the_end(tuned.windows, file, search, lambda: nullcontext(lambda: False))
    assert searches[0].best is not None and searches[0].best.config["compression.method"] == "int8"
    assert len(searches) == 2 and len(losses(tuned.run)) == 60
    assert load(tuned.run / run_folder.CONFIG).compression.method == "none"


@pytest.mark.timeout(240)
def test_a_check_goes_on_where_the_search_has_lost_what_it_may(tmp_path: Path) -> None:
    """A part of its steps would tell no loss: all of them would be for nothing."""
    file = lossy_study(["none", "int8"], live={"steps": 60, "max_slowdown": 0.01, "over_steps": 10})
    tuned = Lossy(tmp_path, file)
    tuned.folder.mkdir(parents=True)
    usual = file.search_space.config(file.search_space.baseline[0])
    lossy, labels = usual.with_values({"compression.method": "int8"}), {"study": "live", "trial": "0"}
    outcome, _ = tuned.windows(usual, labels | {"purpose": "baseline"}, lambda: False)
    assert outcome.good
    outcome, summary = tuned.windows(lossy, labels | {"purpose": CHECK}, lambda: False)
    assert outcome.ending.value == "completed", outcome
    assert summary.validation_loss is not None and summary.reference_loss is not None
    tuned.starter.stop()


@pytest.mark.parametrize(
    ("gentle", "led"),
    [
        ((3.9, 3.7, 4.1), 8),
        ((3.9, None, None), 8),
        ((3.5, 3.3, 4.2), 8),
        ((3.7, 3.6, 3.8), 8),
        ((3.5, 3.4, 3.6), 2),
        ((None, None, None), 2),
    ],
)
def test_of_what_is_as_fast_the_one_that_loses_less_leads(gentle: tuple[float | None, ...], led: int) -> None:
    """Rank 2 sends less than rank 8 and learns less, which shows later: it leads where it is told to be faster by more
    than that is worth.
    """
    guard = {"threshold": 0.05, "min_steps": 1}
    space = {"compression.method": ["none", "powersgd"], "compression.rank": [2, 8, 16]}
    file = lossy_study(["none"], space=space, loss_guard=guard, trials=3)
    usual = file.search_space.baseline[0]
    told = {"outcome": "completed", "steps": 12, "validation_loss": 3.5}
    trials = [Trial(0, usual, "baseline", value=100.0, samples=(1.0, 1.01, 0.99), **told)]

    def window(rank: int, over: float, low: float | None, high: float | None) -> None:
        config = usual | {"compression.method": "powersgd", "compression.rank": rank}
        more = {"leader_ratio": over, "leader_ratio_low": low, "leader_ratio_high": high, "leader_trial": 0}
        ran = told | more | {"reference_loss": 3.5, "loss_before": 3.9, "steps_before": 8}
        steps = 1.0 / over, 1.01 / over, 0.99 / over
        trials.append(Trial(len(trials), config, "sampler", value=100.0 * over, samples=steps, **ran))

    window(2, 4.0, 3.9, 4.1)
    proposed = next_step(StudyState(trials=tuple(trials)), file, exhausted=False)
    assert proposed.point is not None and proposed.point["compression.rank"] == 8, proposed  # 16 is none here
    if (over := gentle[0]) is not None:
        window(8, over, gentle[1], gentle[2])
    state = StudyState(trials=tuple(trials))
    best = winner(state, file)
    assert best is not None and best.config["compression.rank"] == led
    said = any("loses less, which shows later" in line for line in result(state, file).result_lines)
    assert said == (led == 8)
    # That rank 2 is faster is known where 8 leads, and not asked again.
    assert led == 2 or [arm.config["compression.rank"] for arm in arms(state, file)[1:]] == [8]


def test_what_is_exact_and_as_fast_leads() -> None:
    file = lossy_study(["none", "topk"], loss_guard={"threshold": 0.05, "min_steps": 1}, trials=2)
    usual, told = file.search_space.baseline[0], {"outcome": "completed", "steps": 12, "validation_loss": 3.5}
    lossy = told | {"reference_loss": 3.5, "loss_before": 3.9, "steps_before": 8, "leader_trial": 0}
    for over, leads in ((1.02, "none"), (1.2, "topk")):
        trials = (
            Trial(0, usual, "baseline", value=100.0, **told),
            Trial(
                1,
                usual | {"compression.method": "topk"},
                "sampler",
                value=100.0 * over,
                leader_ratio=over,
                **lossy,
            ),
        )
        best = winner(StudyState(trials=trials), file)
        assert best is not None and best.config["compression.method"] == leads
