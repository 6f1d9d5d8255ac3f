"""Masks: what is left of a space, what is refused, and what commands in a journal amount to."""

from random import Random
from typing import Any

import pytest

from engine.config.errors import InputError
from tests.support.studies.fake import study
from tuning.sampling.optuna_study import OptunaStudy
from tuning.search import policy
from tuning.space.encoding import Encoding
from tuning.space.points import point_key
from tuning.storage import effective_config
from tuning.storage.effective_config import Mask, narrow_space
from tuning.storage.state import StudyState, fold

SPACE = study().search_space
RATIOS = study(
    space={
        "compression.method": ["none", "topk"],
        "compression.ratio": {"low": 0.01, "high": 0.25, "log": True},
    }
).search_space


def masked(space: Any = SPACE, **given: Any) -> Mask:
    limits = [effective_config.limit(space, key.replace("__", "."), value) for key, value in given.items()]
    return Mask(tuple(limit for limit in limits if limit))


@pytest.mark.parametrize(
    ("given", "left"),
    [(2, (2,)), ("1,2", (1, 2)), ([4, 1], (4, 1)), ("1..2", (1, 2)), ("2..99", (2, 4)), ("all", None)],
)
def test_how_a_limit_is_written(given: Any, left: tuple[int, ...] | None) -> None:
    if given == "2..99":
        with pytest.raises(InputError, match=r"was not declared .*opens a successor"):
            effective_config.limit(SPACE, "batch.micro_batch", given)
        given = "2..4"
    found = effective_config.limit(SPACE, "batch.micro_batch", given)
    assert (found and found.choices) == left


def test_a_range_is_narrowed_to_a_range_or_to_values() -> None:
    part = effective_config.limit(RATIOS, "compression.ratio", "0.02..0.1")
    assert part is not None
    assert (part.low, part.high, part.log) == (0.02, 0.1, True)
    values = effective_config.limit(RATIOS, "compression.ratio", 0.05)
    assert values is not None
    assert values.choices == (0.05,)
    for wrong in ("0.1..0.02", "0.001..0.1"):
        with pytest.raises(InputError):
            effective_config.limit(RATIOS, "compression.ratio", wrong)


def test_what_is_not_turned_is_named() -> None:
    with pytest.raises(InputError, match=r"is not turned by this study; known: parallel.dp, parallel.tp"):
        effective_config.limit(SPACE, "overlap.bucket_mb", 25)


def test_legal_points_of_a_mask_are_those_of_the_space_inside_it() -> None:
    for left in (
        masked(parallel__tp=2),
        masked(parallel__pp="1,2", memory__recompute="full"),
        masked(parallel__dp=4),
    ):
        part = narrow_space(SPACE, left)
        wanted = {point_key(point) for point in SPACE.legal_points if left.allows(point, SPACE)}
        assert {point_key(point) for point in part.legal_points} == wanted
        assert wanted
    assert narrow_space(SPACE, Mask()) is SPACE


def test_a_knob_that_does_not_act_has_no_say() -> None:
    left = masked(RATIOS, compression__ratio=0.05)
    points = narrow_space(RATIOS, left).legal_points
    methods = {point["compression.method"] for point in points}
    assert methods == {"none", "topk"}
    assert {point["compression.ratio"] for point in points if point["compression.method"] == "topk"} == {0.05}


@pytest.mark.parametrize("name", ["tpe", "random", "nsga2"])
def test_every_draw_keeps_to_the_mask_until_nothing_is_left(name: Any) -> None:
    left = masked(parallel__tp=2, memory__recompute="none")
    part, visited, count = narrow_space(SPACE, left), set[str](), 0
    index = OptunaStudy(Encoding(SPACE), 0, 3, name=name)
    while (draw := index.ask(visited, within=part)) is not None:
        assert left.allows(draw.point, SPACE)
        visited.add(point_key(draw.point))
        count += 1
    assert count == len(part.legal_points) > 3


def test_a_pinned_value_inside_a_range_is_drawn_exactly() -> None:
    part = narrow_space(RATIOS, masked(RATIOS, compression__ratio=0.05, compression__method="topk"))
    point = part.random_point(Random(0), ())
    assert point is not None
    assert point["compression.ratio"] == 0.05


def test_a_mask_must_leave_something_new() -> None:
    with pytest.raises(InputError, match="leaves no legal point"):
        effective_config.check_leaves_points(SPACE, masked(parallel__tp=4, parallel__pp=4), set())
    left = masked(parallel__tp=4, parallel__pp=1)
    effective_config.check_leaves_points(SPACE, left, set())
    everything = {point_key(point) for point in narrow_space(SPACE, left).legal_points}
    with pytest.raises(InputError, match="leaves no point that was not measured yet"):
        effective_config.check_leaves_points(SPACE, left, everything)


def command(name: str, changes: dict[str, Any] | None, accepted: bool = True) -> dict[str, Any]:
    return {"at_unix": 1.0, "kind": "command", "id": name, "command": "narrow", "arguments": {}, "by": "test",
            "accepted": accepted, "reason": "", "changes": changes}  # fmt: skip


def test_a_journal_folds_into_its_mask() -> None:
    first = command("a", {"limits": {"parallel.tp": [1, 2], "batch.micro_batch": [4]}})
    state = fold([first, command("b", {"limits": {"parallel.tp": None}}), first])
    assert effective_config.build_mask(state, SPACE).document() == {"batch.micro_batch": [4]}
    assert effective_config.build_mask(fold([command("a", None, accepted=False)]), SPACE) == Mask()
    assert effective_config.build_mask(StudyState(limits={"gone.knob": [1]}), SPACE) == Mask()


def test_first_tries_outside_the_mask_are_left_out() -> None:
    file = study(trials=12)
    plain = file.search_space.baseline[0]
    proposal = {"at_unix": 1.0, "kind": "proposal", "number": 0, "config": plain, "source": "baseline"}
    tell = {"at_unix": 2.0, "kind": "tell", "number": 0, "outcome": "completed", "value": 1.0}
    open_now = policy.next_step(fold([proposal, tell]), file, exhausted=False)
    assert open_now.why == "the largest micro-batch that divides"
    held = fold([proposal, tell, command("a", {"limits": {"parallel.tp": [2], "parallel.pp": [1]}})])
    step = policy.next_step(held, file, exhausted=False)
    assert step.point is not None
    assert (step.point["parallel.tp"], step.why) == (2, "the least tensor parallelism")
