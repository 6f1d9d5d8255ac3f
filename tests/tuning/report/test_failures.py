"""The board of failures: endings counted, rules beyond chance, and what to change where nothing could be measured."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from engine.config.run_config import RunConfig
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.fake import Machine, run_study, study
from tuning.report import failures
from tuning.report.failure_rules import Case, Rule, learn
from tuning.storage.state import StudyState, Trial

OOM = RunOutcome(Ending.OOM, "rank 1 ran out of host memory\nmore", 1, "forward")


def hungry(settings: dict[str, Any]) -> bool:
    return bool(settings["memory.recompute"] == "none" and settings["batch.micro_batch"] >= 4)


def cases(count: int, seed: int, fails: Any) -> list[Case]:
    random, made = Random(seed), []
    for _ in range(count):
        settings = {
            "memory.recompute": random.choice(["none", "full"]),
            "batch.micro_batch": random.choice([1, 2, 4, 8]),
            "parallel.tp": random.choice([1, 2, 4]),
            "parallel.zero_stage": random.choice([0, 1, 2, 3]),
        }
        made.append(Case(settings, fails(settings)))
    return made


def test_a_planted_pair_is_found_and_counted() -> None:
    given = cases(40, 0, hungry)
    rules = learn(given)
    assert [str(rule) for rule in rules] == ["memory.recompute=none and batch.micro_batch >= 4"]
    failing = sum(case.failed for case in given)
    assert (rules[0].failed_with, rules[0].trials_with) == (failing, failing)
    assert (rules[0].failed_without, rules[0].trials_without) == (0, 40 - failing)


def test_a_single_condition_is_not_dressed_up_as_two() -> None:
    rules = learn(cases(40, 1, lambda settings: settings["batch.micro_batch"] >= 4))
    assert [str(rule) for rule in rules] == ["batch.micro_batch >= 4"]


def test_two_causes_are_two_rules() -> None:
    def fails(settings: dict[str, Any]) -> bool:
        return bool(settings["batch.micro_batch"] == 8 or settings["parallel.tp"] == 4)

    assert {str(rule) for rule in learn(cases(80, 2, fails))} == {
        "batch.micro_batch >= 8",
        "parallel.tp >= 4",
    }


def test_chance_is_seldom_taken_for_a_rule() -> None:
    def told(seed: int) -> bool:
        coin = Random(seed)
        return bool(learn(cases(25, seed, lambda settings: coin.random() < 0.3)))

    assert sum(told(seed) for seed in range(100)) <= 5


def test_few_failures_teach_nothing() -> None:
    settings = [{"batch.micro_batch": 8}] * 2 + [{"batch.micro_batch": 1}] * 30
    assert learn([Case(each, each["batch.micro_batch"] == 8) for each in settings]) == []


def test_conditions_that_choose_the_same_trials_are_told_together() -> None:
    wide = {"batch.micro_batch": 4, "overlap.bucket_mb": 25.0}
    narrow = {"batch.micro_batch": 1, "overlap.bucket_mb": 1.0}
    rules = learn([Case(wide, True)] * 6 + [Case(narrow, False)] * 8)
    assert [str(condition) for condition in rules[0].same] == ["overlap.bucket_mb=25"]
    words = "batch.micro_batch=4: 6 of 6 ran out of memory; without it 0 of 8 (the same trials: overlap.bucket_mb=25)"
    assert failures.rule_words("oom", rules[0]) == words


def run(tmp_path: Any, trials: int, **machine: Any) -> dict[str, Any]:
    file = study(trials=trials, confirm_repeats=0)
    return run_study(file, tmp_path / "first", Machine(**machine))


def test_a_study_says_which_settings_run_out_of_memory(tmp_path: Any) -> None:
    def by_config(config: RunConfig) -> RunOutcome | None:
        return OOM if config.batch.micro_batch >= 4 else None

    board = run(tmp_path, 24, by_config=by_config)["failures"]
    [row] = board["endings"]
    kind = (row["outcome"], row["phase"], row["ranks"], row["about"], row["reason"])
    assert kind == ("oom", "forward", [1], "configuration", "rank 1 ran out of host memory")
    assert row["count"] == len(row["trials"]) >= 3
    [rule] = board["rules"]
    assert rule["words"].startswith("batch.micro_batch >= 4: ")
    assert (rule["failed_with"], rule["failed_without"]) == (row["count"], 0)
    assert board["line"] == f"{row['count']} of 24 trials failed: {row['count']} ran out of memory"
    assert board["advice"] == []


def test_bad_luck_is_on_the_board_and_in_no_rule(tmp_path: Any) -> None:
    hang = RunOutcome(Ending.HANG, "rank 0 made no progress", 0, "backward")
    board = run(tmp_path, 6, endings={2: hang, 5: hang})["failures"]
    assert [(row["outcome"], row["count"], row["tried_again"], row["about"]) for row in board["endings"]] == [
        ("hang", 2, 2, "chance")
    ]
    assert board["rules"] == []


def test_where_all_trials_fail_the_commonest_reason_and_a_remedy_are_told(tmp_path: Any) -> None:
    found = run(tmp_path, 5, by_config=lambda config: OOM)
    assert found["best"] is None
    line = found["result_line"]
    assert line.startswith("no configuration could be measured: all 5 trials failed: 5 ran out of memory")
    assert "rank 1 ran out of host memory" in line
    assert line.endswith(f". What to change: {'; '.join(found['failures']['advice'])}")
    smallest = min(row["config"]["batch.micro_batch"] for row in found["trials"])
    assert ("batch.micro_batch" in line) == (smallest > 1)
    untried = all(row["config"]["memory.recompute"] == "none" for row in found["trials"])
    assert ("memory.recompute=full" in line) == untried


def test_nothing_failed_is_said_too(tmp_path: Any) -> None:
    assert run(tmp_path, 3)["failures"] == {
        "endings": [],
        "rules": [],
        "line": "no trial has failed",
        "advice": [],
    }
    assert failures.summarize_failures(StudyState(), study()).line == "no trial has ended yet"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("diverged", "train.learning_rate, 0.001 here"),
        ("timed_out", "train.timeout_seconds, 600 here"),
        ("hang", "train.step_timeout_seconds"),
        ("comm_error", "network"),
        ("crashed", "rank's log"),
        ("illegal", "divide"),
        ("predicted_oom", "batch.micro_batch"),
    ],
)
def test_every_ending_about_a_configuration_has_advice(outcome: str, words: str) -> None:
    file = study()
    trials = [
        Trial(number, file.search_space.baseline[0], "sampler", outcome=outcome, attempt=1)
        for number in range(2)
    ]
    assert any(
        words in tip for tip in failures.summarize_failures(StudyState(trials=tuple(trials)), file).advice
    )


def test_a_rule_prints_its_conditions() -> None:
    rule = learn(cases(40, 0, hungry))[0]
    assert isinstance(rule, Rule)
    assert rule.p < 0.05 < rule.looked_at
