"""Context and expert parallelism and hybrid sharding as knobs: every legal run once, and no run twice."""

from typing import Any

import pytest

from engine.config import run_config as runconfig
from engine.config.validation.rules import check
from engine.schedules.registry import SCHEDULES, plan
from tests.support.studies.axes import (
    BASE,
    DENSE,
    EXPERTS,
    LOSSY_CONTEXT,
    MESSAGES,
    MIXTURE,
    NO_EXPERTS,
    THIRDS,
    combined,
    on_four,
    what_runs,
)
from tuning.space.encoding import Encoding
from tuning.space.first_tries import first_tries
from tuning.space.knobs import default_space
from tuning.space.points import best_known
from tuning.space.space import Space
from tuning.spec import study_file

SPACES = {
    "experts": EXPERTS,
    "lossy": LOSSY_CONTEXT,
    "thirds": THIRDS,
    "no experts": NO_EXPERTS,
    "messages": MESSAGES,
}
AXES = {"parallel.cp", "parallel.cp_method", "parallel.ep", "parallel.shard_ranks"}


@pytest.mark.parametrize("space", [DENSE, *SPACES.values()], ids=["dense", *SPACES])
def test_no_two_points_are_the_same_run_and_the_engine_takes_all(space: Space) -> None:
    points = space.legal_points
    configs = [space.config(point) for point in points]
    assert {check(config).world_size for config in configs} == {space.ranks}
    assert len({what_runs(config) for config in configs}) == len(points) > 0


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_no_run_is_left_out(space: Space) -> None:
    wanted = {what_runs(config) for config in combined(space)}
    assert {what_runs(space.config(point)) for point in space.legal_points} >= wanted


@pytest.mark.parametrize("space", [DENSE, *SPACES.values()], ids=["dense", *SPACES])
def test_a_sampler_can_say_every_point_there_is(space: Space) -> None:
    encoding = Encoding(space)
    for point in space.legal_points[::7]:
        params = encoding.encode(point)
        assert params is not None
        assert encoding.decode(params) == point


def test_the_default_space_on_long_sequences_has_no_run_twice() -> None:
    base = {"data": {"sequence_length": 8_192}, "batch": {"global_batch": 8, "micro_batch": 2}}
    space = study_file.parse({"name": "long", "ranks": 2, "base": base}).search_space
    configs = [space.config(point) for point in space.legal_points]
    assert len({what_runs(config) for config in configs}) == len(configs)
    assert {config.parallel.cp for config in configs} == {1, 2}


@pytest.mark.parametrize(
    ("base", "ranks", "turned"),
    [
        ({}, 4, set()),
        ({"data": {"sequence_length": 8_192}}, 4, {"parallel.cp", "parallel.cp_method"}),
        ({"batch": {"global_batch": 2}}, 4, {"parallel.cp", "parallel.cp_method"}),
        ({"model": {"experts": 4}}, 4, {"parallel.ep"}),
        ({}, 16, {"parallel.shard_ranks"}),
        ({"data": {"sequence_length": 8_192}, "model": {"experts": 4}}, 1, set()),
    ],
)
def test_axes_are_turned_by_default_where_they_make_sense(
    base: dict[str, Any], ranks: int, turned: set[str]
) -> None:
    assert AXES & set(default_space(runconfig.parse(base), ranks)) == turned


def test_what_does_not_act_stands_at_rest() -> None:
    idle = {"parallel.cp_method": "ulysses", "parallel.shard_ranks": 2, "parallel.ep": 2}
    assert EXPERTS.point(idle | {"parallel.tp": 4}) == EXPERTS.point({"parallel.tp": 4})
    plain = EXPERTS.point({"parallel.zero_stage": 1})
    assert EXPERTS.point({"parallel.zero_stage": 1, "parallel.shard_ranks": 2}) == plain
    assert {point["parallel.ep"] for point in NO_EXPERTS.legal_points} == {1}


def test_all_ranks_are_the_widest_copy() -> None:
    sharded = {"parallel.zero_stage": 3}
    assert EXPERTS.point(sharded | {"parallel.shard_ranks": 4}) == EXPERTS.point(sharded)
    assert EXPERTS.point(sharded | {"parallel.shard_ranks": 2}) != EXPERTS.point(sharded)


