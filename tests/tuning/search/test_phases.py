"""Phases of a search: which knobs each one turns, that others stay put, and when the next one begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.knobs.catalogue import KNOBS
from engine.run.outcome import Ending, RunOutcome
from tests.support.studies.fake import Machine, run_study, study
from tests.tuning.report.test_result import lines
from tuning.execution.simulated_machine import Simulation
from tuning.predict.target import parse_target
from tuning.report.result import result
from tuning.search import phases
from tuning.search.prediction_prior import PredictionPrior
from tuning.space.knobs import default_space
from tuning.space.space import Space
from tuning.spec.study_file import StudyFile
from tuning.storage.state import StudyState, fold

BASE: dict[str, Any] = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": 24, "warmup": 4}}
#: Of a study of speed; only one of the time to a loss turns what alters learning.
GROUPS = [name for name in phases.SHARES if name != "learning"]


def usual(**changes: Any) -> StudyFile:
    return study(**{"trials": 21, "space": None, "confirm_repeats": 0, "base": BASE} | changes)


def turned(found: dict[str, Any]) -> list[str]:
    return [row["turned"] for row in found["trials"]]


def test_every_knob_belongs_to_one_group() -> None:
    groups = {key: phases.group_of(key) for key, facts in KNOBS.items() if facts.title}
    assert set(groups.values()) == set(phases.SHARES)
    assert {key for key, group in groups.items() if group == "lossy"} == {
        key
        for key, facts in KNOBS.items()
        if facts.title and "loss" in facts.changes and not facts.alters_learning
    }
    assert groups["batch.global_batch"] == groups["train.learning_rate"] == "learning"
    assert groups["parallel.placement"] == groups["schedule.kind"] == groups["batch.micro_batch"] == "layout"
    assert groups["overlap.bucket_mb"] == groups["memory.offload"] == "memory and overlap"


@pytest.fixture(scope="module")
def usual_study(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of one study with all phases; not to be changed."""
    return run_study(usual(), tmp_path_factory.mktemp("studies") / "first", Machine())


def test_a_phase_turns_its_own_knobs_alone(usual_study: dict[str, Any]) -> None:
    """Those of later phases stand as in the baseline, those of earlier ones as in one of the two best layouts by then.
    What comes after all phases may be anything.
    """
    file, found = usual(), usual_study
    rows, baseline = found["trials"], found["trials"][0]["config"]
    order, first = [*GROUPS, ""], phases.phases(StudyState(), file)[0].keys
    assert [row["turned"] for row in rows[1:]] == sorted(turned(found)[1:], key=order.index)
    for number, row in enumerate(rows[1:], 1):
        before = sorted(rows[:number], key=lambda one: one["value"], reverse=True)
        layouts: dict[str, Any] = {}
        for one in before:
            if one["config"]["compression.method"] == "none":
                layouts.setdefault(repr([one["config"][key] for key in first]), one["config"])
        exact = list(layouts.values())
        for key, value in row["config"].items():
            active = key in file.search_space.by_key and file.search_space.is_active(key, row["config"])
            if not active or not row["turned"]:
                continue
            group, now = order.index(phases.group_of(key)), order.index(row["turned"])
            allowed = [baseline[key]] if group > now else [point[key] for point in exact[: phases.LEADERS]]
            assert group == now or value in allowed, (number, key, value)


def test_each_has_its_share_of_the_trials(usual_study: dict[str, Any]) -> None:
    found = usual_study
    counts = [turned(found).count(name) for name in GROUPS]
    assert counts[0] == 8 and 0 < counts[1] <= 4 and counts[2] <= 3  # of 20 beside the baseline
    assert turned(found)[-5:] == [""] * 5
    assert [(row["name"], len(row["trials"])) for row in found["phases"]] == list(
        zip(GROUPS, counts, strict=True)
    )


def test_when_nothing_is_left_in_a_phase_the_next_begins_and_the_whole_space_comes_last(
    tmp_path: Path,
) -> None:
    space = {"batch.micro_batch": [1, 2, 4], "memory.recompute": ["none", "full"]}
    found = run_study(usual(space=space, phases="always"), tmp_path / "studies" / "first", Machine())
    assert len(found["trials"]) == 6  # all that there are
    assert turned(found)[:3] == ["", "layout", "layout"]
    assert set(turned(found)[3:]) == {"memory and overlap", ""}


