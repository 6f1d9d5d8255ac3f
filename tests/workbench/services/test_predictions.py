"""What is said of a configuration before it runs: by the formulas of the command line, or why nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.run_config import RunConfig, parse
from engine.footprint.footprint import largest
from engine.run.calibration import fingerprint, store
from tests.support.engine.calibrations import calibration
from tests.workbench.conftest import Run
from tuning.predict.target import Target
from workbench.services.predictions import find_target, gauge

GIB = 2**30


def config(**values: Any) -> RunConfig:
    return parse({"device": "cpu"}).with_values(
        {key.replace("__", "."): value for key, value in values.items()}
    )


@pytest.fixture
def target(tmp_path: Path) -> Target:
    store.save(tmp_path, calibration())
    found = find_target(tmp_path)
    assert isinstance(found, Target)
    return found


def test_it_says_what_the_command_predicts(home: Path, tmp_path: Path, command: Run) -> None:
    store.save(home, calibration())
    wanted = config(batch__micro_batch=2)
    file = tmp_path / "run.json"
    file.write_text(wanted.dumps(), "utf-8")
    told = command("predict", file, "--json").document
    found = gauge(wanted, find_target(home))
    assert found.step_seconds is not None and found.memory is not None
    assert found.step_seconds._asdict() == pytest.approx(told["step_seconds"])
    assert found.tokens_per_second == pytest.approx(told["tokens_per_second"])
    assert found.memory.bytes._asdict() == pytest.approx(told["memory_bytes"])
    assert found.memory.out_of_memory_probability == pytest.approx(told["out_of_memory_probability"])
    assert found.memory.limit_bytes == told["memory_limit_bytes"]
    assert found.memory.counted_bytes == largest(wanted).total_bytes
    assert list(found.notes) == told["notes"] and found.left_out == ()


def test_without_a_calibration_memory_is_told_and_the_step_is_not(tmp_path: Path) -> None:
    found = gauge(config(parallel__dp=2), find_target(tmp_path))
    assert found.step_seconds is None and found.tokens_per_second is None
    assert found.unknown == "not calibrated: run `workbench calibrate`"
    assert found.memory is not None
    assert found.memory.limit_bytes == int(fingerprint.this_machine().memory_gib * GIB / 2)
    assert found.memory.counted_bytes == largest(config(parallel__dp=2)).total_bytes


def test_a_lower_limit_of_its_own_counts(target: Target) -> None:
    small = gauge(config(memory__limit_gib=0.25), target).memory
    assert small is not None and small.limit == "memory.limit_gib"
    assert (small.limit_bytes, small.out_of_memory_probability) == (GIB // 4, pytest.approx(1.0, abs=0.1))
    large = gauge(config(memory__limit_gib=10_000.0), target).memory
    assert large is not None and large.limit == "its part of this host's memory"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"parallel__dp": 2}, "calibrated for 1 rank at the most, and this has 2"),
        ({"device": "cuda"}, "calibrated for ranks on the CPU, and these would be on GPUs"),
        ({"precision": "bf16"}, "bf16"),
    ],
)
def test_what_is_not_modelled_says_why_and_memory_stays(
    target: Target, values: dict[str, Any], why: str
) -> None:
    found = gauge(config(**values), target)
    assert why in found.unknown and found.step_seconds is None
    assert found.memory is not None


def test_formulas_know_the_decoder_alone(target: Target) -> None:
    found = gauge(config(model__workload="spiral.py:make"), target)
    assert found.memory is None and found.step_seconds is None
    assert "formulas know the decoder alone" in found.unknown


def test_settings_whose_time_is_not_modelled_are_named(target: Target) -> None:
    found = gauge(config(memory__sample_tokens=0.5), target)
    assert found.step_seconds is not None
    assert found.left_out == ("memory.sample_tokens=0.5: seconds are those of whole weight gradients",)
    assert set(found.left_out) < set(found.notes)
