"""``auto`` as a knob's value: what it stands for, that equal runs are equal points, and that a study tells what ran."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from engine.config.presets import resolve
from engine.config.run_config import AUTOMATIC, RunConfig, parse
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies import fake
from tests.support.studies.fake import Machine, run_study, study
from tuning.predict.placement.automatic import choose_values, message_seconds, slowest_stage_layers
from tuning.predict.placement.link_traffic import head_layers
from tuning.search.policy import TAKES_BACK
from tuning.space.encoding import Encoding
from tuning.space.first_tries import first_tries
from tuning.spec.study_file import StudyFile
from tuning.spec.study_file import parse as parse_study

LAYERS = "schedule.stage_layers"
PLACEMENT = "parallel.placement"
#: The head of this model costs several of its layers.
WIDE_HEAD = {"preset": "tiny", "layers": 12, "hidden": 64, "heads": 4, "kv_heads": 4, "vocabulary": 8192}
#: Ranks in order put both stages of a pipeline of two across islands, though one of them has room on the island of two.
THREE_ISLANDS = {"hosts": 4, "islands": [1, 2, 1], "rate_mbit": 1000.0, "between_mbit": 50.0}


def config(**sections: Any) -> RunConfig:
    batch = {"global_batch": 16, "micro_batch": 2}
    return parse({"model": WIDE_HEAD, "batch": batch} | sections)


def splits(layers: int, stages: int) -> list[tuple[int, ...]]:
    """All ways to deal layers, one at least to each stage."""
    cuts = itertools.combinations(range(1, layers), stages - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *cut, layers))) for cut in cuts]


def test_every_list_that_a_field_calls_automatic_is_worked_out() -> None:
    asked = config(parallel={"dp": 2, "pp": 2})
    assert choose_values(asked, AUTOMATIC).keys() == set(AUTOMATIC)
    assert {LAYERS, PLACEMENT} < set(AUTOMATIC)


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_no_split_has_a_shorter_slowest_stage(pp: int, recompute: str) -> None:
    asked = config(parallel={"pp": pp}, memory={"recompute": recompute})
    head = head_layers(asked) * (0.75 if recompute == "full" else 1)
    slowest = {split: max(*split[:-1], split[-1] + head) for split in splits(12, pp)}
    found = choose_values(asked, [LAYERS])[LAYERS]
    assert head > 2
    assert found is not None
    assert slowest[tuple(found)] == pytest.approx(min(slowest.values()))
    assert slowest[tuple(found)] < slowest[(12 // pp,) * pp]


@pytest.mark.parametrize(
    "sections",
    [
        {},  # one stage
        {"parallel": {"pp": 2}, "model": WIDE_HEAD | {"vocabulary": 257}},  # the head is not worth a layer
        {"parallel": {"pp": 2}, "schedule": {"kind": "interleaved", "chunks": 2}},  # a rank's stages add up
        {"parallel": {"pp": 2, "tp": 3}},  # breaks a rule
    ],
)
def test_where_nothing_is_better_layers_stay_even(sections: dict[str, Any]) -> None:
    assert choose_values(config(**sections), [LAYERS]) == {LAYERS: None}


def test_ranks_are_placed_where_links_differ() -> None:
    two_stages = {"parallel": {"pp": 2, "dp": 2}}
    found = choose_values(config(**two_stages, lab=THREE_ISLANDS), [PLACEMENT])[PLACEMENT]
    # devices 1 and 2 are the island of two; the stage that crosses islands is the last, whose gradients have most time
    assert found == [1, 2, 0, 3]
    assert choose_values(config(**two_stages), [PLACEMENT]) == {PLACEMENT: None}
    one_island = {"hosts": 4, "rate_mbit": 1000.0}
    assert choose_values(config(**two_stages, lab=one_island), [PLACEMENT]) == {PLACEMENT: None}


def test_ranks_are_placed_where_a_host_has_several() -> None:
    """Long activations of a small model: both stages of a pipeline share a host, which in order data ranks do."""
    small = {"preset": "tiny", "layers": 4, "hidden": 32, "heads": 4, "kv_heads": 4, "vocabulary": 257}
    hosts = {"hosts": 2, "rate_mbit": 100.0}
    asked = config(model=small, data={"sequence_length": 4096}, parallel={"pp": 2, "dp": 2}, lab=hosts)
    found = choose_values(asked, [PLACEMENT])
    assert found == {PLACEMENT: [0, 2, 1, 3]}
    told = [message_seconds(one) for one in (asked.with_values(found), asked)]
    assert told[0] is not None and told[1] is not None and told[0] < told[1] / 2
    assert choose_values(asked.with_values({"lab.rate_mbit": None}), [PLACEMENT]) == {PLACEMENT: None}


def automatic_study(**changes: Any) -> StudyFile:
    base = {
        "model": WIDE_HEAD,
        "batch": {"global_batch": 16, "micro_batch": 2},
        "train": {"steps": 24, "warmup": 4},
    }
    space = {"parallel.pp": [1, 2], LAYERS: [None, "auto"]}
    changes = {"trials": 3} | changes
    return study(base=base | changes.pop("more", {}), space=space | changes.pop("space", {}), **changes)


def test_equal_runs_are_equal_points() -> None:
    """``auto`` is no point of its own where it changes nothing."""
    plain = {"model": WIDE_HEAD | {"vocabulary": 257}}
    points = automatic_study(more=plain).search_space.legal_points
    assert [point[LAYERS] for point in points] == [None, None]
    points = automatic_study().search_space.legal_points
    assert [(point["parallel.pp"], point[LAYERS]) for point in points] == [(1, None), (2, None), (2, "auto")]
    placed = automatic_study(space={PLACEMENT: [None, "auto"]}, more={"lab": THREE_ISLANDS}).search_space
    orders = {(point["parallel.pp"], point[PLACEMENT]) for point in placed.legal_points}
    assert orders == {(1, None), (2, None), (2, "auto")}


def test_a_study_whose_only_value_is_auto_has_points() -> None:
    """It stays at that where it changes nothing."""
    space = automatic_study(
        space={LAYERS: ["auto"]}, more={"model": WIDE_HEAD | {"vocabulary": 257}}
    ).search_space
    (point,) = [point for point in space.legal_points if point["parallel.pp"] == 2]
    assert point[LAYERS] == "auto"
    assert space.config(point).schedule.stage_layers is None
    assert space.why_outside(point) is None


def test_a_study_runs_lists_and_tells_which(tmp_path: Path) -> None:
    found = run_study(automatic_study(), tmp_path / "studies" / "first", Machine())
    (dealt,) = [row for row in found["trials"] if row["config"][LAYERS] == "auto"]
    assert dealt["resolved"] == {LAYERS: choose_values(config(parallel={"pp": 2, "dp": 2}), [LAYERS])[LAYERS]}
    assert f"stage_layers=auto({','.join(map(str, dealt['resolved'][LAYERS]))})" in dealt["label"]
    assert [row["resolved"] for row in found["trials"] if row is not dealt] == [{}, {}]


def test_a_point_by_hand_may_ask_for_it() -> None:
    space = automatic_study().search_space
    point = space.complete({"parallel.pp": 2, LAYERS: "auto"})
    assert point[LAYERS] == "auto"
    assert space.config(point).schedule.stage_layers is not None


#: Two islands of two hosts.
ISLANDS = {"hosts": 4, "islands": 2, "rate_mbit": 400.0, "between_mbit": 100.0}
SHUFFLED = [0, 2, 1, 3]
TOO_LARGE = RunOutcome(Ending.OOM, "too large")


@pytest.mark.parametrize(("order", "crossings"), [(None, 1), (SHUFFLED, 2)])
def test_a_ring_over_islands_takes_its_bytes_over_the_bridge(order: list[int] | None, crossings: int) -> None:
    """Four ranks pass quarters six times; in order one of an island's two goes over its link, shuffled both do."""
    asked = config(parallel={"dp": 4, "placement": order}, lab=ISLANDS)
    quarter = resolve(asked.model).parameters * 4 / 4
    rate = 100e6 / 8 * 1448 / 1514
    assert message_seconds(asked) == pytest.approx(6 * crossings * quarter / rate, rel=0.02)


