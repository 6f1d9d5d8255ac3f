"""``predict --dry-run``: what a layout of any size must hold, or every rule that it breaks."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from engine.config import parse
from engine.dryrun.check import DryRun
from engine.footprint import footprints
from tests.workbench.conftest import Run
from workbench.render_predict import print_dry_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "train.yaml"
ROW = {
    "stage", "rank", "ranks", "layers", "in_flight", "parameters", "parameter_bytes", "gradient_bytes",
    "optimizer_bytes", "activation_bytes", "activation_formula_bytes", "buffer_bytes", "host_bytes",
    "published_bytes", "total_bytes",
}  # fmt: skip


def test_a_legal_layout_as_json(command: Run) -> None:
    sets = ["parallel.dp=4", "parallel.pp=2", "parallel.zero_stage=1"]
    done = command("predict", EXAMPLE, *sets, "--set", "parallel.tp=2", "--dry-run", "--json")
    assert done.code == 0
    assert not done.err
    found = done.document
    assert set(found) == {
        "legal", "problems", "layout", "world_size", "stages", "largest_bytes", "mismatches", "notes", "seconds",
    }  # fmt: skip
    assert (found["legal"], found["problems"], found["world_size"]) == (True, [], 16)
    assert found["layout"] == {"dp": 4, "tp": 2, "pp": 2, "cp": 1, "ep": 1, "zero_stage": 1}
    assert [row["stage"] for row in found["stages"]] == [[0], [1]]
    assert [row["rank"] for row in found["stages"]] == [0, 8]
    for row in found["stages"]:
        assert set(row) == ROW
        parts = ("parameter", "gradient", "optimizer", "activation", "buffer")
        assert row["total_bytes"] == sum(row[f"{part}_bytes"] for part in parts)
    assert found["largest_bytes"] == max(row["total_bytes"] for row in found["stages"])


def test_a_legal_layout_for_people(command: Run) -> None:
    done = command("predict", EXAMPLE, "--dry-run", "parallel.dp=2", "precision=bf16")
    assert done.code == 0
    assert not done.err
    for words in (
        "legal",
        "dp2, 2 ranks",
        "0 to 1",
        "1.4 M",
        "Most on rank 0",
        "arXiv 2205.05198",
        "Checked in",
    ):
        assert words in done.out, words


def test_every_broken_rule_is_one_line(command: Run) -> None:
    sets = ["parallel.tp=3", "parallel.pp=5", "batch.micro_batch=7", "schedule.stage_layers=[1, 2]"]
    done = command("predict", EXAMPLE, "--dry-run", *sets)
    assert done.code == 2
    assert not done.out
    lines = done.err.splitlines()
    assert len(lines) >= 4
    assert all(line.startswith("error: ") for line in lines)
    for words in ("must divide heads=4", "layers=4", "batch.micro_batch=7", "schedule.stage_layers"):
        assert words in done.err, words


def test_an_illegal_layout_as_json(command: Run) -> None:
    done = command("predict", EXAMPLE, "--dry-run", "--json", "parallel.tp=3")
    assert done.code == 2
    found = done.document
    assert (found["legal"], found["stages"], found["largest_bytes"]) == (False, [], None)
    assert [f"error: {problem}" for problem in found["problems"]] == done.err.splitlines()


def test_input_that_is_wrong(command: Run, tmp_path: Path) -> None:
    command("predict", EXAMPLE).refused("predict", "--dry-run")
    command("predict", tmp_path / "none.yaml", "--dry-run").refused("none.yaml", "No such file")
    command("predict", EXAMPLE, "--dry-run", "parallel.tpp=2").refused("parallel.tpp=2", "known here")
    command("predict", EXAMPLE, "--dry-run", "model.preset=huge").refused("model.preset='huge'", "1t")
    command("predict", "--dry-run").refused("CONFIG")


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
def test_a_long_pipeline_is_shortened(kind: str) -> None:
    config = parse({"model": {"preset": "1t"}, "parallel": {"pp": 64}, "schedule": {"kind": kind}})
    config = config.with_values({"batch.global_batch": 256})
    rows = footprints(config)
    console = Console(file=io.StringIO(), width=160)
    print_dry_run(console, config, DryRun((), {"pp": 64}, 64, rows, rows))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("..." in text) == (kind == "1f1b")
    assert ("1 to 62" in text) == (kind == "gpipe")
    assert len(text.splitlines()) < 20


def test_a_mistake_of_ours_is_shown() -> None:
    config = parse({})
    rows = footprints(config)
    console = Console(file=io.StringIO(), width=160)
    found = DryRun(
        (), {}, 1, rows, rows, mismatches=("rank 0 was built with 2 parameters; the formula says 3",)
    )
    print_dry_run(console, config, found)
    assert "mistake of ours: rank 0 was built with 2" in console.file.getvalue()  # type: ignore[attr-defined]
