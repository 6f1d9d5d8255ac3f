"""The confirmation: who is measured again and in which order, who wins, what breaks a tie, and what casts doubt."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config.layout import least_steps
from engine.config.run_config import RunConfig
from engine.run.outcome import Ending, RunOutcome
from profilers.model.machine_rows import GpuRow, HostRow
from profilers.model.run_summary import RunSummary, StepSeconds
from tests.support.studies.fake import Machine, run_study, study
from tuning.analysis import conditions, confirmation, recommendation
from tuning.analysis.comparison import compare
from tuning.analysis.confirmation import ConfirmationResult
from tuning.analysis.paired_comparison import Lead
from tuning.analysis.recommendation import TieRule
from tuning.controllers import open_study
from tuning.report.result import condition_flags, result
from tuning.report.study_result import Gain, StudyResult
from tuning.report.summary_line import gain_text
from tuning.space import labels, rounds
from tuning.spec.objectives import MeasuredValue
from tuning.spec.study_file import StudyFile
from tuning.storage import study_folder
from tuning.storage.journal import JournalReader
from tuning.storage.state import StudyState, Trial
from workbench.text.study import caption, confirmation_columns

FILE = study()
SPACE = FILE.search_space
PLAIN = SPACE.baseline[0]
WIDE = SPACE.complete({"parallel.tp": 2, "batch.micro_batch": 4})
DEEP = SPACE.complete({"parallel.pp": 2, "memory.recompute": "full", "batch.micro_batch": 4})
TREE = {"id": "r", "layout": {}, "world_size": 4, "backend": "gloo", "parameters": 1, "tokens_per_step": 100}


def trial(
    number: int, config: dict[str, Any], value: float, confirms: int | None = None, **more: Any
) -> Trial:
    random = np.random.default_rng(number)
    samples = tuple(float(value * (1 + 0.003 * random.normal())) for _ in range(20))
    source = "confirm" if confirms is not None else "sampler" if number else "baseline"
    known = Trial(
        number, config, source, confirms=confirms, outcome="completed", value=value, samples=samples
    )
    return replace(known, **more)


def searched(*values: float, **more: Any) -> StudyState:
    points = (PLAIN, WIDE, DEEP)
    return StudyState(
        trials=tuple(trial(number, points[number], value, **more) for number, value in enumerate(values))
    )


def rerun(
    state: StudyState,
    values: dict[int, float],
    file: StudyFile = FILE,
    noise: Callable[[int], float] = lambda number: 0.001 * (number % 3),
    **more: Any,
) -> StudyState:
    """As far as the rounds go; a trial is measured at its value, a little off in each window."""
    while (window := confirmation.next_window(state, file)) is not None:
        number, arm = len(state.trials), window.trial
        told = {"round": window.round, "window": window.steps} | more
        again = trial(number, arm.config, values[arm.number] * (1 + noise(number)), arm.number, **told)
        state = replace(state, trials=(*state.trials, again))
    return state


def wild(number: int) -> float:
    return float(np.random.default_rng(number).normal(0, 0.1))


def order(state: StudyState) -> list[int | None]:
    return [one.confirms for one in state.trials if one.confirms is not None]


def found_in(state: StudyState, file: StudyFile = FILE) -> ConfirmationResult:
    found = confirmation.confirmation_of(state, file)
    assert found is not None
    return found


def test_the_leaders_are_measured_in_turns_and_back_again() -> None:
    state = rerun(searched(1000.0, 1010.0, 1005.0), {0: 1000.0, 1: 1004.0, 2: 1003.0})
    assert order(state)[:9] == [0, 1, 2, 2, 1, 0, 0, 1, 2]


def test_who_is_far_behind_is_not_measured_again() -> None:
    assert [arm.number for arm in confirmation.arms(searched(1000.0, 1300.0, 900.0), FILE)] == [0, 1]
    assert [arm.number for arm in confirmation.arms(searched(1000.0, 1300.0, 1250.0), FILE)] == [0, 1, 2]
    alone = study(confirm_runners_up=0)
    assert [arm.number for arm in confirmation.arms(searched(1000.0, 1300.0, 1250.0), alone)] == [0, 1]
    assert confirmation.arms(searched(1000.0, 700.0, 600.0), FILE) == ()
    raced = searched(1000.0, 1300.0)
    pruned = replace(raced, trials=(*raced.trials, trial(2, DEEP, 1290.0, outcome="pruned")))
    assert [arm.number for arm in confirmation.arms(pruned, FILE)] == [0, 1]


def test_rounds_end_once_it_is_clear_who_is_faster_or_that_both_are_as_fast() -> None:
    faster = rerun(searched(1000.0, 2000.0, 900.0), {0: 1000.0, 1: 2000.0})
    equal = rerun(searched(1000.0, 1020.0, 900.0), {0: 1000.0, 1: 1001.0})
    for state, verdict in ((faster, "better"), (equal, "equal")):
        found = found_in(state)
        assert len(order(state)) <= 12
        assert found.compare_fastest(found.baseline).verdict in (verdict, "equal")
    assert [arm.trial.number for arm in found_in(equal).equal] == [0, 1]


def test_without_an_answer_rounds_end_with_the_budget() -> None:
    """Three lengths of a trial for each of two; a window is 4 + 4 of its 24 steps."""
    file = study(confirm_repeats=3)
    state = rerun(searched(1000.0, 1020.0, 900.0), {0: 1000.0, 1: 1060.0}, file, wild)
    assert len(order(state)) == 18
    assert confirmation.used_budget(state, file) == pytest.approx(confirmation.budget_of_windows(state, file))
    shown = result(state, file)
    assert shown.gain is not None
    assert shown.gain.verdict == "undecided"
    assert shown.recommended is not None
    assert shown.recommended.probability is not None
    assert shown.recommended.probability >= 0.5
    outlook = shown.confirmation_rounds and shown.confirmation_rounds.outlook
    assert outlook
    assert outlook.confirm_repeats > 3
    assert f"more would decide (confirm_repeats: {outlook.confirm_repeats})" in shown.result_line
    assert len(shown.result_lines) <= 3
    more = rerun(state, {0: 1000.0, 1: 1010.0}, study(confirm_repeats=6), wild)
    assert len(order(more)) == 36


def test_an_arm_that_is_told_apart_leaves_its_budget_to_the_others() -> None:
    file = study(confirm_repeats=4)
    state = rerun(
        searched(1000.0, 1010.0, 1005.0), {0: 1000.0, 1: 1001.0, 2: 500.0}, file, lambda n: wild(n) / 2
    )
    counts = [order(state).count(number) for number in (0, 1, 2)]
    assert counts[2] < 12 < counts[1]
    found = found_in(state)
    assert {arm.trial.number for arm in found.contenders} <= {0, 1}


def test_who_fails_a_window_is_out() -> None:
    state = rerun(searched(1000.0, 1010.0, 1005.0), {0: 1000.0, 1: 1001.0, 2: 1002.0}, noise=wild)
    at = next(one for one in state.trials if one.confirms == 2 and one.round == 3)
    before = tuple(one for one in state.trials if one.round is None or one.round < 3)
    others = [replace(one, number=len(before) + place) for place, one in enumerate(
        one for one in state.trials if one.round == 3 and one.confirms != 2)]  # fmt: skip
    failed = replace(at, number=len(before) + 2, value=None, outcome="oom", samples=())
    broken = replace(state, trials=(*before, *others, failed))
    following = confirmation.next_window(broken, FILE)
    assert following is not None
    assert following.round == 4
    found = found_in(broken)
    assert 2 not in {arm.trial.number for arm in found.contenders}
    assert found.fastest.trial.number != 2


def test_windows_measure_as_long_as_they_wait() -> None:
    """A second beside the steps of 0.1 s: 4 of warm-up, 10 lost, 14 measured; never longer than the trial."""
    first = searched(1000.0, 1010.0)
    known = {"measures": {"step_seconds": MeasuredValue(0.1)}, "steps": 24}
    slow = replace(first, trials=tuple(replace(one, seconds=3.4, **known) for one in first.trials))
    window = confirmation.next_window(slow, FILE)
    assert window is not None
    assert window.steps == 18
    slower = replace(first, trials=tuple(replace(one, seconds=30.0, **known) for one in first.trials))
    window = confirmation.next_window(slower, FILE)
    assert window is not None
    assert window.steps is None


def test_windows_of_trials_with_a_time_end_after_their_steps() -> None:
    """Of trials of 400 steps, whatever ``train.steps`` says."""
    file = study(base={"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"seconds": 40.0}})
    first = searched(1000.0, 1010.0)
    known = {"measures": {"step_seconds": MeasuredValue(0.1)}, "steps": 400, "seconds": 45.0}
    state = replace(first, trials=tuple(replace(one, **known) for one in first.trials))
    window = confirmation.next_window(state, file)
    assert window is not None
    assert window.steps is not None
    assert 24 < window.steps < 400
    config = rounds.window(file.search_space.config(state.trials[0].config), window.steps)
    assert (config.train.seconds, config.train.steps) == (None, window.steps)


def test_windows_hold_whole_rounds_of_the_outer_loop() -> None:
    base = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": 60, "warmup": 4}}
    file = study(space={"outer.method": ["none", "local"], "outer.period": [7]}, base=base)
    local = trial(1, file.search_space.complete({"outer.method": "local", "outer.period": 7}), 1000.0)
    state = StudyState(trials=(trial(0, file.search_space.baseline[0], 1000.0), local))
    steps = confirmation.window_steps(state, file, local)
    assert steps is not None
    config = rounds.window(file.search_space.config(local.config), steps)
    assert config.train.steps == steps
    measured = steps - least_steps(config, 0)
    assert (measured % 7, measured // 7) == (0, 1)


def test_only_what_was_measured_again_decides() -> None:
    found = found_in(rerun(searched(1000.0, 1100.0, 1090.0), {0: 1000.0, 1: 1050.0, 2: 1150.0}))
    assert found.fastest.trial.number == 2
    document = result(
        rerun(searched(1000.0, 1100.0, 1090.0), {0: 1000.0, 1: 1050.0, 2: 1150.0}), FILE
    ).as_dict()
    assert document["best"]["trial"] == 2
    assert document["gain"]["ratio"] == pytest.approx(1.15, rel=0.005)


def test_old_measurements_do_not_confirm_a_study_that_grew() -> None:
    state = rerun(searched(1000.0, 1200.0), {0: 1000.0, 1: 1200.0})
    grown = replace(state, trials=(*state.trials, trial(len(state.trials), DEEP, 1500.0)))
    arms = [arm.number for arm in confirmation.arms(grown, FILE)]
    assert arms == [0, len(state.trials)]
    window = confirmation.next_window(grown, FILE)
    assert window is not None
    assert (window.trial, window.round) == (grown.trials[0], 0)
    close = replace(state, trials=(*state.trials, trial(len(state.trials), DEEP, 1250.0)))
    assert confirmation.confirmation_of(close, FILE) is None
    document = result(close, FILE).as_dict()
    assert (document["best"]["trial"], document["gain"]["confirmed"]) == (len(state.trials), False)


def test_a_tie_goes_to_memory_headroom() -> None:
    state = searched(1000.0, 1010.0)
    light = replace(state, trials=(replace(state.trials[0], peak_memory_bytes=100),
                                   replace(state.trials[1], peak_memory_bytes=90)))  # fmt: skip
    again = rerun(light, {0: 1000.0, 1: 1001.0}, peak_memory_bytes=90)
    heavy = [replace(one, peak_memory_bytes=100) if one.confirms == 0 else one for one in again.trials]
    decision = recommendation.decide(found_in(replace(again, trials=tuple(heavy))), FILE)
    assert (decision.arm.trial.number, decision.rule) == (1, "memory")
    assert decision.why == "trials 0 and 1 are equal; it needs at least 10 % less memory"


def test_memory_that_grows_from_run_to_run_breaks_no_tie() -> None:
    again = rerun(searched(1000.0, 1010.0), {0: 1000.0, 1: 1001.0})
    grown = [replace(one, peak_memory_bytes=100 + 9 * one.number) for one in again.trials]
    decision = recommendation.decide(found_in(replace(again, trials=tuple(grown))), FILE)
    assert (decision.arm.trial.number, decision.rule) == (0, "simplicity")


def test_of_those_that_memory_leaves_the_fastest_is_taken() -> None:
    """The fastest of all three needs more memory, so it is not said to be what the choice fell on."""
    other = WIDE | {"parallel.tp": 4, "parallel.dp": 1}
    kept = {0: 100, 1: 90, 2: 90}
    first = [trial(number, config, 1000.0) for number, config in enumerate((PLAIN, WIDE, other))]
    again = rerun(StudyState(trials=tuple(first)), {0: 1004.0, 1: 1000.0, 2: 1002.0})
    known = [
        replace(one, peak_memory_bytes=kept[one.number if one.confirms is None else one.confirms])
        for one in again.trials
    ]
    decision = recommendation.decide(found_in(replace(again, trials=tuple(known))), FILE)
    assert (decision.arm.trial.number, decision.rule) == (2, "speed")
    assert decision.why.startswith(
        "trials 0, 1 and 2 are equal, 1 and 2 also in memory and simplicity; of these it was "
    )


def test_leaders_are_measured_again_where_the_baseline_cannot_run(tmp_path: Path) -> None:
    def too_large(config: RunConfig) -> RunOutcome | None:
        plain = config.parallel.dp == 4
        return RunOutcome(Ending.OOM, "too large") if plain else None

    space = {"parallel.pp": [1, 2], "overlap.bucket_mb": [1.0, 5.0, 25.0]}
    machine = Machine(by_config=too_large, run_noise=0.01)
    found = run_study(study(trials=6, space=space), tmp_path / "studies" / "first", machine)
    shown = found["confirmation_rounds"]
    assert (found["baseline"], found["gain"]) == (None, None)
    assert len(shown["order"]) >= 4
    assert not any(arm["is_baseline"] for arm in shown["arms"])
    assert shown["beside"] in shown["order"]
    assert "the baseline ended as oom (too large); measured again, it " in found["result_line"]
    assert f"beside trial {shown['beside']}" in confirmation_columns(StudyResult.from_dict(found))


def test_a_tie_in_memory_goes_to_the_simplest() -> None:
    state = rerun(searched(1000.0, 1010.0, 1008.0), {0: 1000.0, 1: 1001.0, 2: 1002.0}, peak_memory_bytes=100)
    state = replace(state, trials=tuple(replace(one, peak_memory_bytes=98) for one in state.trials))
    decision = recommendation.decide(found_in(state), FILE)
    assert (decision.arm.trial.number, decision.rule) == (0, "simplicity")
    assert decision.why.endswith("it is the simplest: everything at its plain value")


def test_what_is_simple() -> None:
    assert labels.complexity(SPACE, PLAIN) == 0
    assert labels.turned_keys(SPACE, WIDE) == ["parallel.tp", "batch.micro_batch"]
    assert labels.complexity(SPACE, DEEP) == 3


def test_a_winner_that_is_clear_needs_no_tie_break() -> None:
    decision = recommendation.decide(found_in(rerun(searched(1000.0, 1300.0), {0: 1000.0, 1: 1300.0})), FILE)
    assert (decision.arm.trial.number, decision.rule, decision.why) == (
        1,
        "speed",
        "the fastest, measured again",
    )


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict", "words"),
    [
        (1.031, 1.019, 1.042, "better", "3.1 % faster than B, 95 % interval 1.9 to 4.2 %"),
        (0.9, 0.88, 0.92, "worse", "10.0 % slower than B, 95 % interval 8.0 to 12.0 %"),
        (1.004, 0.99, 1.02, "equal", "equal to B to within 3 %: +0.4 %, 95 % interval -1.0 to +2.0 %"),
        (
            1.024,
            0.97,
            1.08,
            "undecided",
            "undecided: +2.4 % compared with B, 95 % interval -3.0 to +8.0 %, 82 % likely to be faster",
        ),
        (
            1.2,
            None,
            None,
            "undecided",
            "undecided: +20.0 % compared with B, from too few rounds for an interval",
        ),
    ],
)
def test_the_claim_in_words(
    ratio: float, low: float | None, high: float | None, verdict: str, words: str
) -> None:
    assert gain_text(Gain(ratio, low, high, verdict, True, 0.82, 0.03), "B").startswith(words)


def test_an_interval_that_a_chance_seems_to_contradict_is_explained() -> None:
    """Of one look 98 % would mean that it is faster; the interval holds after every round, and is wider."""
    found = gain_text(Gain(1.2, 0.88, 1.7, "undecided", True, 0.986, 0.03), "B")
    assert found.endswith(
        "-12.0 to +70.0 %, 99 % likely to be faster (the interval, which holds after every round, is wider than that)"
    )


def test_runs_under_different_conditions_are_flagged() -> None:
    state = rerun(searched(1000.0, 1300.0), {0: 1000.0, 1: 1300.0}, conditions={"sm_clock_mhz": 1500.0})
    assert condition_flags(found_in(state)) == []
    slow = [replace(one, conditions={"sm_clock_mhz": 1410.0, "throttled_share": 0.4}) if one.confirms == 0 else one
            for one in state.trials]  # fmt: skip
    expected = "GPU clocks differed by 6 % (1,410 MHz in trial 0, 1,500 MHz in trial 1): measure again"
    found = found_in(replace(state, trials=tuple(slow)))
    assert condition_flags(found) == [expected]
    assert expected in result(replace(state, trials=tuple(slow)), FILE).result_line


def test_conditions_come_from_the_summary() -> None:
    gpus = [GpuRow(0, 10, sm_clock_mhz=1400.0, max_temperature_celsius=70.0, ranks=[0],
                   throttled={"idle": 0.9, "power cap": 0.2}), GpuRow(1, 10, sm_clock_mhz=200.0, ranks=[])]  # fmt: skip
    summary = replace(RunSummary.from_dict(TREE), gpus=gpus, hosts=[HostRow(None, [0, 1], 10, cpu_fraction=0.75)],
                      step_seconds=StepSeconds(1.0, 1.0, 1.0, 1.0), cpu_seconds_per_step=2.0)  # fmt: skip
    found = conditions.run_conditions(summary, processors=4)
    assert found == {
        "sm_clock_mhz": 1400.0,
        "gpu_celsius": 70.0,
        "throttled_share": 0.2,
        "others_share": 0.25,
    }
    assert conditions.run_conditions(RunSummary.from_dict(TREE)) == {}


def test_others_on_the_processors_are_told_in_words() -> None:
    (line,) = conditions.differences([{"others_share": 0.12}], [{"others_share": 0.01}], ("A", "B"))
    assert line.startswith(
        "the share of the processors that others took differed by 11 % (12 % in A, 1 % in B)"
    )


def test_a_study_shows_its_rounds(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "first"
    found = run_study(study(trials=8), folder, Machine(run_noise=0.01))
    shown = found["confirmation_rounds"]
    assert found["best"]["trial"] == shown["winner"]
    assert found["recommended"]["trial"] == shown["recommended"]
    assert shown["order"][0] == 0
    assert [row["confirms"] for row in found["confirmations"]] == shown["order"]
    assert json.loads((folder / study_folder.RESULT).read_text())["confirmation_rounds"] == json.loads(
        json.dumps(shown)
    )
    assert found["gain"]["confirmed"]


def test_an_older_study_is_not_asked_for_more(tmp_path: Path) -> None:
    file = study(trials=4)
    run_study(study(trials=4, confirm_repeats=1, confirm_runners_up=0), tmp_path, Machine())
    journal = tmp_path / study_folder.JOURNAL
    journal.write_text(journal.read_text().replace(', "confirm_runners_up": 0', ""))
    kept = open_study.restore_choices(JournalReader(journal), file)
    assert (kept.confirm_repeats, kept.confirm_runners_up) == (1, None)
    again = Machine()
    run_study(file, tmp_path, again)
    assert again.configs == []


def test_a_new_rule_that_breaks_ties_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = TieRule(
        "newest",
        "the last that was tried",
        lambda tied, file: [max(tied, key=lambda arm: arm.trial.number)],
        lambda chosen, tied, file: f"came last of {len(tied)}",
    )
    monkeypatch.setattr(recommendation, "TIE_RULES", (newest, *recommendation.TIE_RULES))
    document = result(rerun(searched(1000.0, 1010.0), {0: 1000.0, 1: 1001.0}), FILE).as_dict()
    assert document["recommended"]["trial"] == 1
    assert document["recommended"]["decided_by"] == "newest"
    said = caption(StudyResult.from_dict(document))
    assert (
        "trial 1 is recommended by the last that was tried: trials 0 and 1 are equal; it came last of 2"
        in said
    )


def test_a_new_rule_of_what_is_equal_is_a_change_of_the_lead_s_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A made-up one asks for a fourth of the rounds more: they are measured, and all that is told follows it."""
    ordinary, told = Lead.verdict, rerun(searched(1000.0, 1020.0, 900.0), {0: 1000.0, 1: 1001.0})
    before = len(found_in(told).baseline.windows)
    enough = math.ceil(1.25 * before)

    def verdict(lead: Lead, margin: float) -> str:
        found = ordinary(lead, margin)
        return "undecided" if found == "equal" and lead.rounds < enough else found

    monkeypatch.setattr(Lead, "verdict", verdict)
    found = found_in(told)
    assert found.compare_fastest(found.baseline).verdict == "undecided"
    assert [arm.trial.number for arm in found.undecided] == [0]
    found = found_in(rerun(told, {0: 1000.0, 1: 1001.0}))
    assert len(found.baseline.windows) == enough > before
    assert found.compare_fastest(found.baseline).verdict == "equal"


def test_an_interval_that_says_nothing_is_left_out() -> None:
    """Runs whose steps take between 1 and 400 ms: a ratio from 0.0005 to 1,700 helps nobody."""
    draw = np.random.default_rng(3)
    wild = [[float(1 / seconds) for seconds in draw.lognormal(0, 3.0, 8)] for _ in range(2)]
    found = compare(wild[0], wild[1], seed=0)
    assert (found.ratio.low, found.ratio.high, found.verdict) == (None, None, "undecided")
