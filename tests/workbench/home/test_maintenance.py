"""Room for new runs: what goes, what stays, and that nothing goes unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.checkpoint.checkpoint_folder import CHECKPOINTS
from engine.run import run_folder
from tests.workbench.conftest import Furnished, Run
from workbench.home import maintenance
from workbench.home.runs import run_folders
from workbench.records.live_snapshot import LiveRun


def snapshot(home: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in home.rglob("*") if path.is_file() and path.suffix != ".db"}


def recorded(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / run_folder.RECORDS).iterdir())


def test_without_apply_it_only_shows(command: Run, own_home: Furnished) -> None:
    before = snapshot(own_home.home)
    done = command("prune", "--older-than", "1h", "--larger-than", "1kB")
    assert snapshot(own_home.home) == before
    assert "would be freed" in done.out
    assert "--apply" in done.out.splitlines()[-1]
    document = command("prune", "--older-than", "1h", "--json").document
    assert (document["applied"], bool(document["runs"])) == (False, True)


def test_by_age_details_go_and_results_stay(command: Run, own_home: Furnished) -> None:
    old = [folder for folder in run_folders(own_home.home) if folder.name.endswith(("3c01", "a7e2"))]
    shown = [command("show", folder.name, "--json").document for folder in old]
    checkpoint = old[0] / CHECKPOINTS / "step-000012" / "weights"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"weights")
    document = command("prune", "--older-than", "90m", "--apply", "--json").document
    assert {folder.name for folder in old} <= {row["id"] for row in document["runs"]}
    assert document["freed_bytes"] > 10_000
    assert [recorded(folder) for folder in old] == [0, 0]
    assert not list(old[0].glob(".pruned*"))
    assert [command("show", folder.name, "--json").document for folder in old] == shown
    assert checkpoint.exists()
    assert not LiveRun(old[0]).read().problems
    command("prune", "--older-than", "90m", "--checkpoints", "--apply")
    assert not checkpoint.exists()


def test_by_size_the_oldest_go_first(own_home: Furnished) -> None:
    ended = sorted(
        (folder for folder in run_folders(own_home.home) if folder.name != own_home.live), key=ended_unix
    )
    sizes = [
        maintenance._size(folder / run_folder.RECORDS) + maintenance._size(folder / run_folder.LOGS)
        for folder in ended
    ]
    done = maintenance.prune(own_home.home, maintenance.Limits(None, sum(sizes) - sizes[0] - 1), apply=False)
    assert [run.id for run in done.runs] == [folder.name for folder in ended[:2]]
    assert (done.freed_bytes, done.left_bytes) == (sizes[0] + sizes[1], sum(sizes[2:]))


def test_a_run_that_goes_on_is_never_touched(command: Run, own_home: Furnished) -> None:
    live = own_home.home / own_home.live
    before = snapshot(live)
    command("prune", "--older-than", "0s", "--larger-than", "0B", "--apply")
    assert snapshot(live) == before
    assert [recorded(folder) for folder in run_folders(own_home.home) if folder != live].count(0) >= 3


def test_what_stays_is_compacted(command: Run, own_home: Furnished) -> None:
    document = command("prune", "--apply", "--json").document
    assert document["runs"] == []
    assert document["compacted_files"] > 0
    assert document["compacted_parquet_bytes"] < document["compacted_raw_bytes"]
    assert command("prune", "--json").document["compacted_files"] == 0


def test_reindex_compacts_too(command: Run, own_home: Furnished) -> None:
    assert command("reindex", "--json").document["compacted_files"] > 0


def ended_unix(folder: Path) -> float:
    return float((run_folder.read_json(folder / run_folder.STATUS) or {})["ended_unix"])


@pytest.mark.parametrize(("option", "value"), [("--older-than", "soon"), ("--larger-than", "10")])
def test_wrong_input_is_one_line(command: Run, option: str, value: str) -> None:
    command("prune", option, value).refused(option, value, "write for example")


def test_ages_and_sizes_that_can_be_typed() -> None:
    assert maintenance.limits("36h", "1.5GB") == maintenance.Limits(129_600.0, 1_500_000_000)
    assert maintenance.limits("2 w", "4 KiB") == maintenance.Limits(1_209_600.0, 4096)