def test_what_messages_take_is_not_told_where_links_are_alike() -> None:
    assert message_seconds(config(parallel={"dp": 4})) is None
    assert message_seconds(config(parallel={"dp": 4}, lab={"hosts": 4, "rate_mbit": 100.0})) is None


def test_the_longest_stage_counts_its_head() -> None:
    asked = config(parallel={"pp": 2})
    shape = resolve(asked.model)
    attention = 2 * asked.data.sequence_length * shape.hidden
    head = shape.vocabulary * shape.hidden / (shape.layer_parameters + attention)
    assert slowest_stage_layers(asked) == pytest.approx(6 + head)
    assert slowest_stage_layers(asked.with_values({LAYERS: [8, 4]})) == pytest.approx(max(8, 4 + head))


def shuffled_study(**changes: Any) -> StudyFile:
    """A base whose ranks stand in an order of their own, with a limit for activations."""
    base = {"parallel": {"placement": SHUFFLED}, "lab": ISLANDS, "memory": {"budget_gib": 1.0}}
    space = {PLACEMENT: [SHUFFLED, "auto"], LAYERS: [None, "auto"]}
    return automatic_study(more=base, space=space | changes.pop("space", {}), **changes)


def test_the_baseline_stands_where_the_base_does_and_keeps_its_limit() -> None:
    space = shuffled_study().search_space
    point, note = space.baseline
    plain = space.config(point)
    assert (plain.parallel.dp, plain.parallel.placement, plain.memory.budget_gib) == (4, SHUFFLED, 1.0)
    assert (note, space.why_outside(point)) == ("", None)


