"""A schedule is one entry and its generator, in any file: a made-up one is legal, offered, compared, simulated,
counted, told from the others, chosen on the page, shown, checked and trained, with any number of stages a rank.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import problems
from engine.footprint.footprint import largest
from engine.lifecycle import setting_of
from engine.rank.worker import train_in_group
from engine.run import run_folder
from engine.schedules.actions import Action, Costs, Size, backward, forward
from engine.schedules.algorithms import NoFormError, alternate
from engine.schedules.closed_forms import idle_seconds, peak_in_flight
from engine.schedules.registry import ONE, SCHEDULES, TWO, ScheduleFacts, plan
from engine.schedules.simulate import simulate
from engine.schedules.stage_placement import StagePlacement
from profilers.records.reader import RunRecords
from profilers.records.schema import StepSample
from tests import reference
from tests.support.approximate import about
from tests.support.engine.schedule_checker import problems as problems_of_plan
from tests.support.ranks import on_ranks
from tests.support.runs import small
from tuning.predict import target
from tuning.predict.forecast import list_neighbours
from tuning.predict.model.cases import rank_layers
from tuning.predict.placement.automatic import choose_values
from tuning.predict.placement.link_traffic import volumes_of
from tuning.predict.plan import plans
from tuning.space.knobs import offered_space, parse_space
from tuning.space.points import best_known
from tuning.space.space import Space
from workbench.cli import run
from workbench.pages.widgets.forms import field
from workbench.selftest.check_context import CheckContext
from workbench.selftest.checks import layouts, one_rank
from workbench.text.plan import layout_columns

NAME, THREE, PLACED = "last_first", "in_threes", "up_and_down"
LAST = list(SCHEDULES)[-1]


def last_first(rank: int, size: Size) -> list[Action]:
    """GPipe whose backwards come in the order of the forwards turned round."""
    micro_batches = range(size.micro_batches)
    return [forward(m, rank) for m in micro_batches] + [backward(m, rank) for m in reversed(micro_batches)]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, NAME, ScheduleFacts(last_first, "0000.00000", ONE, offered=True))


def in_threes(rank: int, size: Size) -> list[Action]:
    """A rank's three chunks one after the other, with all micro-batches each, and then all the way back."""
    turns = [
        (m, rank + chunk * size.ranks) for chunk in range(size.chunks) for m in range(size.micro_batches)
    ]
    return [forward(*turn) for turn in turns] + [backward(*turn) for turn in reversed(turns)]


#: From the last rank up to the first, and down again: 2 1 0 0 1 2.
UP_AND_DOWN = StagePlacement(
    "up and down",
    lambda number, ranks: tuple(range(ranks)) if number % 2 else tuple(reversed(range(ranks))),
    wraps=False,
)


def up_and_down(rank: int, size: Size) -> list[Action]:
    """A rank's two stages one after the other, with all micro-batches each, and then all the way back."""
    own = [stage for stage, owner in enumerate(UP_AND_DOWN.rank_of_stages(size)) if owner == rank]
    turns = [(m, stage) for stage in own for m in range(size.micro_batches)]
    return [forward(*turn) for turn in turns] + [backward(*turn) for turn in reversed(turns)]


PLACED_FACTS = ScheduleFacts(up_and_down, "0000.00000", TWO, placement=UP_AND_DOWN)


@pytest.fixture
def with_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, PLACED, PLACED_FACTS)


@pytest.fixture
def with_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, THREE, ScheduleFacts(in_threes, "0000.00000", range(3, 4), offered=True))


def config(**values: object) -> RunConfig:
    return small(
        **{
            "parallel__pp": 2,
            "schedule__kind": NAME,
            "batch__global_batch": 8,
            "batch__micro_batch": 2,
            **values,
        }
    )


def test_without_its_entry_it_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InputError, match=rf"schedule\.kind.*'1f1b'.* or '{LAST}'"):
        parse({"schedule": {"kind": NAME}})


@pytest.mark.usefixtures("made_up")
def test_it_is_legal_offered_and_on_the_form() -> None:
    assert next(problems(config()), None) is None
    assert next(problems(config(schedule__chunks=2))).field == "schedule.chunks"
    assert NAME in offered_space(config(), 4)["schedule.kind"]
    assert NAME in field(RunConfig, "schedule.kind").options