def test_context_ranks_share_data() -> None:
    point = DENSE.point({"parallel.cp": 4, "parallel.zero_stage": 3})
    assert (point["parallel.dp"], point["parallel.zero_stage"]) == (1, 3)
    assert DENSE.is_active("parallel.shard_ranks", point)


def test_degrees_are_exponents_and_widths_are_ranked() -> None:
    parameters = {parameter.name: parameter for parameter in Encoding(EXPERTS).parameters}
    assert {"log2_tp", "log2_pp", "log2_cp", "log2_ep"} <= set(parameters)
    name, sharded = "rank of parallel.shard_ranks", {"parallel.zero_stage": 3}
    widths = [EXPERTS.point(sharded | {"parallel.shard_ranks": width}) for width in (2, None)]
    ranked = [(Encoding(EXPERTS).encode(point) or {})[name] for point in widths]
    assert ranked == [0, parameters[name].high] == [0, 2]
    listed = next(parameter for parameter in Encoding(THIRDS).parameters if parameter.name == "layout")
    assert "tp=1 cp=3" not in listed.choices
    assert "tp=1 pp=1 cp=3" in listed.choices


def test_the_yardstick_has_no_axis_but_dp() -> None:
    point, note = EXPERTS.baseline
    assert EXPERTS.label(point) == "dp=4 tp=1 pp=1 cp=1 ep=1 zero=0 micro_batch=1"
    assert note == ""
    base = MIXTURE | {"parallel": {"zero_stage": 3, "shard_ranks": 2, "ep": 2}}
    point = on_four("hybrid", base, {"batch.micro_batch": [1, 2]}).search_space.baseline[0]
    assert (point["parallel.zero_stage"], point["parallel.shard_ranks"]) == (0, None)


def test_the_nearest_to_data_parallel_splits_tokens() -> None:
    base = BASE | {"batch": {"global_batch": 1, "micro_batch": 1}}
    space = on_four("one", base, {"parallel.tp": [1, 2, 4], "parallel.cp": [1, 2, 4]}).search_space
    assert space.label(space.baseline[0]) == "dp=1 tp=1 pp=1 cp=4 zero=0 micro_batch=1"


def test_experience_tries_a_little_of_each_axis() -> None:
    reasons = {why for _, why in first_tries(EXPERTS, 40)}
    assert {
        f"the least {axis} parallelism" for axis in ("tensor", "pipeline", "context", "expert")
    } <= reasons


def test_a_point_by_hand_says_its_axes() -> None:
    point = EXPERTS.complete(
        {"parallel.cp": 2, "parallel.ep": 4, "parallel.zero_stage": 3, "parallel.shard_ranks": 2}
    )
    words = "dp=2 tp=1 pp=1 cp=2 ep=4 zero=3 micro_batch=1 cp_method=ring shard_ranks=2"
    assert EXPERTS.label(point) == words


def test_a_range_of_degrees_is_every_number_in_it() -> None:
    assert THIRDS.by_key["parallel.shard_ranks"].choices == (2, 3, 4, 5, 6)
    knobs = on_four("wide", BASE, {"parallel.cp": {"low": 1, "high": 4}}).search_space
    assert {point["parallel.cp"] for point in knobs.legal_points} == {1, 2, 4}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
@pytest.mark.parametrize("chunks", [1, 2])
def test_schedules_are_one_exactly_when_their_lists_are(ranks: int, micro_batches: int, chunks: int) -> None:
    kinds = [kind for kind in SCHEDULES if chunks in SCHEDULES[kind].chunks]
    drawn = {kind: plan(kind, ranks, chunks, micro_batches) for kind in kinds}
    named = {kind: best_known(kind, kinds, ranks, chunks, micro_batches, 0) for kind in kinds}
    for one in kinds:
        for other in kinds:
            same = (drawn[one].actions, drawn[one].rank_of) == (drawn[other].actions, drawn[other].rank_of)
            assert (named[one] == named[other]) == same


def test_layouts_of_a_base_are_as_before_the_axes_were_knobs() -> None:
    space = on_four("old", BASE | {"parallel": {"cp": 2}}, {"parallel.tp": [1, 2]}).search_space
    assert set(space.legal_points[0]) == {"parallel.dp", "parallel.tp", "parallel.pp"}
