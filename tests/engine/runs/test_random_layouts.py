"""Layouts that nobody thought of: drawn by hypothesis over every setting that must not change a loss."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.config.validation.rules import problems
from engine.schedules.registry import SCHEDULES
from engine.session import Session
from tests.support.runs import execute, small

LOSS_TOLERANCE, NORM_TOLERANCE, MOST_RANKS = 1e-5, 1e-4, 6
BASE: dict[str, Any] = {
    "model__layers": 6,
    "model__hidden": 48,
    "model__heads": 12,
    "model__kv_heads": 6,
    "model__ffn_hidden": 96,
    "batch__global_batch": 12,
    "data__sequence_length": 48,
    "train__validation_batches": 0,
}
DEGREE = st.sampled_from((1, 1, 2, 3))


@st.composite
def configurations(draw: st.DrawFn) -> RunConfig:
    """Any legal configuration of at most six ranks."""
    values = {
        "parallel__dp": draw(DEGREE),
        "parallel__tp": draw(DEGREE),
        "parallel__cp": draw(DEGREE),
        "parallel__pp": draw(DEGREE),
        "parallel__cp_method": draw(st.sampled_from(("ring", "ulysses"))),
        "parallel__zero_stage": draw(st.integers(0, 3)),
        "batch__micro_batch": draw(st.sampled_from((1, 2, 4))),
        "schedule__kind": draw(st.sampled_from(sorted(SCHEDULES))),
        "schedule__chunks": draw(st.integers(1, 3)),
        "overlap__bucket_mb": draw(st.sampled_from((0.01, 25.0))),
        "memory__recompute": draw(st.sampled_from(("none", "full"))),
    }
    config = small(**BASE | values)
    assume(1 < layout_of(config).world_size <= MOST_RANKS and not list(problems(config)))
    return config


def drawn(examples: int) -> settings:
    """Other examples in every run; hypothesis prints how to draw a failing one again."""
    phases = (Phase.explicit, Phase.generate)
    ignored = (HealthCheck.filter_too_much, HealthCheck.too_slow)
    return settings(max_examples=examples, phases=phases, suppress_health_check=ignored)


@pytest.fixture(scope="module")
def reference(session: Session) -> tuple[list[float | None], list[float | None]]:
    """Losses and gradient norms of one process."""
    outcome, summary = execute(session, small(**BASE))
    assert outcome.good, outcome
    return summary.losses, summary.gradient_norms


def compare(
    session: Session, config: RunConfig, reference: tuple[list[float | None], list[float | None]]
) -> None:
    """Three steps give the reference's losses and gradient norms."""
    event(f"{layout_of(config).world_size} ranks")
    outcome, summary = execute(session, config)
    assert outcome.good, outcome
    assert summary.losses == pytest.approx(reference[0], abs=LOSS_TOLERANCE, rel=0)
    assert summary.gradient_norms == pytest.approx(reference[1], rel=NORM_TOLERANCE)


@drawn(3)
@given(config=configurations())
def test_a_few_layouts_drawn_at_random(
    session: Session, reference: tuple[list[float | None], list[float | None]], config: RunConfig
) -> None:
    compare(session, config, reference)


@pytest.mark.slow
@pytest.mark.timeout(580)
@drawn(150)
@given(config=configurations())
def test_many_layouts_drawn_at_random(
    session: Session, reference: tuple[list[float | None], list[float | None]], config: RunConfig
) -> None:
    compare(session, config, reference)
