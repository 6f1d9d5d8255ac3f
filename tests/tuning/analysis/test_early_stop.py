"""Racing: when a trial may end early, read from its records; and a whole study that races."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.presets import WorkloadFacts, remember
from engine.config.run_config import parse
from engine.run import run_folder
from engine.run.outcome import Ending
from profilers.records.writer import RecordWriter
from tests.support.samples import step_sample
from tests.support.studies.fake import run_study, study
from tests.support.studies.racing import Recording
from tuning.analysis import early_stop
from tuning.analysis.comparison import spread_of, student
from tuning.analysis.early_stop import Leader, Rules, Steps
from tuning.spec import study_file
from tuning.spec.objectives import MeasuredValue
from tuning.storage import journal, study_folder
from tuning.storage.state import StudyState, Trial

TOKENS = 1000
RULES = Rules((5, 10, 20), settle=0.01, spread=0.03)
LEADER = Leader(3, tuple(1000.0 + place for place in range(20)))
LONG = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": 64, "warmup": 4}}


def steps(count: int, seconds: float, noise: float = 0.01, warm: int = 4, seed: int = 0) -> Steps:
    random = np.random.default_rng(seed)
    warming = [1.5 * seconds] * warm
    return Steps((*warming, *(float(seconds * (1 + noise * random.normal())) for _ in range(count))), warm)


@pytest.mark.parametrize(
    ("level", "degrees", "expected"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.99, 7, 3.499), (0.9, 30, 1.697), (0.95, 10**6, 1.960)],
)
def test_student_s_quantiles_are_those_of_the_tables(level: float, degrees: int, expected: float) -> None:
    assert student(level, degrees) == pytest.approx(expected, abs=1e-3)


def test_looks_double_while_there_is_something_to_save() -> None:
    assert early_stop.look_steps(5, 60) == (5, 10, 20, 40)
    assert early_stop.look_steps(5, 21) == (5, 10)
    assert early_stop.look_steps(5, 6) == ()
    assert RULES.level == pytest.approx(1 - 0.05 / 3)


def test_what_cannot_reach_the_leader_is_raced_out() -> None:
    ended = early_stop.decide(steps(5, 1.4), TOKENS, RULES, LEADER)
    assert ended is not None
    assert ended.ending is Ending.PRUNED
    assert "could not reach the leader, after 5 steps at most 7" in ended.reason
    assert ended.reason.endswith("of trial 3")


@pytest.mark.parametrize("seconds", [0.9, 1.0, 1.08])
def test_what_may_still_reach_it_goes_on(seconds: float) -> None:
    assert early_stop.decide(steps(5, seconds), TOKENS, RULES, LEADER) is None


def test_noise_from_run_to_run_makes_the_race_more_patient() -> None:
    noisy = Rules(RULES.look_steps, RULES.settle, spread=0.15)
    assert early_stop.decide(steps(5, 1.4), TOKENS, noisy, LEADER) is None


def test_steps_that_have_settled_are_enough() -> None:
    ended = early_stop.decide(steps(20, 1.0, noise=0.005), TOKENS, RULES, LEADER)
    assert ended is not None
    assert (ended.ending, ended.reason[:24]) == (Ending.COMPLETED, "settled after 20 steps, ")
    assert early_stop.decide(steps(20, 1.0, noise=0.05), TOKENS, RULES, LEADER) is None
    assert early_stop.decide(steps(20, 1.0, noise=0.005), TOKENS, RULES, None) is not None


def test_longer_warm_up_than_was_left_out_does_not_count() -> None:
    cold = Steps((2.0,) * 8 + steps(24, 1.0, noise=0.005, warm=0).seconds, left_out=2)
    ended = early_stop.decide(cold, TOKENS, RULES, LEADER)
    assert ended is not None
    assert ended.reason.startswith("settled after 24 steps")


def test_of_a_trial_that_still_drifts_nothing_is_decided() -> None:
    falling = Steps(tuple(3.0 - 0.06 * step for step in range(24)), left_out=2)
    assert early_stop.decide(falling, TOKENS, RULES, LEADER) is None


def test_a_hiccup_counts_and_makes_the_interval_wider() -> None:
    """A rare wait is part of the rate that the trial is told with; one of it decides nothing."""
    steady = steps(20, 1.0, noise=0.002)
    rare = Steps((*steady.seconds, 30.0), steady.left_out)
    middle, half = early_stop.interval([1 / seconds for seconds in rare.seconds[4:]], 0.95)
    assert middle == pytest.approx(-np.log(np.mean(rare.seconds[4:])))
    assert half > 0.5
    assert early_stop.decide(rare, TOKENS, RULES, LEADER) is None


def test_the_level_holds_over_all_looks_together() -> None:
    """Of an equal trial without noise from run to run, at most 5 % may ever be excluded from the truth."""
    wrong = 0
    for seed in range(300):
        made = np.random.default_rng(seed).normal(0, 0.02, 40)
        found = [
            early_stop.interval(np.exp(made[:count]).tolist(), RULES.level) for count in RULES.look_steps
        ]
        wrong += any(abs(middle) > half for middle, half in found)
    assert wrong <= 0.05 * 300


def test_the_spread_is_assumed_until_it_is_seen() -> None:
    assert spread_of([[[1.0]], [[2.0]]]).blend(0.03) == pytest.approx(0.03)
    seen = spread_of([[[1.0], [1.1]]] * 50)
    assert seen.degrees == 50
    assert seen.blend(0.03) == pytest.approx(np.log(1.1) / 2**0.5, rel=0.05)


def test_records_are_read_as_they_come(tmp_path: Path) -> None:
    writers = [RecordWriter(tmp_path, f"rank-{rank}") for rank in range(2)]
    records = early_stop.StepRecords(tmp_path, 2)
    assert records.steps() == Steps((), 0)
    for step in range(3):
        for rank, writer in enumerate(writers):
            writer.write(step_sample(step, measured=step > 0, forward=1.0 + rank + step))
    writers[0].write(step_sample(3, forward=9.0))
    assert records.steps() == Steps((1.5, 2.5, 3.5), 1)
    writers[1].write(step_sample(3, forward=1.0))
    assert records.steps() == Steps((1.5, 2.5, 3.5, 5.0), 1)
    for writer in writers:
        writer.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are looked at whenever somebody asks."""
    monkeypatch.setattr(early_stop, "POLL_SECONDS", 0.0)