@pytest.mark.usefixtures("with_three")
def test_what_shows_and_checks_every_schedule_asks_how_many_stages_a_rank_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert problems_of_plan(plan(THREE, 2, 3, 4)) == []
    assert run(["schedule", THREE, "--ranks", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chunks"] == 3
    assert reference.picture(THREE)
    asked = [CheckContext("cpu", ranks, tmp_path).config(layouts.SIZES | values)
             for ranks in (2, 8) for values in layouts.pipeline(ranks).values()]  # fmt: skip
    assert {one.schedule.chunks for one in asked if one.schedule.kind == THREE} == {3}
    assert one_rank.stages()[THREE] == {"schedule.kind": THREE, "schedule.chunks": 3}
    assert [str(problem) for one in asked for problem in problems(one)] == []
    base = config(schedule__kind="1f1b", model__layers=8)
    turned = parse_space({"schedule.kind": [THREE, "1f1b"], "schedule.chunks": [1, 2]}, base)
    space = Space(base, 2, turned, choose_values, False)
    point = space.point({"schedule.kind": THREE})
    assert (point["schedule.chunks"], space.problem(point), space.why_outside(point)) == (3, None, None)


@pytest.mark.parametrize(("legal", "shown", "words", "problem"), [
    (range(2, 5), 2, "2 to 4", "must be at least 2 and at most 4 with this schedule; nearest legal: 4"),
    (range(3, 4), 3, "3", "must be exactly 3 with this schedule; nearest legal: 3"),
])  # fmt: skip
def test_an_entry_says_how_many_stages_a_rank_can_have(
    legal: range, shown: int, words: str, problem: str
) -> None:
    kind = ScheduleFacts(in_threes, "0000.00000", legal)
    assert (kind.shown_chunks, kind.chunks_words, kind.chunks_problem(9)) == (shown, words, problem)


def early(rank: int, size: Size) -> list[Action]:
    """1F1B with twice the forwards before the first backward (arXiv 2211.05322): another list from m = 3 on."""
    forwards = [forward(m, rank) for m in range(size.micro_batches)]
    backwards = [backward(m, rank) for m in range(size.micro_batches)]
    return alternate(forwards, backwards, warm_up=2 * (size.ranks - rank - 1))


def test_a_study_tries_it_wherever_its_list_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULES, "early", ScheduleFacts(early, "2211.05322", ONE, offered=True))
    assert plan("early", 2, 1, 2).actions == plan("1f1b", 2, 1, 2).actions
    kinds = ("1f1b", "gpipe", "early")
    named = [best_known("early", kinds, 2, 1, m, 0) for m in (1, 2, 3, 8)]
    assert named == ["1f1b", "1f1b", "early", "early"]


@pytest.mark.parametrize("compared", [False, True])
def test_a_compared_one_is_among_alternatives_and_in_plans(
    compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is believed to leave no bubble, so it is told wherever there are pipeline stages and it fits."""
    kind = ScheduleFacts(last_first, "0000.00000", ONE, idle=lambda size, costs: 0.0, compared=compared)
    monkeypatch.setitem(SCHEDULES, NAME, kind)
    near = list_neighbours(config(schedule__kind="1f1b"))
    assert ({"schedule.kind": NAME} in [one.values for one in near]) == compared

    space = {"model": {"preset": "1b"}, "batch": {"global_batch": 64}, "precision": "bf16"}
    found = plans.plan(parse(space), target.parse_target("dgx-a100", 2), top=40)
    told = [
        row.config for row in found.best if row.config.parallel.pp > 1 and row.config.schedule.chunks == 1
    ]
    assert told
    assert {one.schedule.kind for one in told} == ({NAME} if compared else {"1f1b"})
    seconds = [row.step_seconds.median for row in found.best]
    assert seconds == sorted(seconds)
    assert all(row.fits for row in found.best)
    titles = [column.title for column in layout_columns(found.best, None)]
    assert ("schedule" in titles) == compared


@pytest.mark.usefixtures("made_up")
def test_without_formulas_its_list_is_simulated_and_counted() -> None:
    costs = Costs(0.01, 0.02)
    assert problems_of_plan(plan(NAME, 2, 1, 4)) == []
    with pytest.raises(NoFormError):
        idle_seconds(NAME, 2, 1, 4, costs)
    assert peak_in_flight(NAME, 2, 1, 4) == (4, 4)
    assert largest(config()).total_bytes > 0
    pipeline = setting_of(config()).pipeline
    assert pipeline is not None
    assert pipeline.formula == "the simulation of its list"
    whole = simulate(plan(NAME, 2, 1, 4), costs)
    assert pipeline.idle_seconds(4, 0.01, 0.02) == about(whole.seconds - 4 * 0.03)


@pytest.mark.usefixtures("with_placement")
def test_a_placement_of_its_own_is_all_that_is_said_of_where_stages_are() -> None:
    assert problems_of_plan(plan(PLACED, 3, 2, 4)) == []
    asked = config(schedule__kind=PLACED, schedule__chunks=2, model__layers=5)
    assert next(problems(asked), None) is None
    assert rank_layers(asked) == [2, 3], "the longer stage is the first, on the last rank"
    assert volumes_of(asked).wrap.calls == 0


def trained(rank: int, folder: Path, kind: str, chunks: int) -> None:
    SCHEDULES[NAME] = ScheduleFacts(last_first, "0000.00000", ONE)
    SCHEDULES[PLACED] = PLACED_FACTS
    asked = config(schedule__kind=kind, schedule__chunks=chunks, model__layers=4)
    train_in_group(rank, asked, folder, torch.device("cpu"), None)


def losses(folder: Path) -> list[float | None]:
    steps: list[StepSample] = RunRecords(folder / run_folder.RECORDS).table(1, "step").rows()  # type: ignore[assignment]
    return [step.loss for step in steps]


@pytest.mark.usefixtures("made_up", "with_placement")
def test_it_trains_as_gpipe_does(tmp_path: Path) -> None:
    found = {}
    for kind, chunks in (("gpipe", 1), (NAME, 1), (PLACED, 2)):
        asked = config(schedule__kind=kind, schedule__chunks=chunks, model__layers=4)
        folder = run_folder.create(tmp_path / kind, asked, {})
        on_ranks(2, trained, folder, kind, chunks)
        found[kind] = losses(folder)
    assert len(found[NAME]) == config().train.steps
    assert found[NAME] == pytest.approx(found["gpipe"], abs=1e-6)
    assert found[PLACED] == pytest.approx(found["gpipe"], abs=1e-6)
