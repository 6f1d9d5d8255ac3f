"""The result: who is best, how sure that is, and the words for it."""

from typing import Any

import numpy as np
import pytest

from tests.support.studies.fake import study
from tuning.analysis import confirmation, leaderboard
from tuning.report import failures
from tuning.report import result as results
from tuning.search import policy
from tuning.sensitivity.effects import neighbours
from tuning.spec.study_file import StudyFile
from tuning.storage.state import Line, StudyState, fold


def result(state: StudyState, file: StudyFile, study_state: str = "ended") -> dict[str, Any]:
    """The result as it is printed."""
    return results.result(state, file, study_state).as_dict()


LOSSY_SPACE = {"parallel.tp": [1, 2], "compression.method": ["none", "topk"], "batch.micro_batch": [1, 2, 4]}
FILE = study()


def samples(value: float, seed: int, noise: float = 0.01) -> list[float]:
    random = np.random.default_rng(seed)
    return [float(value * (1 + noise * random.normal())) for _ in range(20)]


def lines(number: int, point: dict[str, Any], value: float | None, **more: Any) -> list[Line]:
    told = {"outcome": "completed", "validation_loss": 2.4, "steps": 24} | more
    measured = samples(value, number, more.get("noise", 0.01)) if value is not None else []
    proposal = {"source": "sampler" if number else "baseline"} | {
        key: told.pop(key)
        for key in ("source", "confirms", "round", "window", "attempt", "retry_of")
        if key in told
    }
    return [
        {"at_unix": 1.0, "kind": "proposal", "number": number, "config": point} | proposal,
        {"at_unix": 2.0, "kind": "tell", "number": number, "value": value, "samples": measured} | told,
    ]


def folded(*parts: list[Line]) -> StudyState:
    return fold([line for part in parts for line in part])


def points(file: StudyFile) -> tuple[dict[str, Any], dict[str, Any]]:
    space = file.search_space
    return space.baseline[0], space.complete({"parallel.tp": 2, "batch.micro_batch": 4})


BASELINE, OTHER = points(FILE)


def compared(
    ratio: float, searched: float = 1200.0, rounds: int = 8, third: float | None = None
) -> StudyState:
    """Baseline 1000, then another that was ``searched`` and is ``ratio`` times as fast in ``rounds`` of windows,
    of which the study looks at no more than it needs; and a ``third`` of the search alone.
    """
    parts = [lines(0, BASELINE, 1000.0), lines(1, OTHER, searched)]
    if third is not None:
        parts.append(lines(2, FILE.search_space.complete({"batch.micro_batch": 1}), third))
    for place in range(rounds):
        for arm in (0, 1) if place % 2 == 0 else (1, 0):
            value = (1000.0 * ratio if arm else 1002.0) * (1 + 0.002 * ((7 * place + 3 * arm) % 5 - 2))
            point = OTHER if arm else BASELINE
            again = {"source": "confirm", "confirms": arm, "round": place, "window": 8, "seconds": 2.5}
            parts.append(lines(len(parts), point, value, **again))
    return folded(*parts)


def test_a_gain_is_named_with_its_price() -> None:
    found = result(compared(1.19), FILE)
    assert found["gain"]["verdict"] == "better"
    assert found["gain"]["low"] < found["gain"]["ratio"] < found["gain"]["high"]
    assert found["best"]["trial"] == found["recommended"]["trial"] == 1
    line = found["result_line"]
    assert line.startswith("best: dp=2 tp=2 pp=1 zero=0 micro_batch=4 · 1,1")
    assert "18.8 % faster than plain data parallel, 95 % interval 16.3 to 21.2 %" in line
    assert found["recommended"]["decided_by"] == "speed"
    assert found["gain"]["ratio"] == pytest.approx(found["best"]["value"] / found["baseline"]["value"])


