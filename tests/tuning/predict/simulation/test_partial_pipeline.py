"""Partial pipelines by events: the list that ranks execute, with messages along its paths."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.config.run_config import RunConfig
from engine.footprint.footprint import parts_of, plan_of
from engine.schedules import simulate as timing
from engine.schedules.actions import Costs
from tests.support.predict.instant import instant
from tests.support.runs import small
from tuning.predict import forecast_document
from tuning.predict.simulation.event_loop import simulate
from tuning.predict.simulation.simulate import step_of
from tuning.predict.traffic.rank import Pipeline, traffic_of

CONFIG = small(
    parallel__pp=4, model__layers=12, schedule__stage_layers=[2, 4, 4, 2], schedule__skip_share=0.25
)


@pytest.mark.parametrize("order", ["planned", "unplanned"])
def test_its_spans_are_those_of_the_list(order: str) -> None:
    config = CONFIG.with_values({"schedule.skip_order": order})
    chosen, parts = plan_of(config), parts_of(config, plan_of(config))
    costs = [Costs(float(part.layers), 2.0 * part.layers) for part in parts]
    played = simulate(step_of(config, costs), instant(4))
    wanted = timing.simulate(chosen, Costs(1.0, 2.0), [part.layers for part in parts])
    assert played.timeline() == wanted
    assert wanted.seconds == {"planned": 66, "unplanned": 84}[order]


def test_as_many_messages_are_sent_as_paths_have_borders_between_ranks() -> None:
    chosen, pipeline = plan_of(CONFIG), Pipeline.from_config(CONFIG)
    sends = [
        call for rank in range(4) for call in traffic_of(pipeline, rank).calls if call.operation == "send"
    ]
    borders = sum(len(list(pairwise(path))) for path in chosen.paths)
    assert len(sends) == 2 * borders < 2 * 3 * chosen.micro_batches


def test_the_closed_form_says_that_it_leaves_paths_out() -> None:
    (line,) = [line for line in forecast_document.notes(CONFIG) if "skip_share" in line]
    assert "--simulate plays the paths" in line
    assert not [line for line in forecast_document.notes(RunConfig()) if "skip_share" in line]
