"""Random legal points over all knobs at once run, learn what one process learns, and send what formulas say."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from engine.session import Session
from tests.support.drawn import SEED
from tests.support.engine import random_points

POINTS, PART = 200, 20


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session(tmp_path_factory.mktemp("home")) as warm:
        yield warm


def compared(session: Session, seeds: range) -> None:
    for seed in seeds:
        config = random_points.draw(random.Random(seed))
        try:
            random_points.check(session, config)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {random_points.changes(config)}: {error}") from error


def test_some_of_them(session: Session) -> None:
    first = 1_000 + 10 * SEED
    compared(session, range(first, first + 3))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(POINTS // PART))
def test_all_of_them(session: Session, part: int) -> None:
    compared(session, range(part * PART, (part + 1) * PART))


def test_every_knob_is_turned_by_some() -> None:
    """Of those with values to suggest on a few ranks, without a lab or a checkpoint, and what people say by hand."""
    drawn = [random_points.changes(random_points.draw(random.Random(seed))) for seed in range(2_000)]
    turned = {key for changes in drawn for key in changes}
    assert random_points.turned_keys() - turned == set()
