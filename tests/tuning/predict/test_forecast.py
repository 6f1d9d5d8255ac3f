"""One question, one answer: its JSON, its intervals, what would change it, and what it refuses."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, parse
from engine.config.validation import rules
from engine.footprint.device_overhead import DeviceOverhead, device_overhead
from engine.footprint.flops import model_flops_per_step, workload_of
from engine.footprint.footprint import largest
from tests.support.drawn import SEED
from tests.support.engine import calibrations
from tests.support.studies.layouts import draw
from tuning.predict import target
from tuning.predict.cluster import catalogue
from tuning.predict.forecast import TERMS, forecast, forecasts, room_of
from tuning.predict.model import headroom
from tuning.predict.plan.layouts import Space

KEYS = {
    "layout", "world_size", "cluster", "step_seconds", "memory_bytes", "interval", "breakdown", "limits",
    "tokens_per_second", "mfu", "mfu_convention", "peak_flops", "memory_limit_bytes", "memory_breakdown",
    "outside_allocator_bytes", "out_of_memory_probability", "changes", "notes", "experience", "sources",
}  # fmt: skip
MIXED = {"precision": "bf16", "memory": {"parameters": "bf16"}, "data": {"sequence_length": 2048}}
SELENE = target.parse_target("selene", 2)


def config(preset: str = "7b", batch: int = 64, **parallel: int) -> RunConfig:
    tree = {
        "model": {"preset": preset},
        "parallel": parallel,
        "batch": {"micro_batch": 1, "global_batch": batch},
    }
    return parse({**tree, **MIXED})


def test_the_json_that_others_rely_on() -> None:
    asked = config(dp=4, tp=2, pp=2, zero_stage=1)
    found = forecast(asked, SELENE)
    tree = json.loads(json.dumps(found.as_dict()))
    assert set(tree) == KEYS
    for key in ("step_seconds", "memory_bytes"):
        assert tree[key]["low"] <= tree[key]["median"] <= tree[key]["high"]
    assert set(tree["breakdown"]) == set(TERMS)
    assert sum(tree["breakdown"].values()) == pytest.approx(tree["step_seconds"]["median"])
    assert tree["tokens_per_second"] == pytest.approx(64 * 2048 / tree["step_seconds"]["median"])
    flops = model_flops_per_step(workload_of(asked))
    assert tree["mfu"] == pytest.approx(flops / (16 * 312e12 * tree["step_seconds"]["median"]))
    assert tree["memory_limit_bytes"] == catalogue.accelerator("a100-80gb").memory_bytes
    assert sum(tree["memory_breakdown"].values()) == pytest.approx(tree["memory_bytes"]["median"])
    assert {"constants", "a100-80gb.peak_flops.bf16", "groups.0.between.bytes_per_second"} <= set(
        tree["sources"]
    )


def test_limits_are_the_largest_terms_in_words() -> None:
    found = forecast(config(preset="22b", dp=1, tp=16), target.parse_target("frontier", 2))
    shares = [limit.share for limit in found.limits]
    assert shares == sorted(shares, reverse=True)
    assert all(limit.share == pytest.approx(found.breakdown[limit.name] / found.step_seconds.median)
               for limit in found.limits)  # fmt: skip
    assert found.limits[0].name == "tensor_parallel"
    assert found.limits[0].words.startswith("messages of tp: ")


def test_memory_is_what_the_engine_counts_and_an_allowance() -> None:
    asked = config(dp=2, tp=4, pp=2)
    found = forecast(asked, SELENE)
    counted = largest(asked).total_bytes
    beside = device_overhead(asked)
    assert found.outside == beside
    assert found.memory_bytes.low == counted + beside.low
    assert found.memory_bytes.median == pytest.approx(1.03 * counted + beside.likely)
    assert found.memory_bytes.high == pytest.approx(1.1 * counted + beside.high)
    assert {headroom.SAID, headroom.OUTSIDE_SAID} <= set(found.notes)
    parts = found.as_dict()["memory_breakdown"]
    assert parts["outside_allocator"] == beside.likely
    assert parts["allowance"] == pytest.approx(0.03 * counted)


def test_what_is_outside_the_allocator_can_be_too_much() -> None:
    """Axes that leave counted bytes as they are need more of the device: each has a communicator."""
    tight = np.array([(SELENE.memory_bytes - headroom.GIB) / 1.03])
    alone, many = (
        room_of(tight, SELENE, headroom.overhead_columns([device_overhead(one)]))
        for one in (config(), config(dp=8, tp=2))
    )
    assert alone.probability[0] < 0.5 < many.probability[0]


def test_a_rank_on_a_cpu_has_nothing_outside_an_allocator() -> None:
    here = target.calibrated_target(calibrations.calibration())
    asked = parse({})
    found = forecast(asked, here)
    assert found.outside == DeviceOverhead()
    assert found.as_dict()["memory_breakdown"]["outside_allocator"] == 0
    assert found.memory_bytes.median == pytest.approx(1.03 * largest(asked).total_bytes + headroom.CPU_BYTES)
    assert headroom.OUTSIDE_SAID not in found.notes


def test_many_layouts_at_a_time_hold_what_each_holds_outside() -> None:
    space = Space.from_config(config(batch=32), 16, 8)
    points, cases = next(space.blocks())
    found = headroom.case_overhead(cases, space.base, SELENE.on_cpu)
    rows = random.Random(SEED).sample(range(len(points)), 40)
    each = headroom.overhead_columns([device_overhead(space.config(points[row].tolist())) for row in rows])
    for column, expected in zip(found, each, strict=True):
        assert (np.asarray(column)[rows] == expected).all()
    assert len(np.unique(found.median)) > 5


def test_a_probability_grows_with_what_is_held() -> None:
    counted = np.array([40.0, 70.0, 74.0, 80.0, 120.0]) * headroom.GIB
    found = headroom.predict_memory(counted, 80 * headroom.GIB)
    assert (np.diff(found.probability) >= 0).all()
    assert found.probability[0] < 1e-6
    assert found.probability[-1] > 0.999
    at_limit = headroom.predict_memory(
        79 * headroom.GIB / np.array([1 + headroom.WORKSPACE_SHARE]),
        80 * headroom.GIB,
        outside=headroom.OutsideAllocator(headroom.GIB, 0, headroom.GIB),
    )
    assert at_limit.probability[0] == pytest.approx(0.5, abs=1e-6)


def test_many_at_a_time_are_as_one_by_one() -> None:
    random_ = random.Random(SEED)
    drawn = (draw(random_, random_.choice(["tiny", "350m", "7b"])) for _ in range(4000))
    legal = [one for one in drawn if not list(rules.problems(one)) and _ranks(one) == 16][:12]
    assert len(legal) >= 5
    together = forecasts(legal, SELENE)
    for one, found in zip(legal, together, strict=True):
        alone = forecasts([one], SELENE)[0]
        assert found.config == one
        assert found.breakdown == pytest.approx(dict(alone.breakdown))
        for range_, other in (
            (found.step_seconds, alone.step_seconds),
            (found.memory_bytes, alone.memory_bytes),
        ):
            assert range_ == pytest.approx(other)
        assert (found.footprint, found.notes) == (alone.footprint, alone.notes)


def test_the_interval_widens_outside_of_what_was_measured() -> None:
    inside, beyond = forecasts([config(batch=64, dp=8, tp=2), config(batch=8192, dp=8, tp=2)], SELENE)
    assert _width(beyond.step_seconds) > _width(inside.step_seconds)
    assert not any("outside of what" in note for note in inside.notes)
    assert any("outside" in note and "micro_batches" in note for note in beyond.notes)


def test_a_device_that_constants_were_not_fitted_on_widens_it() -> None:
    asked = config(dp=8, tp=2)
    cluster = catalogue.cluster("selene", 2)
    chip = replace(cluster.groups[0].accelerator, name="another")
    other = replace(cluster, groups=(replace(cluster.groups[0], accelerator=chip),))
    known, unknown = forecast(asked, SELENE), forecast(asked, target.cluster_target(other))
    assert _width(unknown.step_seconds) > 1.5 * _width(known.step_seconds)
    assert any("another is believed" in note for note in unknown.notes)


def test_changes_are_legal_fit_and_gain_what_they_say() -> None:
    asked = config(batch=64, dp=2, tp=4, pp=2)
    own = forecast(asked, SELENE)
    assert own.changes
    assert [change.step_seconds for change in own.changes] == sorted(
        change.step_seconds for change in own.changes
    )
    keys = {key for change in own.changes for key in change.values}
    for key in ("batch.micro_batch", "parallel.tp", "parallel.pp", "parallel.dp", "parallel.zero_stage",
                "memory.recompute", "schedule.chunks", "compression.method"):  # fmt: skip
        assert key in keys, key
    for change in own.changes:
        other = asked.with_values(dict(change.values))
        assert not list(rules.problems(other))
        assert (_ranks(other), other.batch.global_batch) == (16, 64)
        again = forecasts([other], SELENE)[0]
        assert again.fits
        assert change.gain == pytest.approx(again.tokens_per_second / own.tokens_per_second - 1)
        assert change.lossy == (other.compression.method != "none")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model.experts": 4}, "experts"),
        ({"outer.method": "diloco"}, "outer.method=diloco"),
        ({"parallel.tp_regather": True}, "tp_regather"),
        (
            {
                "schedule.kind": "layered",
                "parallel.zero_stage": 2,
                "parallel.reduce_every_micro_batch": True,
            },
            "layered",
        ),
        ({"memory.offload": "optimizer"}, "memory.offload"),
        ({"memory.block_actions": ["offload"] * 24}, "memory.block_actions"),
        ({"memory.budget_gib": 1.0}, "memory.budget_gib=1:"),
        ({"compression.method": "int8"}, "compression.method=int8"),
        ({"compile": True}, "compile"),
    ],
)
def test_what_is_not_modelled_is_said(values: dict[str, object], words: str) -> None:
    plain = config(preset="350m", dp=4, tp=4)
    found = forecasts([plain, plain.with_values(values)], SELENE)
    assert not any(words in note for note in found[0].notes)
    assert any(words in note for note in found[1].notes)


def test_a_wrong_number_of_ranks_is_refused() -> None:
    for parallel in ({"dp": 8}, {"dp": 32}):
        with pytest.raises(InputError, match="selene has 16 devices"):
            forecast(config(**parallel), SELENE)
    with pytest.raises(InputError, match="multiple of 8"):
        target.parse_target("selene", None, 12)
    assert target.parse_target("selene", None, 32).cluster.size == 32
    assert forecast(config(dp=4), target.parse_target("selene", None, 4)).step_seconds.median > 0


def test_a_broken_rule_is_refused() -> None:
    with pytest.raises(InputError, match=r"parallel\.tp=16"):
        forecast(config(preset="tiny", tp=16), SELENE)


def test_a_missing_figure_is_named() -> None:
    with pytest.raises(InputError, match=r"mosaic-h100.*bytes_per_second_per_node"):
        target.parse_target("mosaic-h100", 2)
    here = target.calibrated_target(calibrations.calibration())
    with pytest.raises(InputError, match=r"peak_flops\.bf16.*it has fp32"):
        forecast(parse({"precision": "bf16"}), here)


def test_this_machine_by_its_calibration() -> None:
    here = target.calibrated_target(calibrations.calibration())
    found = forecast(parse({}), here)
    assert found.peak_flops == pytest.approx(1e11)
    assert found.target.calibrated.constants.gemm_share == 1.0
    assert any("this machine's" in note for note in found.notes)
    with pytest.raises(InputError, match="at most 1 device"):
        forecast(parse({"parallel": {"dp": 2}}), here)


def test_groups_that_differ_count_as_the_slowest(tmp_path: Path) -> None:
    group = (
        'accelerator = "{}"\nnodes = 1\ndevices_per_node = 8\nnetwork = "n"\ninside.bytes_per_second = 1e11\n'
    )
    text = f"[[groups]]\n{group.format('a100-80gb')}[[groups]]\n{group.format('a100-40gb')}"
    path = tmp_path / "two.toml"
    path.write_text(text + "[across]\nbytes_per_second = 1e9\n")
    two = target.parse_target(str(path))
    assert two.memory_bytes == catalogue.accelerator("a100-40gb").memory_bytes
    assert two.machine("bf16").links.between == 1e9
    assert any("differ" in note for note in forecast(config(dp=8, tp=2), two).notes)


def _ranks(one: RunConfig) -> int:
    return one.parallel.dp * one.parallel.tp * one.parallel.pp * one.parallel.cp


def _width(found: tuple[float, float, float]) -> float:
    return found[2] / found[1]
