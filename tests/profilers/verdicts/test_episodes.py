"""What held for a while only: planted stretches in runs that are fine as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profilers.model.run_summary import RunSummary
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.profilers.uniform_records import summary
from tests.support.samples import comm_sample, step_sample

Phases = Callable[[int, int], dict[str, float]]


def run(folder: Path, phases: Phases, steps: int = 200, ranks: int = 4) -> RunSummary:
    for rank in range(ranks):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            for step in range(steps):
                values = phases(rank, step)
                writer.write(step_sample(step, **values))
                wait = values.get("communication_exposed", 0.0)
                if wait:
                    timed: dict[str, Any] = {"seconds": wait, "exposed_seconds": wait}
                    writer.write(comm_sample(step, start_unix=1_700_000_000.0 + step, **timed))
    return summary(folder)


def slow_rank(rank: int, step: int) -> dict[str, float]:
    """Rank 2 takes half as long again in steps 80 to 119, the others wait for it; all else is even."""
    slow = 80 <= step < 120
    work = 1.5 if slow and rank == 2 else 1.0
    return {"forward": work, "communication_exposed": 1.6 - work if slow else 0.1}


def test_a_straggler_that_comes_and_goes_is_named_with_its_steps(tmp_path: Path) -> None:
    found = run(tmp_path, slow_rank)
    assert "straggler" not in [verdict.name for verdict in found.verdicts]
    (episode,) = [one for one in found.episodes if one.verdict.name == "straggler"]
    assert (episode.first_step, episode.last_step, episode.goes_on) == (80, 119, False)
    assert (episode.verdict.rank, episode.verdict.share) == (2, about(0.5 / 1.6))
    assert "it is the slowest in 100 % of the steps" in episode.verdict.evidence


def test_one_that_is_still_there_goes_on(tmp_path: Path) -> None:
    found = run(tmp_path, slow_rank, steps=120)
    (episode,) = [one for one in found.episodes if one.verdict.name == "straggler"]
    assert (episode.first_step, episode.goes_on) == (80, True)


@pytest.mark.parametrize("begins", [1960, 1985])
def test_a_rank_that_stalls_now_is_named_however_long_the_run_was(tmp_path: Path, begins: int) -> None:
    """A stretch of this run has 100 steps, of which too few are slow."""

    def phases(rank: int, step: int) -> dict[str, float]:
        slow = step >= begins and step % 4 != 0  # another one is the slowest now and then
        work = 1.5 if slow and rank == 2 else 1.0 + 0.01 * ((step + rank) % 4 == 0)
        return {"forward": work, "communication_exposed": 1.6 - work if step >= begins else 0.1}

    found = run(tmp_path, phases, steps=2000)
    (episode,) = [one for one in found.episodes if one.verdict.name == "straggler"]
    assert (episode.first_step, episode.last_step, episode.goes_on) == (1980, 1999, True)
    assert (episode.verdict.rank, episode.verdict.kind) == (2, "fixed")


def test_what_is_over_is_not_said_to_go_on(tmp_path: Path) -> None:
    """The last stretch of this run has 200 steps; the rank was slow in all but its end."""

    def phases(rank: int, step: int) -> dict[str, float]:
        work = 1.5 if rank == 2 and 3800 <= step < 3970 else 1.0 + 0.01 * ((step * 7 + rank * 3) % 4)
        return {"forward": work, "communication_exposed": 0.1}

    (episode,) = run(tmp_path, phases, steps=4000).episodes
    assert (episode.first_step, episode.last_step, episode.goes_on) == (3800, 3999, False)


def test_what_goes_on_into_the_newest_steps_is_one_episode(tmp_path: Path) -> None:
    """Of stretches of ten steps it is the slowest in all of the last but one, and in six of the last."""

    def phases(rank: int, step: int) -> dict[str, float]:
        slow = 180 <= step < 190 or step in (190, 192, 193, 195, 197, 199)
        return {"forward": 1.5 if rank == 1 and slow else 1.0 + 0.01 * (rank == (step * 7) % 4)}

    (episode,) = run(tmp_path, phases).episodes
    assert (episode.first_step, episode.last_step, episode.goes_on) == (180, 199, True)
    assert (episode.verdict.rank, episode.verdict.share) == (1, about(8 / (20 + 8 / 4), 0.02))


def test_a_link_that_was_full_for_a_while_is_named(tmp_path: Path) -> None:
    def phases(rank: int, step: int) -> dict[str, float]:
        return {"forward": 1.0, "communication_exposed": 1.0 if 40 <= step < 60 else 0.01}

    found = run(tmp_path, phases)
    (episode,) = found.episodes
    assert (episode.first_step, episode.last_step) == (40, 59)
    assert (episode.verdict.name, episode.verdict.axis, episode.verdict.share) == (
        "exposed_all_reduce",
        "dp",
        about(0.5),
    )


@pytest.mark.parametrize("steps", [5, 19, 200])
def test_an_even_run_has_none(tmp_path: Path, steps: int) -> None:
    def phases(rank: int, step: int) -> dict[str, float]:
        return {"forward": 1.0 + 0.01 * ((step * 7 + rank * 3) % 5), "communication_exposed": 0.3}

    assert run(tmp_path, phases, steps=steps).episodes == []


def test_what_holds_for_the_whole_run_is_no_episode(tmp_path: Path) -> None:
    def phases(rank: int, step: int) -> dict[str, float]:
        work = 1.5 if rank == 1 else 1.0
        return {"forward": work, "communication_exposed": 1.6 - work}

    found = run(tmp_path, phases)
    assert "straggler" in [verdict.name for verdict in found.verdicts]
    assert found.episodes == []


def test_json_and_back(tmp_path: Path) -> None:
    found = run(tmp_path, slow_rank)
    assert RunSummary.from_dict(found.as_dict()).episodes == found.episodes
