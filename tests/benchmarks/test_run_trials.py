"""Run folders as trials, trials as what calibration fits to, and constants found again in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.published import core_work, lab_steps
from benchmarks.published.core_work import CoreWork, of_places
from benchmarks.published.gloo import START, CoreConstants
from benchmarks.published.run_trials import measured, trial_of, trials
from engine.config.errors import InputError
from engine.config.run_config import RunConfig, parse
from engine.run import run_folder
from profilers.records.schema import PHASES, StepSample
from profilers.records.writer import RecordWriter
from tuning.predict.fit.calibrate import TrialMeasurements, check
from tuning.predict.fit.finished_runs import Trial
from tuning.predict.model.compute import Device
from tuning.predict.model.network import Links
from tuning.predict.model.step_time import Machine

TRUE = START.put(gemm_share=0.5, block_seconds=2e-3, message_seconds=2e-4, latency_seconds=8e-4)
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"dp": 4}, {"dp": 2, "zero_stage": 1, "tp": 2}, {"tp": 4}, {"pp": 4}, {"pp": 2, "dp": 2}, {"cp": 2, "dp": 2},
    {"cp": 2, "pp": 2, "zero_stage": 3}, {"dp": 4, "zero_stage": 2},
)  # fmt: skip


def config(rate: float = 250.0, **parallel: Any) -> RunConfig:
    return parse(
        {
            "batch": {"global_batch": 8, "micro_batch": 1},
            "parallel": parallel,
            "train": {"steps": 3, "warmup": 1},
            "lab": {"hosts": 4, "rate_mbit": rate},
            "device": "cpu",
        }
    )


def ran(home: Path, of: RunConfig, steps: list[list[float]], ending: str = "completed") -> Path:
    """A run folder as ranks leave it: seconds by rank and step, half of them on a core; the first is warm-up."""
    folder = run_folder.create(home, of, {})
    for rank, taken in enumerate(steps):
        with RecordWriter(folder / run_folder.RECORDS, f"rank-{rank}") as writer:
            for number, seconds in enumerate(taken):
                phases = dict.fromkeys((f"{phase}_seconds" for phase in PHASES), None)
                known: dict[str, Any] = {**phases, "tokens": 1, "loss": None, "gradient_norm": None}
                writer.write(StepSample(number, number > 0, 10.0 + number, seconds, seconds / 2, **known))
    run_folder.update_status(folder, state="ended", backend="gloo", outcome={"ending": ending})
    return folder


def here(_: RunConfig) -> Machine:
    return Machine(Device(3e10, 5e9), Links(1e8, 1e8))


def planted(layouts: tuple[dict[str, Any], ...], constants: CoreConstants = TRUE) -> list[Trial]:
    """What these constants would take."""
    found = []
    for rate in (100.0, 1000.0):
        for layout in layouts:
            work = CoreWork.of(config(rate, **layout))
            core = np.repeat(work.seconds(constants), 4 // work.plan.ranks)
            seconds = lab_steps.simulate_work(work, 2, constants).seconds
            found.append(Trial(work.config, seconds, tuple(core.tolist())))
    return found


def test_a_run_is_the_median_of_its_slowest_rank_and_of_each_ranks_cores(tmp_path: Path) -> None:
    folder = ran(tmp_path, config(dp=4), [[9.0, 1.0, 1.2, 1.1]] * 3 + [[9.0, 1.4, 0.8, 1.3]])
    trial = trial_of(folder)
    assert trial.seconds == pytest.approx(1.3)
    assert trial.cpu_seconds == pytest.approx((0.55, 0.55, 0.55, 0.65))
    assert trial.config == config(dp=4)
    assert Trial.from_dict(trial.as_dict()) == trial


def test_only_finished_runs_of_one_configuration_are_trials(tmp_path: Path) -> None:
    good = ran(tmp_path, config(dp=4), [[1.0, 1.0]] * 4)
    failed = ran(tmp_path, config(dp=4), [[1.0, 1.0]] * 4, ending="out_of_memory")
    short = ran(tmp_path, config(dp=4), [[1.0]] * 4)
    simulated = ran(tmp_path, config(dp=4), [[1.0, 1.0]] * 4)
    run_folder.update_status(simulated, backend="simulated")
    changed = ran(tmp_path, config(dp=4), [[1.0, 1.0]] * 4)
    run_folder.change_config(changed, config(dp=2, tp=2))
    with pytest.raises(InputError, match="was changed as it went"):
        trial_of(changed)
    with pytest.raises(InputError, match="no measured step"):
        trial_of(short)
    found = trials([good, failed, short, simulated, changed, tmp_path / "nothing"])
    assert found == [trial_of(good)]


def test_runs_of_one_configuration_are_one_measurement(tmp_path: Path) -> None:
    folders = [ran(tmp_path, config(dp=4), [[1.0, seconds]] * 4) for seconds in (1.0, 3.0, 1.2)]
    longer = config(dp=4).with_values({"train.steps": 9})
    folders += [ran(tmp_path, longer, [[1.0, 1.1]] * 4), ran(tmp_path, config(pp=4), [[1.0, 2.0]] * 4)]
    found = measured(trials(folders), here)
    assert isinstance(found, TrialMeasurements)
    assert sorted(found.seconds.tolist()) == pytest.approx([1.15, 2.0])
    assert set(found.groups.tolist()) == {"4 1 1 1", "1 1 4 1"}
    assert found.cases.pp.tolist() == [1 if group == "4 1 1 1" else 4 for group in found.groups]
    assert np.shape(found.machine.links.between) == (2,)
    check(found)


def test_nothing_to_fit_to_is_said() -> None:
    with pytest.raises(InputError, match="trials"):
        measured([], here)
    with pytest.raises(InputError, match="trials"):
        lab_steps.calibrate([], 2)


def test_planted_seconds_of_cores_are_found_again_on_other_layouts() -> None:
    known = core_work.fitted(planted(LAYOUTS[:6]))
    for trial in planted(LAYOUTS[6:]):
        found = CoreWork.of(trial.config).seconds(known)
        assert found == pytest.approx(of_places(trial), rel=0.1)


def test_planted_steps_are_found_again_on_other_layouts() -> None:
    known = lab_steps.calibrate(planted(LAYOUTS[:6]), 2)
    for trial in planted(LAYOUTS[6:]):
        assert lab_steps.simulate(trial.config, 2, known).seconds == pytest.approx(trial.seconds, rel=0.1)


def test_slow_links_cost_a_core_a_little_and_the_step_much() -> None:
    works = [CoreWork.of(config(rate, dp=2, pp=2)) for rate in (100.0, 1000.0)]
    slow, fast = (work.seconds(TRUE) for work in works)
    waited = TRUE.waiting_share * works[0].handled[0].bytes * (1 / works[0].rate - 1 / works[1].rate)
    assert slow[0] - fast[0] == pytest.approx(waited)
    times = [lab_steps.simulate_work(work, 2, TRUE).seconds for work in works]
    assert times[0] > times[1] > fast.sum() * 2 / 2


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"lab.hosts": 2}, "lab.hosts"),
        ({"lab.hosts": None, "lab.rate_mbit": None}, "lab.hosts"),
        ({"lab.rate_mbit": None}, "lab.rate_mbit"),
        ({"lab.islands": 2}, "lab.hosts"),
        ({"compile": True}, "config"),
    ],
)
def test_what_the_model_of_the_lab_does_not_know_is_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        lab_steps.simulate(config(dp=4).with_values(values), 2, TRUE)
