"""Plans: every legal layout and no other, the best of them, and a reason for each family that was not taken."""

import json
import random
from itertools import pairwise

import numpy as np
import pytest

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, parse
from engine.config.validation import rules
from tests.support.drawn import SEED
from tests.support.studies.layouts import draw
from tuning.predict import forecast_document, target
from tuning.predict.forecast import forecasts
from tuning.predict.model.cases import cases_of
from tuning.predict.plan import plans, why_not
from tuning.predict.plan.layouts import AXES, MOST_CHUNKS, RECOMPUTE, Space

DGX = target.parse_target("dgx-a100", 2)


def model(preset: str, batch: int) -> RunConfig:
    memory = {"parameters": "bf16"}
    return parse({"model": {"preset": preset}, "data": {"sequence_length": 2048}, "batch": {"global_batch": batch},
                  "precision": "bf16", "memory": memory})  # fmt: skip


def point(config: RunConfig) -> tuple[int, ...]:
    codes = {name: code for code, name in RECOMPUTE.items()}
    parallel = config.parallel
    degrees = (parallel.dp, parallel.tp, parallel.pp, parallel.zero_stage)
    return *degrees, config.batch.micro_batch, config.schedule.chunks, codes[config.memory.recompute]


def test_legality_is_that_of_the_engine() -> None:
    """Drawn configurations are looked at if, and only if, they keep every rule and what the closed forms suppose."""
    random_, seen = random.Random(SEED), {True: 0, False: 0}
    for _ in range(600):
        config = draw(random_, random_.choice(["tiny", "350m", "1b"]))
        ranks = config.parallel.dp * config.parallel.tp * config.parallel.pp
        points = np.concatenate(
            [block.points for block in Space.from_config(config, ranks, 8).blocks()] or [np.empty((0, 7))]
        )
        legal = not list(rules.problems(config)) and _supposed(config)
        assert (points == point(config)).all(axis=1).any() == legal, config
        seen[legal] += 1
    assert min(seen.values()) > 20


def _supposed(config: RunConfig) -> bool:
    """Even interleaving; ZeRO only where there is somebody to share with."""
    parallel, chunks = config.parallel, config.schedule.chunks
    count = config.batch.global_batch // parallel.dp // config.batch.micro_batch
    layers = {"tiny": 4, "350m": 24, "1b": 16}[config.model.preset]
    even = parallel.pp > 1 and layers % (parallel.pp * chunks) == 0 and count % parallel.pp == 0
    return (chunks == 1 or even) and chunks <= MOST_CHUNKS and (parallel.dp > 1 or parallel.zero_stage == 0)


def test_points_as_cases_and_as_configurations_are_the_same() -> None:
    space = Space.from_config(model("7b", 96), 48, 8)
    points = np.concatenate([block.points for block in space.blocks()])
    drawn = points[np.random.default_rng(SEED).permutation(len(points))[:150]]
    configs = [space.config(row.tolist()) for row in drawn]
    assert not [config for config in configs if list(rules.problems(config))]
    assert [point(config) for config in configs] == [tuple(row) for row in drawn.tolist()]
    assert space.cases(drawn).rows() == cases_of(configs, 8).rows()


def test_what_is_looked_at_is_predicted_as_it_is_one_by_one() -> None:
    space = Space.from_config(model("1b", 64), 16, 8)
    looked = plans.predict_layouts(space, DGX)
    rows = np.random.default_rng(SEED).permutation(len(looked.seconds))[:40]
    found = forecasts([space.config(looked.points[row].tolist()) for row in rows], DGX)
    assert [one.step_seconds.median for one in found] == pytest.approx(looked.seconds[rows].tolist())
    assert [one.memory_bytes.median for one in found] == pytest.approx(looked.memory[rows].tolist(), rel=0.05)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("preset", "nodes", "batch"), [("22b", 2, 640), ("175b", 128, 1024), ("1t", 384, 3072)]
)
def test_models_of_the_frontier_paper(preset: str, nodes: int, batch: int) -> None:
    found = plans.plan(model(preset, batch), target.parse_target("frontier", nodes), top=3)
    assert len(found.best) == 3
    seconds = [one.step_seconds.median for one in found.best]
    assert seconds == sorted(seconds)
    assert len({point(one.config)[:4] for one in found.best}) == 3
    for one in (*found.best, *found.pareto):
        assert one.fits
        assert not list(rules.problems(one.config))
    assert not found.tight or (not found.tight.fits and found.tight.step_seconds.median < seconds[0])


def test_the_pareto_trades_time_for_memory() -> None:
    found = plans.plan(model("7b", 64), DGX)
    front = [(one.step_seconds.median, one.memory_bytes.median) for one in found.pareto]
    assert front[0][0] == found.best[0].step_seconds.median
    assert all(one[0] <= other[0] and one[1] > other[1] for one, other in pairwise(front))