def test_the_list_of_the_base_is_a_value_and_no_other_is() -> None:
    space = shuffled_study().search_space
    orders = {(point["parallel.pp"], str(point[PLACEMENT])) for point in space.legal_points}
    assert orders == {(pp, order) for pp in (1, 2) for order in ("base", "auto")}
    (best,) = {str(space.config(point).parallel.placement) for point in space.legal_points
               if point[PLACEMENT] == "auto"}  # fmt: skip
    assert best == "None", "whole stages on an island"
    with pytest.raises(InputError, match="put it there"):
        automatic_study(more={"lab": ISLANDS}, space={PLACEMENT: [SHUFFLED, "auto"]})


def test_auto_that_comes_to_the_list_of_the_base_is_that_list() -> None:
    base = {"parallel": {"placement": [1, 2, 0, 3]}, "lab": THREE_ISLANDS}
    space = automatic_study(more=base, space={PLACEMENT: [[1, 2, 0, 3], "auto"]}).search_space
    of_two = [point[PLACEMENT] for point in space.legal_points if point["parallel.pp"] == 2]
    assert of_two == ["base"] * len(of_two)


def test_a_sampler_and_people_name_the_list_of_the_base(tmp_path: Path) -> None:
    file = shuffled_study()
    encoding = Encoding(file.search_space)
    (parameter,) = [one for one in encoding.parameters if one.name == PLACEMENT]
    assert parameter.choices == ("base", "auto")
    for point in encoding.space.legal_points:
        drawn = encoding.encode(point)
        assert drawn is not None and encoding.decode(drawn) == point
    assert parse_study(file.resolve()).search_space.legal_points == file.search_space.legal_points
    asked = encoding.space.complete({PLACEMENT: "base", "parallel.pp": 2})
    assert encoding.space.config(asked).parallel.placement == SHUFFLED


def test_a_study_of_it_tells_the_lists_and_what_mattered(tmp_path: Path) -> None:
    file = shuffled_study(space={"batch.micro_batch": [1, 2]}, trials=9)
    found = run_study(file, tmp_path / "studies" / "first", Machine())
    for row in found["trials"]:
        expected = SHUFFLED if row["config"][PLACEMENT] == "base" else None
        assert row["resolved"][PLACEMENT] == expected
    assert len(found["trials"]) >= 8 and found["importance"]["values"], "from eight trials on"


@pytest.mark.parametrize("seed", range(3))
def test_the_best_so_far_is_followed_by_itself_worked_out(seed: int, tmp_path: Path) -> None:
    """Whoever leads with the base's order or an even cut meets its twin next, unless that ran before. The largest
    micro-batch, which is tried first, does not fit.
    """
    file = shuffled_study(
        space={"batch.micro_batch": [1, 2, 4]}, trials=9, seed=seed, sampler="random", confirm_repeats=0
    )
    machine = Machine(noise=0.0, by_config=lambda one: TOO_LARGE if one.batch.micro_batch == 4 else None)
    rows = run_study(file, tmp_path / "studies" / "first", machine)["trials"]
    first = {why for _, why in first_tries(file.search_space, file.trials)}
    twins = 0
    for place in [place for place in range(len(rows) - 1) if rows[place + 1]["why"] not in first]:
        leader = max(rows[: place + 1], key=lambda row: row["value"] or 0.0)
        twin = file.search_space.point(leader["config"] | {PLACEMENT: "auto", LAYERS: "auto"})
        assert twin in [row["config"] for row in rows[: place + 2]], rows[place]["label"]
        twins += twin == rows[place + 1]["config"]
    assert twins


def test_what_was_worked_out_for_the_best_is_taken_back_before_the_trials_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here an even cut is faster than the one that formulas choose: it is found, with all else the same, unless the
    sampler has been there.
    """

    def seconds(config: RunConfig) -> float:
        even = config.schedule.stage_layers is None
        return 1.0 if config.parallel.pp == 1 else 0.5 if even else 0.6

    monkeypatch.setattr(fake, "seconds", seconds)
    trials, taken_back = 14, list[dict[str, Any]]()
    for seed in range(3):
        space = {"batch.micro_batch": [1, 2, 4]}
        file = shuffled_study(space=space, trials=trials, seed=seed, sampler="random", confirm_repeats=0)
        found = run_study(file, tmp_path / f"{seed}" / "studies" / "first", Machine(noise=0.0))
        best = found["best"]["config"]
        assert best["parallel.pp"] > 1 and best[LAYERS] is None
        here = [row for row in found["trials"] if row["why"].endswith("not as worked out")]
        assert all(row["number"] >= (1 - TAKES_BACK) * trials - 1 for row in here)
        taken_back += here
    assert None in [row["config"][LAYERS] for row in taken_back]


def test_what_can_be_worked_out_is_tried_first() -> None:
    space = shuffled_study().search_space
    labels = [space.label(point) for point, _ in first_tries(space, 12)]
    assert "placement=auto(in order)" in labels[0]
    assert "pp=2" in labels[1] and "stage_layers=auto(8,4) placement=auto(in order)" in labels[1]
    assert "placement" not in space.label(space.baseline[0]), "as in the base"
