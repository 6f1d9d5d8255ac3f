"""A step of a run, its ranks and one call, as the command line tells them; numbers are those that were planted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.config.errors import InputError
from profilers.records.schema import FixedRecord
from profilers.records.writer import RecordWriter
from tests.support.samples import comm_sample, step_sample
from tests.support.workbench.skewed_run import REDUCING, write_skewed
from tests.workbench.conftest import Run
from workbench.records import step_view

LATE = 0.08


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 2 of 4, on the second of two hosts, is 80 ms late in step 16."""
    home = tmp_path_factory.mktemp("home")
    return home / write_skewed(home, lambda rank, step: LATE * ((rank, step) == (2, 16)), ranks_per_host=2)


def test_a_step_has_all_ranks_and_how_far_each_is_behind(run: Path) -> None:
    view = step_view.step_view(run, 16)
    assert [(row.rank, row.host) for row in view.ranks] == [
        (0, "node-0"),
        (1, "node-0"),
        (2, "node-1"),
        (3, "node-1"),
    ]
    behind = [row.behind_seconds or 0.0 for row in view.ranks]
    assert behind[2] == pytest.approx(LATE, abs=0.001)
    assert all(abs(behind[rank]) < 0.001 for rank in (0, 1, 3))
    assert all(sum(row.phases.values()) == pytest.approx(row.step_seconds) for row in view.ranks)
    assert view.calls == []


def test_a_step_names_the_call_that_held_a_rank_longest(run: Path) -> None:
    slowest = step_view.step_view(run, 16).slowest
    assert slowest is not None
    assert slowest.rank != 2, "the last to come waits for nobody"
    assert slowest.call.key.link_text() == "dp.all_reduce.0"
    own = slowest.call.attendance(slowest.rank)
    assert own.ended is not None
    lengths = [one.ended - one.issued for one in slowest.call.ranks if one.ended is not None]
    assert own.ended - own.issued == max(lengths) == pytest.approx(LATE + REDUCING, abs=0.001)


def write_rank(folder: Path, records: Sequence[FixedRecord]) -> None:
    """A run of a single rank."""
    (folder / "records").mkdir(parents=True)
    writer = RecordWriter(folder / "records", "rank-0")
    for record in records:
        writer.write(record)
    writer.close()


def test_of_several_calls_the_longer_one_is_named(tmp_path: Path) -> None:
    """It is neither the first nor the last; messages, whose time nobody knows, are none."""
    folder = tmp_path / "20260101-000000-abcd"
    seconds = (0.01, 0.05, 0.02)
    calls = [comm_sample(3, seconds=one, axis="tp") for one in seconds]
    write_rank(folder, [step_sample(3), *calls, comm_sample(3, operation="send", axis="pp", seconds=None)])
    slowest = step_view.step_view(folder, 3).slowest
    assert slowest is not None
    assert (slowest.rank, slowest.call.key.link_text()) == (0, "tp.all_reduce.1")


def test_a_step_without_calls_has_no_slowest_one(tmp_path: Path) -> None:
    folder = tmp_path / "20260101-000000-abcd"
    write_rank(folder, [step_sample(3)])
    assert step_view.step_view(folder, 3).slowest is None


def test_a_call_of_a_rank_names_the_one_that_it_waited_for(run: Path) -> None:
    (call,) = step_view.step_view(run, 16, 0).calls
    assert (call.axis, call.operation, call.number, call.last_rank) == ("dp", "all_reduce", 0, 2)
    assert call.late_seconds == pytest.approx(LATE, abs=0.001)
    assert call.ended is not None
    assert call.ended - call.began == pytest.approx(REDUCING, abs=1e-5)
    assert step_view.step_view(run, 16, 0, "dp.all_reduce.0").calls == [call]


@pytest.mark.parametrize(
    ("step", "rank", "call", "field", "remedy"),
    [
        (99, None, None, "--step", "not recorded; there are steps 0 to 39"),
        (16, 9, None, "--rank", "those that did: 0 to 3"),
        (16, 0, "dp.all_reduce.7", "--call", "up to dp.all_reduce.0"),
        (16, 0, "nonsense", "--call", "write it as AXIS.OPERATION.NUMBER, for example dp.all_reduce.0"),
    ],
)
def test_what_is_not_there_is_said(
    run: Path, step: int, rank: int | None, call: str | None, field: str, remedy: str
) -> None:
    with pytest.raises(InputError) as caught:
        step_view.step_view(run, step, rank, call)
    assert caught.value.field == field
    assert remedy in caught.value.remedy


def test_the_command_line_leads_to_the_same_places(run: Path, command: Run) -> None:
    at = "show", run.name, "--home", run.parent
    call = "--step", 16, "--rank", 0, "--call", "dp.all_reduce.0"
    assert command(*at, "--json", "--step", 16).document == step_view.step_view(run, 16).as_dict()
    one = command(*at, "--json", *call).document
    assert one == step_view.step_view(run, 16, 0, "dp.all_reduce.0").as_dict()
    assert one["calls"][0]["last_rank"] == 2
    assert "for rank 2, the last to come" in " ".join(command(*at, *call).out.split())
    assert "all_reduce" in command(*at, "--step", 16, "--rank", 0).out
    assert "node-1" in command(*at, "--step", 16).out


@pytest.mark.parametrize(
    "options", [["--rank", 0], ["--call", "dp.all_reduce.0"], ["--step", 3, "--call", "x"]]
)
def test_a_place_within_a_step_needs_the_step(run: Path, command: Run, options: list[object]) -> None:
    command("show", run.name, "--home", run.parent, *options).refused("say which")


def test_what_is_not_there_is_one_line(run: Path, command: Run) -> None:
    command("show", run.name, "--home", run.parent, "--step", 99).refused("--step=99", "steps 0 to 39")