def test_every_family_has_its_reason() -> None:
    found = plans.plan(model("70b", 64), target.parse_target("mosaic-a100-40gb", 8))
    families = {(family.axis, family.value): family for family in found.families}
    assert {axis for axis, _ in families} == set(AXES)
    best = point(found.best[0].config)
    for axis, value in zip(AXES, best, strict=True):
        name = RECOMPUTE[value] if axis == "recompute" else str(value)
        assert families[axis, name].verdict == "best"
        assert families[axis, name].slower == 0
    assert families["tp", "16"].reason == "8 heads of keys and values do not divide"
    assert families["pp", "64"].reason.startswith("needs ")
    for family in found.families:
        if family.verdict == "slower" and (family.slower or 0) > 0.01:
            assert "% slower: " in family.reason
        if family.verdict == "memory":
            assert family.memory_ratio is not None
            assert family.step_seconds is None
    assert any(family.verdict == "memory" for family in found.families)
    assert any(family.verdict == "slower" for family in found.families)


def test_a_family_too_large_by_far_says_how_many_times() -> None:
    found = plans.plan(model("22b", 640), target.parse_target("frontier", 2), top=1)
    large = next(family for family in found.families if (family.axis, family.value) == ("dp", "16"))
    assert large.verdict == "memory"
    assert large.reason == f"needs {large.memory_ratio:.1f} times the memory of a device"
    assert (large.memory_ratio or 0) > 1.5


def test_the_json_of_a_plan() -> None:
    tree = json.loads(json.dumps(plans.plan(model("1b", 64), DGX, top=2).as_dict()))
    assert set(tree) == {
        "cluster", "model", "global_batch", "sequence_length", "precision", "memory_limit_bytes", "looked_at", "safe",
        "best", "pareto", "tight", "families", "notes", "experience", "sources",
    }  # fmt: skip
    assert len(tree["best"]) == 2
    assert {"values", "step_seconds", "memory_bytes", "breakdown", "limits"} <= set(tree["best"][0])


def test_a_lab_and_networks_of_its_cards_are_left_out_and_told() -> None:
    """The same layouts as without: which devices are on one island, and over what, is of the cluster."""
    plain = model("1b", 64)
    second = {"lab": {"islands": [2, 2], "inside_mbit": 400.0}, "network": {"inside": "data"}}
    told, other = (plans.plan(one, DGX, top=1) for one in (plain.with_values(second), plain))
    assert told.best[0].step_seconds == other.best[0].step_seconds
    assert told.notes == (forecast_document.LAB_LEFT_OUT, *other.notes)
    named = plain.with_values({"network": {"inside": "IB", "island_devices": [1, 3]}})
    assert plans.plan(named, DGX, top=1).notes == other.notes


@pytest.mark.parametrize(
    "values", [{"model.experts": 4}, {"outer.method": "local"}, {"memory.offload": "both"}]
)
def test_what_no_closed_form_knows_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(InputError, match="not modelled"):
        plans.plan(model("1b", 64).with_values(values), DGX)


def test_no_layout_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="no legal layout"):
        plans.plan(parse({"batch": {"global_batch": 1}}), target.parse_target("dgx-a100", 64))


def test_why_not_names_the_term() -> None:
    good = plans.best(model("7b", 64), DGX, 16)
    assert good is not None
    for values, term in (
        ({"memory.recompute": "full"}, "recomputation"),
        (
            {"parallel.tp": 16, "parallel.dp": 1, "parallel.pp": 1, "parallel.zero_stage": 0},
            "tensor_parallel",
        ),
    ):
        asked = good.config.with_values({"schedule.kind": "1f1b", "schedule.chunks": 1, **values})
        found = why_not.why_not(asked, DGX)
        assert found.legal
        assert found.slower is not None
        assert found.slower > 0.05
        assert found.terms[0].name == term
        assert found.terms[0].share > 0.25
    own = why_not.why_not(good.config, DGX)
    assert own.slower == 0
    assert not own.terms


def test_why_not_of_what_is_not_legal_or_does_not_fit() -> None:
    asked = model("7b", 64).with_values({"parallel.tp": 4, "parallel.pp": 4, "batch.micro_batch": 7})
    found = why_not.why_not(asked.with_values({"schedule.stage_layers": [1, 2, 3]}), DGX)
    assert len(found.problems) == 2
    assert found.forecast is None
    assert found.best is not None
    large = why_not.why_not(model("70b", 64).with_values({"parallel.dp": 16}), DGX)
    assert large.forecast is not None
    assert not large.forecast.fits
    experts = model("7b", 64).with_values({"parallel.dp": 16, "model.experts": 4})
    assert "not modelled" in (why_not.why_not(experts, DGX).reason or "")
