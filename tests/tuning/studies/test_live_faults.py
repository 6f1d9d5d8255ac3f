"""Faults at random moments of a live study: its run learns as if untouched. See benchmarks/live_faults.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from benchmarks._faults import possible
from benchmarks._live_fault_checks import run, untouched
from benchmarks._live_fault_study import KINDS
from benchmarks.live_faults import draw
from tests.support import drawn

pytestmark = pytest.mark.drawn(1, of="faults of a study")

STEPS, FAULTS, TRIALS = 400, 1, 5


@pytest.mark.timeout(280)
def test_a_live_study_survives(tmp_path: Path) -> None:
    """One fault, drawn anew each time."""
    seed = Random(f"{drawn.SEED} live").randrange(10**6)
    kinds = sorted(
        KINDS.keys() - possible().keys() - {"kill_page"}
    )  # the page takes longer to start than all else
    wanted = draw(seed, kinds, Counter(), FAULTS)
    shots = run(tmp_path / "study", wanted, seed, untouched(tmp_path / "untouched", STEPS), TRIALS)
    wrong = [f"{shot.words}: {problem}" for shot in shots for problem in shot.problems]
    assert not wrong, f"seed {seed}, {wanted}: {wrong}"
    assert shots