def test_nothing_is_held_while_nothing_runs(tmp_path: Path) -> None:
    """Whoever looks for what fits may turn everything."""
    out_of_memory = RunOutcome(Ending.OOM, "rank 0 ran out of memory", 0, "forward")
    machine = Machine(by_config=lambda config: None if config.memory.recompute == "full" else out_of_memory)
    found = run_study(usual(), tmp_path / "studies" / "first", machine)
    fits = next(row for row in found["trials"] if row["value"] is not None)
    assert fits["turned"] in ("", "layout") and fits["config"]["memory.recompute"] == "full"
    assert found["best"] is not None
    (layout, *_) = found["phases"]
    assert (layout["name"], "memory.recompute" in layout["knobs"]) == ("layout", True)


def test_trials_of_a_phase_that_was_given_up_are_still_told() -> None:
    """Something ran out of memory after memory and overlap had begun: they go with the layout from there on."""
    file = usual()
    point = file.search_space.baseline[0]
    told = lines(0, point, 1000.0) + lines(1, point, None, outcome="oom")
    told[2]["turned"] = "memory and overlap"
    rows = {row.name: row for row in result(fold(told), file).phases}
    assert rows["memory and overlap"].trials == [1] and not rows["memory and overlap"].knobs
    assert "memory.recompute" in rows["layout"].knobs


def test_the_usual_space_has_phases_and_no_other_unless_it_asks() -> None:
    file = usual()
    given = usual(space=default_space(file.config, file.ranks))
    assert file.has_phases and given.has_phases and given.left_alone == file.left_alone
    assert not usual(phases="never").has_phases
    other = usual(space={"parallel.tp": [1, 2], "memory.recompute": ["none", "full"]})
    assert not other.has_phases and not other.left_alone
    assert usual(space={"parallel.tp": [1, 2], "memory.recompute": ["none"]}, phases="always").has_phases


def test_a_study_of_the_time_to_a_loss_turns_learning_after_the_layout() -> None:
    base = BASE | {"train": BASE["train"] | {"validate_every": 8}}
    known = phases.phases(StudyState(), usual(objective={"time_to_loss": 3.2}, base=base))
    assert [phase.name for phase in known] == list(phases.SHARES)
    assert set(known[1].keys) == {"batch.global_batch", "train.learning_rate"}


def test_what_is_left_alone_has_a_reason() -> None:
    file = usual()
    left = file.left_alone
    assert not left.keys() & {knob.key for knob in file.knobs}
    assert {"parallel.cp", "outer.method", "overlap.delay", "train.learning_rate", "compile"} <= left.keys()
    assert all(left.values())
    assert "time to a loss" in left["train.learning_rate"]


def test_limits_by_command_hold_inside_a_phase(tmp_path: Path) -> None:
    file = usual()
    stage = {"parallel.zero_stage": [0]}
    lines_ = lines(0, file.search_space.baseline[0], 1000.0)
    command = {"at_unix": 3.0, "kind": "command", "id": "1", "command": "pin", "arguments": {"parallel.zero_stage": 0},
               "by": "test", "accepted": True, "reason": "", "changes": {"limits": stage}}  # fmt: skip
    masks = [mask for _, mask in phases.open_now(fold([*lines_, command]), file)]
    assert len(masks) == 1 + len(GROUPS)
    assert all(mask.document()["parallel.zero_stage"] == [0] for mask in masks)
    assert masks[-1].document() == stage


def test_a_budget_of_time_ends_phases_too() -> None:
    file = usual(budget_seconds=60.0)
    point = file.search_space.baseline[0]
    assert names(fold(lines(0, point, 1000.0)), file) == [*GROUPS, ""]
    late = fold([line for number in range(4) for line in lines(number, point, 1000.0, seconds=10.0)])
    assert names(late, file) == ["lossy", ""]


def names(state: StudyState, file: StudyFile) -> list[str]:
    return [name for name, _ in phases.open_now(state, file)]


def test_predictions_order_trials_inside_a_phase(tmp_path: Path) -> None:
    """They propose layouts first; of lossy knobs they know nothing, so there the sampler goes on."""
    base = {"model": {"preset": "1b"}, "data": {"sequence_length": 1024}, "precision": "bf16",
            "batch": {"global_batch": 16, "micro_batch": 1}, "train": {"steps": 8, "warmup": 2}}  # fmt: skip
    file = usual(name="foreseen", ranks=8, base=base, trials=13)

    def make_prior(space: Space) -> PredictionPrior:
        return PredictionPrior(space, parse_target("selene", None, 8), 0)

    found = run_study(
        file, tmp_path / "studies" / "foreseen", Simulation(tmp_path, "selene"), None, make_prior
    )
    by_phase: dict[str, set[str]] = {}
    for row in found["trials"]:
        by_phase.setdefault(row["turned"], set()).add(row["source"])
    assert "prior" in by_phase["layout"]
    assert by_phase.get("lossy", {"sampler"}) == {"sampler"}
    assert len(found["trials"]) == 13