def test_a_baseline_that_holds_parts_of_a_model_is_not_called_plain() -> None:
    line = result(folded(lines(0, OTHER, 1000.0), lines(1, BASELINE, 1200.0)), FILE)["result_line"]
    assert "than the baseline (dp=2 tp=2 pp=1 zero=0 micro_batch=4)" in line
    assert "plain data parallel" not in line


def test_what_is_equal_is_called_so_and_the_baseline_kept() -> None:
    found = result(compared(1.005), FILE)
    assert found["gain"]["verdict"] == "equal"
    assert found["recommended"]["trial"] == 0
    assert found["recommended"]["decided_by"] == "simplicity"
    assert "equal to plain data parallel to within 3 %: +0." in found["result_line"]
    equal = "recommended: dp=4 tp=1 pp=1 zero=0 micro_batch=2 (trials 0 and 1 are equal; it is the simplest"
    assert equal in found["result_line"]
    assert len(found["result_lines"]) == 3


def test_luck_that_does_not_come_again_does_not_win() -> None:
    found = result(compared(0.9, searched=1010.0), FILE)
    assert (
        found["best"]["trial"] == found["recommended"]["trial"] == found["confirmation_rounds"]["winner"] == 0
    )
    other = found["confirmation_rounds"]["arms"][1]
    assert (other["trial"], other["searched_value"], len(other["rounds"])) == (1, 1010.0, 5)
    assert other["ratio"] == pytest.approx(0.9, rel=0.01)
    assert other["high"] < 1
    assert "the one other was not faster, measured again" in found["result_line"]


def test_without_confirmation_the_line_says_so() -> None:
    found = result(folded(lines(0, BASELINE, 1000.0), lines(1, OTHER, 1200.0)), FILE, "running")
    assert found["gain"]["confirmed"] is False
    assert found["result_line"].startswith("best so far: ")
    assert "noise from run to run is not in it" in found["result_line"]


def test_the_baseline_itself_can_be_best() -> None:
    found = result(folded(lines(0, BASELINE, 1000.0), lines(1, OTHER, 900.0)), FILE)
    assert found["best"] == found["baseline"]
    assert found["gain"]["verdict"] == "equal"
    assert (
        "plain data parallel itself: the one other was not faster; the nearest, dp=2" in found["result_line"]
    )


def test_of_a_baseline_that_wins_it_is_said_how_many_others_were_measured_again() -> None:
    """Two others were measured and one of them again, which is a tenth slower in every window."""
    found = result(compared(0.9, 1010.0, third=500.0), FILE)
    assert found["best"]["trial"] == found["baseline"]["trial"] == 0
    assert "none of 2 others was faster, 1 of them measured again; the nearest" in found["result_line"]


def test_nothing_measured_is_said_plainly() -> None:
    state = folded(lines(0, BASELINE, None, outcome="oom", reason="rank 0 ran out of memory"))
    found = result(state, FILE)
    assert found["best"] is found["gain"] is found["recommended"] is None
    words = "no configuration could be measured: the only trial ran out of memory (rank 0 ran out of memory)"
    assert found["result_line"].startswith(
        f"{words}. What to change: fewer sequences at once (batch.micro_batch"
    )
    assert result(StudyState(), FILE)["result_line"] == "nothing measured yet"


def test_without_a_baseline_no_gain_is_made_up() -> None:
    state = folded(lines(0, BASELINE, None, outcome="oom", reason="too big"), lines(1, OTHER, 900.0))
    found = result(state, FILE)
    assert found["gain"] is None
    assert found["result_line"].endswith("no gain can be named: the baseline ended as oom (too big)")


