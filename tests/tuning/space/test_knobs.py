"""Environment variables that a study is offered: those that can act, with values that a run accepts."""

from __future__ import annotations

from engine.config.environment import VARIABLES
from engine.config.run_config import RunConfig
from tuning.space.knobs import offered_environment, parse_space
from tuning.spec import terms

GPUS = offered_environment("cuda", 2, 16)


def test_every_variable_is_offered_where_it_can_act() -> None:
    names = {key.rpartition(".")[2] for key in GPUS}
    assert names == set(VARIABLES)
    assert {key.rpartition(".")[2] for key in offered_environment("cuda", 1, 16)} == {
        name for name in VARIABLES if VARIABLES[name].acts != "nccl"
    }
    assert set(offered_environment("cpu", 4, 16)) == {
        f"environment.{name}" for name in VARIABLES if VARIABLES[name].acts == "anywhere"
    }


def test_what_is_offered_can_run() -> None:
    knobs = parse_space(GPUS, RunConfig())
    assert all(knob.choices[0] is None and len(knob.choices) > 1 for knob in knobs)
    terms.check_environment(RunConfig(), knobs, 2)
    cpu = RunConfig.model_validate({"device": "cpu"})
    terms.check_environment(cpu, parse_space(offered_environment("cpu", 4, 2), cpu), 4)


def test_nothing_that_can_corrupt_data_is_offered_unasked() -> None:
    assert "LL128" not in GPUS["environment.NCCL_PROTO"]


def test_threads_go_up_to_a_rank_s_cores() -> None:
    key = "environment.OMP_NUM_THREADS"
    assert offered_environment("cpu", 2, 16)[key] == [None, 1, 2, 4, 8]
    assert offered_environment("cpu", 4, 2)[key] == [None, 1, 2]
