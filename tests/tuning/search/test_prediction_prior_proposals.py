"""Studies that ask predictions what to measure next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.fake import Machine, run_study, study
from tuning.execution.simulated_machine import Simulation
from tuning.predict.forecast import forecasts
from tuning.predict.target import Target, parse_target
from tuning.search.acquisition import LEAST_FAILURES, MOST_FAILURES
from tuning.search.prediction_prior import SAMPLED, PredictionPrior
from tuning.space.space import Space
from tuning.spec.study_file import StudyFile

RANKS = 8


def asked(**more: Any) -> StudyFile:
    base = {
        "model": {"preset": "1b"},
        "data": {"sequence_length": 2048},
        "batch": {"global_batch": 64, "micro_batch": 1},
        "precision": "bf16",
        "train": {"steps": 8, "warmup": 2},
    }
    space = {
        "parallel.tp": [1, 2, 4, 8],
        "parallel.pp": [1, 2, 4, 8],
        "parallel.zero_stage": [0, 1, 3],
        "batch.micro_batch": [1, 2, 4, 8, 16],
        "memory.recompute": ["none", "full"],
    }
    told = {"name": "asked", "ranks": RANKS, "trials": 9, "base": base, "space": space, "confirm_repeats": 0}
    return study(**told | more)


def here() -> Target:
    return parse_target("selene", None, RANKS)


def make_prior(space: Space) -> PredictionPrior:
    return PredictionPrior(space, here(), 0)


def sources(document: dict[str, Any]) -> list[str]:
    return [row["source"] for row in document["trials"]]


def test_predictions_find_the_best_in_few_trials_and_tell_how_wrong_they_were(tmp_path: Path) -> None:
    file = asked(trials=6)
    found = run_study(file, tmp_path / "studies" / "asked", Simulation(tmp_path, "selene"), None, make_prior)
    points = file.search_space.legal_points
    told = forecasts([file.search_space.config(point) for point in points], here())
    fitting = max(one.tokens_per_second for one in told if one.out_of_memory_probability <= 0.5)
    assert found["best"]["value"] > 0.97 * fitting
    assert "prior" in sources(found)
    first = next(row for row in found["trials"] if row["source"] == "prior")
    assert first["why"].startswith(("the best prediction", "promises most"))
    assert found["prior"]["trials"] == 6
    assert found["prior"]["candidates"] == len(points)
    assert found["prior"]["within"] == 1.0


def test_what_is_predicted_to_fail_is_left_to_the_last(tmp_path: Path) -> None:
    base = asked().base | {"model": {"preset": "22b"}, "batch": {"global_batch": 128, "micro_batch": 16}}
    file = asked(trials=12, base=base)
    found = run_study(file, tmp_path / "studies" / "asked", Simulation(tmp_path, "selene"), None, make_prior)
    tried = [file.search_space.config(row["config"]) for row in found["trials"][1:]]
    assert max(one.out_of_memory_probability for one in forecasts(tried, here())) < 0.995
    assert {"sampler", "prior"} <= set(sources(found))
    assert found["prior"]["skipped"] > found["prior"]["candidates"] / 2


def test_wrong_predictions_leave_the_sampler_its_share(tmp_path: Path) -> None:
    found = run_study(asked(trials=12), tmp_path / "asked", Machine(), None, make_prior)
    of_search = [source for source in sources(found) if source in ("prior", "sampler")]
    assert {"prior", "sampler"} <= set(of_search)
    assert of_search.count("sampler") >= len(of_search) // SAMPLED
    assert abs(found["prior"]["bias"]) > 0.5  # that machine is another one
    assert (found["state"], found["trials_done"]) == ("ended", 12)


def test_without_predictions_nothing_is_said_of_them(tmp_path: Path) -> None:
    found = run_study(asked(trials=4), tmp_path / "asked", Machine())
    assert found["prior"] is None
    assert "prior" not in sources(found)


def test_only_exact_settings_are_predicted() -> None:
    file = asked(space={"parallel.tp": [1, 2], "compression.method": ["none", "topk"]})
    points = make_prior(file.search_space).points
    assert points
    assert {point["compression.method"] for point in points} == {"none"}


def test_predictions_that_know_nothing_of_a_variable_do_not_keep_it_from_being_tried(tmp_path: Path) -> None:
    turned = {"batch.micro_batch": [1, 2], "environment.NCCL_ALGO": ["Ring", "Tree"]}
    found = run_study(asked(trials=5, space=turned), tmp_path / "asked", Machine(), None, make_prior)
    tried = {
        (row["config"]["batch.micro_batch"], row["config"]["environment.NCCL_ALGO"])
        for row in found["trials"]
    }
    assert tried >= {(size, algorithm) for size in (1, 2) for algorithm in ("Ring", "Tree")}
    assert "prior" in sources(found)


def test_a_study_whose_space_cannot_run_says_so_and_ends(tmp_path: Path) -> None:
    """175 billion parameters need several times the memory of eight devices."""
    base = asked().base | {"model": {"preset": "175b"}}
    folder, machine = tmp_path / "studies" / "asked", Simulation(tmp_path, "selene")
    found = run_study(asked(trials=30, base=base), folder, machine, None, make_prior)
    assert LEAST_FAILURES <= len(found["trials"]) <= MOST_FAILURES
    assert found["budget"]["stopped_by"] == "nothing_runs"
    assert "nothing runs: all" in found["result_line"]
    assert "of what a device can hold" in found["result_line"]
    again = run_study(asked(trials=30, base=base), folder, machine, None, make_prior)
    assert again["trials"] == found["trials"]
    onwards = run_study(asked(trials=LEAST_FAILURES + 3, base=base, prior="none"), folder, machine)
    assert len(onwards["trials"]) == LEAST_FAILURES + 3


def test_without_predictions_twelve_failures_are_said_and_the_search_goes_on(tmp_path: Path) -> None:
    machine = Machine(by_config=lambda _: RunOutcome(Ending.OOM, rank=1, phase="forward", reason="too much"))
    shown: list[str] = []
    found = run_study(asked(trials=MOST_FAILURES + 2), tmp_path / "studies" / "asked", machine,
                      lambda news: shown.extend([news.note] if news.note else []))  # fmt: skip
    assert len(found["trials"]) == MOST_FAILURES + 2
    said = "nothing ran in {0} trials: {0} oom; the last: too much"
    assert said.format(MOST_FAILURES + 2) in found["result_line"]
    assert shown == [said.format(MOST_FAILURES)]
    assert found["budget"]["stopped_by"] == "trials"


def test_one_that_ran_is_enough_hope(tmp_path: Path) -> None:
    oom = RunOutcome(Ending.OOM, rank=1, phase="forward", reason="too much")
    machine = Machine(endings=dict.fromkeys(range(1, MOST_FAILURES + 2), oom))
    found = run_study(asked(trials=MOST_FAILURES + 2), tmp_path / "studies" / "asked", machine)
    assert "nothing ran" not in found["result_line"]
    assert "nothing ran" not in (tmp_path / "studies" / "asked" / "journal.jsonl").read_text()
