"""Environment variables as knobs: which may be searched where, and trials on which one did not act."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.run.outcome import Ending, RunOutcome
from profilers.model.environment import NO, YES, EnvironmentRow
from tests.support.studies.fake import Machine, run_study, study
from tuning.predict.forecast_document import notes
from tuning.space.encoding import Encoding
from tuning.spec import terms
from tuning.spec.study_file import StudyFile

THREADS = "environment.OMP_NUM_THREADS"


def turning(*base: tuple[str, Any], **changes: Any) -> StudyFile:
    return study(**{"space": {THREADS: [1, 2]}, "base": dict(base), **changes})


def test_a_variable_is_a_knob_like_any_other() -> None:
    file = study(space={THREADS: [1, 2], "environment.NCCL_ALGO": ["Ring", "Tree", None]})
    space = file.search_space
    assert space.baseline[0][THREADS] is None
    assert len(space.legal_points) == 6
    point = next(
        one for one in space.legal_points if one[THREADS] == 2 and one["environment.NCCL_ALGO"] is None
    )
    assert space.config(point).environment.OMP_NUM_THREADS == 2
    assert space.label(point).endswith("OMP_NUM_THREADS=2")
    encoding = Encoding(space)
    assert encoding.decode(encoding.encode(point) or {}) == point


def test_nccl_is_at_rest_on_points_of_one_rank() -> None:
    file = study(space={"ranks": [1, 2], "environment.NCCL_ALGO": ["Ring", "Tree"]}, ranks=2)
    found = [(point["ranks"], point["environment.NCCL_ALGO"]) for point in file.search_space.legal_points]
    assert sorted(found, key=str) == [(1, None), (2, "Ring"), (2, "Tree")]


CPU = {"device": "cpu"}
ON_GPUS = "CUDA_DEVICE_MAX_CONNECTIONS"
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"space": {"environment.NCCL_ALGO": ["Ring"]}, "base": CPU}, "space.environment.NCCL_ALGO", "over gloo"),
    (
        {"space": {"environment.NCCL_ALGO": ["Ring"]}, "ranks": 1, "base": {}},
        "space.environment.NCCL_ALGO",
        "there is one",
    ),
    ({"base": CPU | {"environment": {ON_GPUS: 1}}}, f"base.environment.{ON_GPUS}", "GPUs only"),
    (
        {"space": {f"environment.{ON_GPUS}": [1]}, "base": {"lab": {"hosts": 2}}},
        f"space.environment.{ON_GPUS}",
        "GPUs only",
    ),
    ({"space": {"environment.NCL_ALGO": ["Ring"]}}, "space.environment.NCL_ALGO", "unknown key"),
    ({"space": {"environment.NCCL_NTHREADS": [65]}}, "space.environment.NCCL_NTHREADS", "64, 128"),
]


@pytest.mark.parametrize(("changes", "field", "words"), REFUSED)
def test_what_cannot_act_is_refused(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        study(**changes)
    assert (refused.value.field, words in refused.value.remedy) == (field, True), refused.value


def test_a_machine_without_gpus_refuses_what_acts_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profilers.gpu.nvml.Nvml", _NoGpus)
    file = study(space={"environment.NCCL_ALGO": ["Ring", "Tree"]})
    with pytest.raises(
        InputError, match=r"space\.environment\.NCCL_ALGO.*over gloo \(no driver\); leave it out"
    ):
        terms.check_environment_here(file.config, file.knobs, file.ranks, simulated=False)
    fine = study(space={THREADS: [1, 2]})
    terms.check_environment_here(fine.config, fine.knobs, fine.ranks, simulated=False)
    with pytest.raises(InputError, match="simulated"):
        terms.check_environment_here(fine.config, fine.knobs, fine.ranks, simulated=True)


class _NoGpus:
    device_count, reason = 0, "no driver"


def test_a_trial_on_which_a_variable_did_not_act_does_not_count(tmp_path: Path) -> None:
    machine = Machine()

    def execute(config: Any, *rest: Any) -> Any:
        outcome, summary = machine(config, *rest)
        threads = config.environment.OMP_NUM_THREADS
        proven = NO if threads == 2 else YES
        row = EnvironmentRow("OMP_NUM_THREADS", str(threads), str(threads), "1", proven, "told", [0])
        return outcome, replace(summary, environment=[row] if threads else [])

    file = study(space={THREADS: [1, 2]}, trials=3, prior="none")
    document = run_study(file, tmp_path / "studies" / "first", execute)
    told = {
        trial["config"].get(THREADS): (trial["outcome"], trial["value"], trial["reason"])
        for trial in document["trials"]
    }
    assert told[2] == ("illegal", None, "OMP_NUM_THREADS=2 did not take effect (told)")
    assert told[1][0] == "completed"


def test_an_ending_that_is_bad_anyway_stays() -> None:
    assert terms.environment_outcome(RunOutcome(Ending.OOM, "full"), None).ending is Ending.OOM  # type: ignore[arg-type]


def test_predictions_say_that_they_leave_it_out() -> None:
    file = turning(("environment", {"OMP_NUM_THREADS": 2}), space={"batch.micro_batch": [1, 2]})
    assert "environment: what OMP_NUM_THREADS changes is not modelled" in notes(file.config)
    assert not any("environment" in line for line in notes(study().config))