def lossy(steps: int, loss: float, *windows: float) -> tuple[dict[str, Any], StudyFile]:
    """A lossy setting and an exact one beside the baseline; ``windows``: what each is when measured again."""
    base = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": steps}}
    file = study(space=LOSSY_SPACE, base=base)
    exact, topk = (
        file.search_space.complete({"batch.micro_batch": 4}),
        file.search_space.complete({"compression.method": "topk"}),
    )
    points = (file.search_space.baseline[0], exact, topk)
    losses = ({}, {}, {"validation_loss": loss})
    parts = [
        lines(arm, points[arm], searched, steps=steps, **losses[arm])
        for arm, searched in enumerate((1000.0, 1495.0 if windows else 1100.0, 1500.0))
    ]
    for place in range(8 if windows else 0):
        for arm, value in enumerate(windows):
            near = value * (1 + 0.002 * ((7 * place + 3 * arm) % 5 - 2))
            again = {"source": "confirm", "confirms": arm, "round": place, "window": 8} | losses[arm]
            parts.append(lines(len(parts), points[arm], near, steps=8, **again))
    return result(folded(*parts), file), file


def test_a_lossy_setting_with_too_few_steps_stands_second() -> None:
    found, _ = lossy(24, 2.41)
    assert found["best"]["trial"] == found["best_exact"]["trial"] == 1
    assert (found["fastest_lossy"]["trial"], found["fastest_lossy"]["guard"]["state"]) == (2, "undecided")
    assert "validation loss 2.410 against 2.400: it cannot be trusted yet" in found["result_line"]
    assert "24 steps are too few to tell; the guard asks for 100" in found["result_line"]


def test_a_lossy_setting_wins_when_its_loss_holds() -> None:
    found, _ = lossy(100, 2.42)
    assert (found["best"]["trial"], found["best_exact"]["trial"]) == (2, 1)
    assert (
        "lossy, but validation loss +0.8 % against the baseline's after 100 steps, 2 % allowed"
        in found["result_line"]
    )


def test_a_lossy_setting_that_lost_its_lead_when_measured_again_is_not_called_faster() -> None:
    """Nor is it called untrustworthy: its loss holds, and its rounds say how it did."""
    found, _ = lossy(100, 2.42, 1000.0, 1490.0, 1300.0)
    assert (found["best"]["trial"], found["fastest_lossy"]["guard"]["state"]) == (1, "satisfied")
    assert [arm["trial"] for arm in found["confirmation_rounds"]["arms"]] == [0, 2, 1]
    assert "lossy" not in found["result_line"]


def test_a_lossy_setting_that_learns_less_is_ruled_out() -> None:
    found, _ = lossy(100, 2.6)
    assert found["best"]["trial"] == 1
    assert found["fastest_lossy"]["guard"]["violation"] == pytest.approx(2.6 / 2.4 - 1.02)
    assert "it is ruled out" in found["result_line"]


def test_bad_luck_is_tried_again_once_and_the_baseline_more_often() -> None:
    crash = lines(1, OTHER, None, outcome="crashed")
    again = lines(2, OTHER, None, outcome="crashed", source="retry", retry_of=1, attempt=1)
    state = folded(lines(0, BASELINE, 1000.0), crash)
    assert policy.next_step(state, FILE, False).details["retry_of"] == 1
    state = folded(lines(0, BASELINE, 1000.0), crash, again)
    assert policy.next_step(state, FILE, False).source == "sampler"
    assert [trial.number for trial in leaderboard.counted_trials(state)] == [0, 2]
    lost = folded(
        lines(0, BASELINE, None, outcome="lost"),
        lines(1, BASELINE, None, outcome="lost", source="retry", retry_of=0, attempt=1),
    )
    assert policy.next_step(lost, FILE, False).phase == "baseline"


@pytest.mark.parametrize("outcome", ["oom", "illegal", "diverged", "timed_out", "predicted_oom"])
def test_what_the_configuration_did_is_not_tried_again(outcome: str) -> None:
    state = folded(lines(0, BASELINE, 1000.0), lines(1, OTHER, None, outcome=outcome))
    assert policy.next_step(state, FILE, False).source == "sampler"


def test_a_rank_killed_from_outside_is_tried_again() -> None:
    state = folded(
        lines(0, BASELINE, 1000.0), lines(1, OTHER, None, outcome="crashed", killed_from_outside=True)
    )
    assert policy.next_step(state, FILE, False).source == "retry"