@pytest.mark.usefixtures("quick")
def test_a_study_that_races_spares_steps_and_comes_to_the_same(tmp_path: Path) -> None:
    found = {}
    for name, racing in (("raced", True), ("whole", False)):
        machine = Recording(home=tmp_path / name, run_noise=0.005)
        file = study(base=LONG, trials=10, racing=racing)
        found[name] = run_study(file, tmp_path / name / "studies" / "first", machine), machine.steps_done
    (raced, fewer), (whole, more) = found["raced"], found["whole"]
    assert raced["best"]["config"] == whole["best"]["config"]
    assert raced["recommended"]["config"] == whole["recommended"]["config"]
    assert fewer < 0.75 * more
    assert raced["racing"]["pruned"]
    assert raced["racing"]["steps_spared_fraction"] > 0.3
    assert whole["racing"] == {"pruned": [], "settled": [], "steps_spared_fraction": 0.0}
    for trial in raced["trials"]:
        if trial["outcome"] == "pruned":
            assert trial["low"] < trial["value"] < trial["high"] < raced["best"]["value"]
            assert 5 < trial["steps"] < 64
            assert trial["reason"].startswith("stopped early: could not reach the leader")
    assert raced["trials"][0]["steps"] == 64
    assert {row["steps"] for row in raced["confirmations"]} == {8}


@pytest.mark.drawn(1)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("objective", ["step_seconds", "money_per_billion_tokens"])
def test_whatever_step_times_decide_races_alike(objective: str, tmp_path: Path) -> None:
    asked = {"objective": objective, "price": {"per_gpu_hour": 2.0}, "confirm_repeats": 0}
    machine = Recording(home=tmp_path, run_noise=0.005)
    found = run_study(study(base=LONG, trials=10, **asked), tmp_path / "studies" / "first", machine)
    assert found["racing"]["pruned"]
    assert found["racing"]["steps_spared_fraction"] > 0.2
    assert found["best"]["trial"] not in found["racing"]["pruned"]


@pytest.mark.usefixtures("quick")
def test_a_trial_of_fewer_ranks_races_too(tmp_path: Path) -> None:
    file = study(base=LONG, ranks=4, space={"ranks": [2, 4], "parallel.tp": [1], "batch.micro_batch": [1, 2]})
    far_ahead = Trial(0, {}, "sampler", value=1e9, samples=(1e9, 1.01e9, 0.99e9), outcome="completed")
    trial = Trial(1, file.search_space.point({"ranks": 2}), "sampler")
    one = early_stop.race_of(trial, StudyState(trials=(far_ahead,)), file)
    (tmp_path / run_folder.RECORDS).mkdir()
    for rank in range(2):
        writer = RecordWriter(tmp_path / run_folder.RECORDS, f"rank-{rank}")
        for step in range(12):
            writer.write(step_sample(step, measured=True, forward=1.0 + 0.001 * step))
        writer.close()
    one.begin(tmp_path)
    early = one.answer()
    assert early is not None and early.ending is Ending.PRUNED


