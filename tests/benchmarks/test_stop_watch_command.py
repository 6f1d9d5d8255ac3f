"""From nothing to a winner by the command line, in less than ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import stop_watch_command as benchmark
from tests.support.trainers import environments


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_takes_less_than_ten_minutes(tmp_path: Path) -> None:
    environments.require("hf")
    found = benchmark.measure(tmp_path, benchmark.WALL_SECONDS)
    assert found.seconds < benchmark.BAR_SECONDS
    assert found.document["state"] == "ended" and len(found.document["trials"]) > 1
    assert found.verdict in benchmark.VERDICTS
    assert found.document["command"]["best"].startswith(benchmark.training(tmp_path / "out").split()[0])


def test_words_that_changed_are_told() -> None:
    today = "python train.py --size 2 --out o"
    assert benchmark.changed({"command": {"today": today, "best": f"{today} --fast"}}) == "--fast"
    assert benchmark.changed({"command": {"today": today, "best": today.replace("2", "4")}}) == "4"
    assert benchmark.changed({"command": {"today": today, "best": today}}) == "none"