def test_the_budget_leaves_time_to_confirm() -> None:
    def asked(seconds: float) -> StudyFile:
        return study(budget_seconds=seconds, confirm_repeats=1, confirm_runners_up=0)

    trials = [lines(number, BASELINE | {"n": number}, 900.0, seconds=10.0) for number in range(3)]
    assert policy.has_search_budget(folded(*trials), asked(60.0))
    assert not policy.has_search_budget(folded(*trials), asked(59.0))


def test_unprovable_settings_get_a_small_share() -> None:
    file = study(space=LOSSY_SPACE, trials=8)
    point = file.search_space.complete({"compression.method": "topk"})
    state = folded(*[lines(number, point, 1.0) for number in range(2)])
    assert policy.is_wanted(point, StudyState(), file)
    assert not policy.is_wanted(point, state, file)
    assert policy.is_wanted(file.search_space.baseline[0], state, file)


def test_what_loses_more_than_one_that_lost_too_much_is_not_tried() -> None:
    space = {"compression.method": ["none", "powersgd", "topk"], "compression.rank": [2, 4, 8, 16]}
    file = study(space=space, trials=8, base={"train": {"steps": 100}})

    def settled(**values: Any) -> dict[str, Any]:
        return file.search_space.complete({f"compression.{name}": value for name, value in values.items()})

    failed = settled(method="powersgd", rank=4)
    losses = {"validation_loss": 2.0, "steps": 100}
    state = folded(
        lines(0, file.search_space.baseline[0], 1.0, **losses),
        lines(1, failed, 2.0, **losses | {"validation_loss": 3.0}),
    )
    assert [trial.number for trial in leaderboard.forbidden_trials(state, file)] == [1]
    assert not policy.is_wanted(settled(method="powersgd", rank=2), state, file)
    for other in (settled(method="powersgd", rank=8), settled(method="topk"), settled(method="none")):
        assert policy.is_wanted(other, state, file)
    step = policy.next_step(state, file, False)
    assert step.point == settled(method="powersgd", rank=8) and "loses less than trial 1" in step.why
    slow = folded(
        lines(0, file.search_space.baseline[0], 3.0, **losses),
        lines(1, failed, 2.0, **losses | {"validation_loss": 3.0}),
    )
    assert policy.next_step(slow, file, False).point is None, "nobody wants more of what was slow"
    good = folded(lines(0, file.search_space.baseline[0], 1.0, **losses), lines(1, failed, 2.0, **losses))
    assert policy.is_wanted(settled(method="powersgd", rank=2), good, file)


def test_a_study_growing_old_in_noise_calls_equal_things_equal() -> None:
    false_alarms = 0
    for seed in range(30):
        random = np.random.default_rng(seed)
        stray = [float(1000 * np.exp(0.02 * random.normal())) for _ in range(10)]
        picked = max(stray[:6])
        state = folded(
            lines(0, BASELINE, stray[6]), lines(1, OTHER, picked),
            lines(2, BASELINE, stray[7], source="confirm", confirms=0),
            lines(3, OTHER, stray[8], source="confirm", confirms=1),
        )  # fmt: skip
        gain = result(state, FILE)["gain"]
        false_alarms += gain["verdict"] == "better" and gain["confirmed"]
    assert false_alarms <= 5


@pytest.mark.parametrize(("ratio", "searched"), [(1.19, 1200.0), (0.9, 1010.0)])
def test_one_trial_has_one_value_wherever_it_is_told(ratio: float, searched: float) -> None:
    state = compared(ratio, searched)
    found = result(state, FILE)
    best, recommended, winner = found["best"], found["recommended"], confirmation.winner(state, FILE)
    assert winner is not None and best["trial"] == recommended["trial"] == winner.number
    assert all(best[key] == recommended[key] for key in ("value", "low", "high", "shown"))