@pytest.mark.parametrize(
    ("data", "expected"),
    [({}, (100.0, 110.0, 90.0)), ({"documents": "whole", "longest_document": 256}, (2.0, 2.2, 1.8))],
    ids=["windows", "documents"],
)
def test_a_leader_s_rates_are_in_the_unit_of_those_who_race(
    data: dict[str, Any], expected: tuple[float, ...]
) -> None:
    """Steps of whole documents have nobody knows how many tokens before they ran: they race in steps a second."""
    file = study(base=LONG | {"data": {"sequence_length": 128} | data})
    measures = {"tokens_per_second": MeasuredValue(100.0), "step_seconds": MeasuredValue(0.5)}
    rates = (100.0, 110.0, 90.0)
    ahead = Trial(0, {}, "sampler", value=100.0, samples=rates, outcome="completed", measures=measures)
    leader = early_stop.leader_of(StudyState(trials=(ahead,)), file)
    assert leader is not None and leader.rates == pytest.approx(expected)
    tokens = early_stop.tokens_of_step(file.config)
    assert (tokens is None) == bool(data)


def test_tokens_of_another_workload_are_those_that_its_rates_count() -> None:
    config = parse({"model": {"workload": "no.such:one"}, "batch": {"global_batch": 16}})
    assert early_stop.tokens_of_step(config) is None, "nobody looked at it yet"
    facts = WorkloadFacts("one", 4, 100, 8, ("dp",), None, "", "", None)
    remember(config.model, facts)
    assert early_stop.tokens_of_step(config) == 16 * 8


@pytest.mark.usefixtures("quick")
def test_an_early_end_is_in_the_journal_and_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "first"
    first = run_study(study(base=LONG), folder, Recording(home=tmp_path))
    state = journal.load(folder / study_folder.JOURNAL)
    assert {trial.number for trial in state.trials if trial.outcome == "pruned"} == set(
        first["racing"]["pruned"]
    )
    again = Recording(home=tmp_path / "again")
    assert json.loads(json.dumps(first["trials"])) == run_study(study(base=LONG), folder, again)["trials"]
    assert again.configs == []


@pytest.mark.usefixtures("quick")
def test_lossy_trials_do_all_their_steps(tmp_path: Path) -> None:
    space = {"compression.method": ["fp16", "topk", "none"], "batch.micro_batch": [1, 2]}
    file = study(base=LONG, space=space, trials=6)
    found = run_study(file, tmp_path / "first", Recording(home=tmp_path))
    lossy = [trial for trial in found["trials"] if trial["config"]["compression.method"] != "none"]
    assert lossy
    assert {trial["steps"] for trial in lossy} == {64}


def test_who_does_not_race() -> None:
    file, point = study(base=LONG), study().search_space.baseline[0]
    baseline = Trial(0, point, "baseline")
    state = StudyState(trials=(baseline,))
    assert early_stop.rules_of(state, file) is not None
    for other in (study(), study(base=LONG, racing=False)):
        trains = other.config.train
        assert early_stop.rules_of(state, other) is None or trains.steps - trains.warmup > 6
    quality: dict[str, Any] = {"validate_every": 8, "steps": 64, "warmup": 4}
    timed = study(base=LONG | {"train": quality}, objective={"time_to_loss": 3.0})
    assert early_stop.rules_of(state, timed) is None
    short = study(base=LONG | {"train": {"steps": 8, "warmup": 2}})
    assert early_stop.rules_of(state, short) is None
    ends_by_time = study(base=LONG | {"train": {"steps": 64, "warmup": 4, "seconds": 60.0}})
    assert early_stop.rules_of(state, ends_by_time) is None


@pytest.mark.parametrize("racing", [{"settle": 0.0}, {"least_steps": 1}, {"stop": 1}, "yes"])
def test_what_cannot_be_asked_is_refused(racing: Any) -> None:
    with pytest.raises(InputError, match="racing"):
        study(racing=racing)


def test_an_older_study_file_means_what_it_meant() -> None:
    file = study()
    assert file.races == study_file.Racing()
    assert "racing" not in file.resolve()
    assert (
        study(racing={"settle": 0.02}).fingerprint()
        == file.fingerprint()
        == study(racing=False).fingerprint()
    )
    assert study_file.parse(study(racing={"settle": 0.02}).resolve()).races == study_file.Racing(settle=0.02)
