"""Two drawn rows of the benchmark that holds told speeds beside a stop-watch."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import objective
from engine.session import Session
from tests.support.engine.lab import needs_lab

CASES = [(method, period) for method in objective.METHODS for period in (2, 3, 4)]


@needs_lab
@pytest.mark.timeout(120)
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("method", "period"), CASES)
def test_a_run_is_told_with_the_speed_of_its_whole_rounds(tmp_path: Path, method: str, period: int) -> None:
    """The stop-watch looks from another process, so a busy machine moves both alike."""
    with Session(tmp_path) as session:
        cells, _ = objective.row(session, method, period, 20.0, 2)
    told, watched, by_median = (float(cells[place].replace(",", "")) for place in (3, 4, 7))
    assert told == pytest.approx(watched, rel=0.1)
    assert cells[9] == "exposed_all_reduce (outer)"
    if method != "streaming" and period > 2:
        assert by_median > 1.5 * watched