def test_one_round_has_no_probability() -> None:
    found = result(compared(1.4, rounds=1), FILE, "interrupted")
    assert found["recommended"]["probability"] is None and "%" not in found["recommended"]["why"]
    assert "by a single round" in found["recommended"]["why"]


def test_an_interrupted_confirmation_of_one_round_says_what_more_it_takes() -> None:
    """An interval needs five rounds; each of the two arms takes 2.5 s in one."""
    state = compared(1.4, rounds=1)
    found = result(state, FILE, "interrupted")
    outlook = found["confirmation_rounds"]["outlook"]
    assert (outlook["at_least"], outlook["rounds"], outlook["seconds"]) == (True, 4, 4 * (2.5 + 2.5))
    needs = (
        "from too few rounds for an interval; an interval needs at least 20 s more (the same command goes on)"
    )
    assert needs in found["result_line"]
    assert "needs at least" not in result(state, FILE, "running")["result_line"]


@pytest.mark.parametrize(("repeats", "how"), [(3, "the same command goes on"), (1, "confirm_repeats: ")])
def test_an_interrupted_confirmation_goes_on_where_its_budget_allows(repeats: int, how: str) -> None:
    file = study(confirm_repeats=repeats)
    found = result(compared(1.4, rounds=1), file, "interrupted")
    assert f"more ({how}" in found["result_line"]


def test_a_budget_of_time_that_kept_it_from_being_decided_is_named() -> None:
    """A round of two windows of 2.5 s each; four more rounds take 20 s."""
    state = compared(1.4, rounds=1)
    assert sum(trial.seconds for trial in state.trials) == 2 * 2.5
    found = result(state, study(budget_seconds=6.0))
    assert "at least 20 s more (budget.wall_seconds: 30)" in found["result_line"]
    both = result(state, study(budget_seconds=6.0, confirm_repeats=1))["result_line"]
    assert "(confirm_repeats: " in both and ", budget.wall_seconds: " in both


def test_a_budget_with_time_for_the_baseline_alone_is_named() -> None:
    state = folded(lines(0, BASELINE, 1000.0, seconds=33.0))
    assert "time for another: give at least 200" in result(state, study(budget_seconds=50.0))["result_line"]
    assert "so far the only one measured" in result(state, study(trials=1), "ended")["result_line"]


def test_neighbours_are_compared_with_runs_of_their_own_time() -> None:
    """The machine was twice as fast during the search; a third was not measured again."""
    space = FILE.search_space
    wide, single = (space.complete({"batch.micro_batch": size}) for size in (4, 1))
    assert BASELINE["batch.micro_batch"] == 2
    parts = [lines(0, BASELINE, 1000.0), lines(1, wide, 2000.0), lines(2, single, 900.0)]
    for place in range(8):
        for arm, point, value in ((0, BASELINE, 500.0), (1, wide, 550.0)):
            again = {"source": "confirm", "confirms": arm, "round": place, "window": 8}
            parts.append(lines(len(parts), point, value, **again))
    found = {(one.key, one.value): one for one in neighbours(folded(*parts), FILE)}
    beside = found["batch.micro_batch", 2]
    assert beside.trials == (0,) and beside.loss_percent == pytest.approx(100 * (1 - 500 / 550), abs=1)
    alone = {value: one for (key, value), one in found.items() if key == "batch.micro_batch" and value != 2}
    for one in alone.values():  # the next value either way is what was tried, or nothing
        if one.stands == "measured":
            assert one.loss_percent == pytest.approx(100 * (1 - 900 / 2000), abs=1)


def test_a_window_that_somebody_stopped_is_no_failed_trial() -> None:
    stopped = lines(2, BASELINE, None, outcome="stopped", source="confirm", confirms=0, round=0, window=8)
    state = folded(lines(0, BASELINE, 1000.0), lines(1, OTHER, 1200.0), stopped)
    assert failures.summarize_failures(state, FILE).line == "no trial has failed"
