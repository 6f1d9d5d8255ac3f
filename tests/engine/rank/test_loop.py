"""Validation on the way: the losses of training stay what they are, whatever the layout, and a curve is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import LayoutError
from engine.config.knobs.catalogue import arithmetic, exact_changes, exact_values, is_lossy, lossy
from engine.config.validation.rules import check
from engine.session import Session
from tests.support.runs import execute, small

SIX = {"parallel__dp": 2, "train__steps": 6}


@pytest.mark.drawn(2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "layout",
    [
        {"compression__method": "topk", "compression__start_step": 1},
        {"parallel__zero_stage": 3, "overlap__prefetch": 1},
        {"parallel__zero_stage": 1, "overlap__gather_with_optimizer": True},
        {"overlap__delay": 1},
        {"outer__method": "co2", "outer__period": 2},
    ],
    ids=["topk", "zero_3", "zero_1", "late", "co2"],
)
def test_it_changes_nothing_that_is_learned(tmp_path: Path, layout: dict[str, Any]) -> None:
    with Session(tmp_path) as session:
        outcome, watched = execute(session, small(**SIX, train__validate_every=2, **layout))
        assert outcome.good, outcome
        _, alone = execute(session, small(**SIX, **layout))
    assert watched.losses == alone.losses
    assert [row.step for row in watched.quality] == [2, 4, 6]
    assert [row.step for row in alone.quality] == [6]
    assert watched.quality[-1].loss == watched.validation_loss == alone.validation_loss
    assert watched.quality[0].loss > watched.quality[-1].loss
    seconds, sent = ([getattr(row, name) for row in watched.quality] for name in ("seconds", "wire_bytes"))
    assert seconds == sorted(seconds) and sent == sorted(sent)
    if not layout.get("overlap__gather_with_optimizer"):  # what a validation waits for belongs to no step
        assert sent[-1] == pytest.approx(alone.quality[-1].wire_bytes)


def test_it_needs_held_out_batches() -> None:
    with pytest.raises(LayoutError, match=r"train\.validate_every=2: there is no held-out batch"):
        check(small(train__validate_every=2, train__validation_batches=0))


def test_what_is_lossy_and_what_makes_it_exact() -> None:
    usual = small().flat()
    assert not is_lossy(usual) and not is_lossy({})
    for key, exact in exact_values().items():
        other = 1 if exact == 0 else "int8"
        assert lossy({key: other}) == {key: other}
    values = small(
        compression__method="topk", compression__ratio=0.5, overlap__delay=1, outer__period=3
    ).flat()
    sets = exact_changes(values, usual)
    assert sets == {
        "compression.method": "none",
        "compression.ratio": 0.01,
        "outer.period": 12,
        "overlap.delay": 0,
    }
    assert arithmetic(values) == arithmetic(values | sets) == arithmetic(usual)
    assert arithmetic(usual | {"train.seed": 1}) != arithmetic(usual)
    assert arithmetic(usual | {"train.validate_every": 5}) == arithmetic(usual)
