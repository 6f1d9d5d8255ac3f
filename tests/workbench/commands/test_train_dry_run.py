"""What a dry run says to people: long pipelines are shortened, and mistakes of ours are shown."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from engine.config.run_config import parse
from engine.dry_run.check import DryRun
from engine.footprint.footprint import footprints
from workbench.terminal.prediction import print_dry_run


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
    assert "bug in the workbench: rank 0 was built with 2" in console.file.getvalue()  # type: ignore[attr-defined]
