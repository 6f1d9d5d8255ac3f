"""Finished runs of this machine: constants and memory found again in them, which of them count, and what is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, parse
from engine.footprint.footprint import largest
from engine.run.calibration import fingerprint
from engine.run.calibration.table import Calibration
from tests.support.engine.calibrations import calibration, curve, point
from tuning.predict import correction, target
from tuning.predict.fit import allowances
from tuning.predict.fit.allowances import Peaks
from tuning.predict.fit.finished_runs import FinishedRun, Trial
from tuning.predict.forecast import forecast, forecasts
from tuning.predict.model import headroom, step_time
from tuning.predict.model.cases import cases_of
from tuning.predict.model.constants import Constants
from tuning.predict.target import BELIEVED_HERE, Target

HERE = fingerprint.this_machine()
LAYOUTS: tuple[dict[str, int], ...] = ({"dp": 4}, {"tp": 4}, {"pp": 4}, {"dp": 2, "tp": 2})
HELD_OUT = {"dp": 2, "pp": 2}
MIB = 2**20


def measured_machine() -> Calibration:
    """One rank alone, and four that share what is 1.6 times as much."""
    found = calibration((4,))
    both = [curve("gemm", "fp32", 4, [point(1024, 2 * 1024**3 / 4e10)]),
            curve("memory", "copy", 4, [point(2**27, 2 * 2**27 / 8e9)])]  # fmt: skip
    return replace(found, curves=(*found.curves, *both))


TARGET = target.calibrated_target(measured_machine())
TRUE = TARGET.calibrated.constants.put(
    block_seconds=4e-3, step_seconds=0.03, update_passes=5.0, inside_seconds=5e-4, between_seconds=2e-3
)


def config(
    micro: int = 1, hidden: int = 256, lab: dict[str, Any] | None = None, **parallel: int
) -> RunConfig:
    tree = {
        "model": {"layers": 8, "hidden": hidden, "heads": 4, "kv_heads": 4},
        "data": {"sequence_length": 128},
        "batch": {"micro_batch": micro, "global_batch": 16},
        "parallel": parallel,
        "lab": lab or {},
        "device": "cpu",
    }
    return parse(tree)


def ran(one: RunConfig, seconds: float, run: str = "one", **about: Any) -> FinishedRun:
    """A finished run of this machine."""
    network = "a lab" if one.lab.is_wanted else None
    told = {"fingerprint": {**HERE.as_dict(), "network": network}, "backend": "gloo", "peak": None, **about}
    return FinishedRun(run, told["backend"], told["fingerprint"], Trial(one, seconds, (), told["peak"]))


def planted(
    configs: Sequence[RunConfig], constants: Constants = TRUE, noise: float = 0.01
) -> list[FinishedRun]:
    """Runs that took what these constants say, and held 300 MiB and 8 % more than what is counted."""
    draw, found = np.random.default_rng(1), list[FinishedRun]()
    for number, one in enumerate(configs):
        seat = TARGET.adapt_to_config(one)
        parts = step_time.step(cases_of([one], seat.devices_per_node), seat.machine("fp32"), constants)
        seconds = float(parts.seconds[0] * np.exp(draw.normal(0, noise)))
        peak = (1.08 * largest(one).total_bytes + 300 * MIB) * float(np.exp(draw.normal(0, 0.01)))
        found.append(ran(one, seconds, f"run-{number}", peak=round(peak)))
    return found


def drawn(layouts: Sequence[dict[str, int]] = LAYOUTS, lab: dict[str, Any] | None = None) -> list[RunConfig]:
    return [config(micro, hidden, lab, **one) for one in layouts for micro, hidden in ((1, 256), (4, 512))]


def learned(runs: Sequence[FinishedRun], base: Target = TARGET) -> Target:
    return correction.learn_target(base, runs, HERE)


@pytest.fixture(scope="module")
def known() -> Target:
    return learned(planted(drawn()))


def test_fitted_constants_predict_a_layout_that_was_held_out(known: Target) -> None:
    off = np.zeros(2)
    for one in drawn([HELD_OUT]):
        true = planted([one], noise=0.0)[0].trial
        assert true is not None
        before, after = forecasts([one], TARGET)[0].step_seconds, forecasts([one], known)[0].step_seconds
        assert after.median == pytest.approx(true.seconds, rel=0.1)
        assert after.low < true.seconds < after.high
        assert after.high / after.low < 0.7 * before.high / before.low
        off += [abs(each.median / true.seconds - 1) for each in (after, before)]
    assert off[0] < off[1]


def test_what_was_learned_is_said_and_in_the_json(known: Target) -> None:
    found = forecast(config(dp=4), known)
    assert any("constants fitted to 8 of your finished runs (4 layouts)" in note for note in found.notes)
    assert BELIEVED_HERE not in found.notes
    told = found.as_dict()["experience"]
    assert (told["runs"], told["configurations"], told["layouts"], told["fitted"]) == (8, 8, 4, True)
    assert told["error"]["low"] <= told["error"]["high"]
    assert told["memory"]["learned"]
    assert told["left_out"] == []
    assert "8 finished runs" in found.as_dict()["sources"]["constants"]
    assert forecast(config(dp=4), TARGET).as_dict()["experience"] is None


def test_few_layouts_are_less_sure_than_many(known: Target) -> None:
    few = learned(planted(drawn(LAYOUTS[:3])))
    error = [max(abs(one.calibrated.low), abs(one.calibrated.high)) for one in (few, known)]
    assert few.unsure / error[0] > known.unsure / error[1] > 0


@pytest.mark.parametrize(("count", "missing"), [(0, "6 more configurations and 3 more layouts"),
                                                (4, "2 more configurations and 1 more layout")])  # fmt: skip
def test_too_few_change_nothing_and_say_how_many_are_missing(count: int, missing: str) -> None:
    few = learned(planted(drawn(LAYOUTS[:2])[:count]))
    assert few.calibrated == TARGET.calibrated
    assert few.unsure == TARGET.unsure
    assert any(missing in note for note in few.notes)
    assert BELIEVED_HERE in few.notes
    assert few.allowance == headroom.ON_CPU
    assert few.experience is not None
    assert few.experience.as_dict()["error"] is None


def test_runs_that_contradict_each_other_are_named_and_left_out(known: Target) -> None:
    extra = config(micro=2, dp=4)
    pair = [ran(extra, 1.0, "quick"), ran(extra.with_values({"train.seed": 5}), 2.0, "slow")]
    found = learned([*planted(drawn()), *pair])
    assert any("quick and slow contradict each other: 1 s and 2 s" in note for note in found.notes)
    assert found.calibrated == known.calibrated
    assert found.experience is not None
    assert [one.run for one in found.experience.left_out] == ["quick", "slow"]
    third = learned([*planted(drawn()), *pair, ran(extra, 1.1, "usual")])
    assert third.experience is not None
    assert third.experience.runs == 9


def test_other_machines_devices_and_settings_do_not_count() -> None:
    one = config(dp=4)
    old = {**HERE.as_dict(), "torch": "1.0.0"}
    others = {
        "torch": ran(one, 9.0, fingerprint=old),
        "does not tell its machine": ran(one, 9.0, fingerprint=None),
        "ran on nccl": ran(one, 9.0, backend="nccl"),
        "of which the calibration has no rate": ran(one.with_values({"precision": "bf16"}), 9.0),
        "compile": ran(one.with_values({"compile": True}), 9.0),
        "links are those of the cluster": ran(config(lab={"hosts": 2, "rate_mbit": 100.0}, dp=4), 9.0),
        "formulas know the decoder alone": ran(
            parse({"model": {"workload": "vision"}, "parallel": {"dp": 4}}), 9.0
        ),
        "was changed as it went": FinishedRun("x", "gloo", old, None, "was changed as it went"),
    }
    found = learned(list(others.values())).experience
    assert found is not None
    assert found.runs == 0
    for words, left in zip(others, found.left_out, strict=True):
        assert words in left.reason, left
    assert any(
        note.startswith("8 other finished runs do not count") for note in learned(list(others.values())).notes
    )


def test_runs_in_the_lab_have_its_links() -> None:
    labs = [{"hosts": 4, "rate_mbit": rate} for rate in (50.0, 1000.0)]
    found = learned(planted([one for lab in labs for one in drawn(LAYOUTS[:3], lab)]))
    slow, fast = (config(lab=lab, **HELD_OUT) for lab in labs)
    for one, answer in zip((slow, fast), forecasts([slow, fast], found), strict=True):
        true = planted([one], noise=0.0)[0].trial
        assert true is not None
        assert answer.step_seconds.median == pytest.approx(true.seconds, rel=0.15)
        assert not any("links are those of the cluster" in note for note in answer.notes)
        assert answer.target.devices_per_node == 1
    assert not any("no finished run was on" in note for note in forecasts([slow], found)[0].notes)
    plain, fitted = forecasts([config(**HELD_OUT)], found)[0], forecasts([slow], found)[0]
    assert any("no finished run was on this host's own links" in note for note in plain.notes)
    assert plain.target.unsure > fitted.target.unsure


def test_ranks_share_cores_as_the_calibration_says() -> None:
    alone, two, four = (TARGET.adapt_to_config(config(dp=ranks)) for ranks in (1, 2, 4))
    rates = [one.machine("fp32").device.peak for one in (alone, two, four)]
    assert rates == pytest.approx([1e11, (1e11 * 4e10) ** 0.5, 4e10])
    with pytest.raises(InputError, match="at most 4 devices"):
        TARGET.adapt_to_config(config(dp=8))
    more = learned([*planted(drawn())[:7], ran(config(dp=8), 3.0, "eight")])
    eight = more.adapt_to_config(config(dp=8))
    assert eight.machine("fp32").device.peak == pytest.approx(2e10)
    assert eight.memory_bytes == pytest.approx(four.memory_bytes / 2, rel=1e-6)
    assert any("one of 8 ranks that share the cores, 4 were timed" in note for note in eight.notes)
    assert alone.machine("fp32").links == TARGET.machine("fp32").links


def test_what_ranks_hold_beside_is_learned(known: Target) -> None:
    one = config(hidden=512, **HELD_OUT)
    counted = largest(one).total_bytes
    found = forecasts([one], known)[0]
    true = 1.08 * counted + 300 * MIB
    assert found.memory_bytes.median == pytest.approx(true, rel=0.03)
    assert found.memory_bytes.low < true < found.memory_bytes.high < 1.1 * true
    assert any("learned from 8 runs, left-out error ±" in note for note in found.notes)
    assert headroom.SAID not in found.notes
    assert known.allowance.context_bytes == pytest.approx(300 * MIB, rel=0.1)


def test_above_what_was_measured_memory_is_believed_again(known: Target) -> None:
    counted = np.array([1.0, 20.0]) * known.allowance.counted_bytes
    low, high = known.allowance.ends(counted)
    width = (high - low) / known.allowance.median(counted)
    assert width[1] > width[0]
    assert high[1] >= 1.1 * counted[1]


def test_the_believed_allowance_is_a_tenth_and_libraries_on_a_cpu() -> None:
    counted = np.array([10.0 * headroom.GIB])
    low, high = headroom.ON_GPU.ends(counted)
    assert low == counted
    assert high == pytest.approx(counted * 1.1)
    assert headroom.ON_CPU.median(counted) == pytest.approx(counted * 1.03 + headroom.GIB / 2)


def test_on_a_gpu_only_the_share_is_learned() -> None:
    counted = np.linspace(1.0, 20.0, 8) * headroom.GIB
    peaks = Peaks(counted, 1.15 * counted, np.arange(8) % 3)
    found = allowances.learn_allowance(peaks, 8, on_cpu=False)
    assert found.share == pytest.approx(0.15, abs=0.01)
    assert found.context_bytes == 0
    low, high = found.ends(counted)
    assert (low < 1.15 * counted).all()
    assert (high > 1.15 * counted).all()
