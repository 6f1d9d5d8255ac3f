"""Faults at random moments of running studies: nothing lost, mislabelled or left behind. See benchmarks/faults.py."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from benchmarks._fault_checks import run
from benchmarks._faults import KINDS, possible
from tests.support import drawn

pytestmark = [pytest.mark.timeout(280), pytest.mark.drawn(1, of="faults of a study")]
PER_STUDY = 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_study_survives(kind: str, tmp_path: Path) -> None:
    """The kind and another one, drawn: two in a usual run of the tests, with the last one's end."""
    if kind in possible():
        pytest.skip(possible()[kind])
    seed = Random(f"{drawn.SEED} {kind}").randrange(10**6)
    others = sorted(KINDS.keys() - possible().keys() - {kind})
    kinds = [kind, *Random(seed).sample(others, PER_STUDY)]
    shots = run(tmp_path / "study", kinds, seed)
    wrong = [f"{shot.words}: {problem}" for shot in shots for problem in shot.problems]
    assert not wrong, f"seed {seed}, {kinds}: {wrong}"
    assert shots
