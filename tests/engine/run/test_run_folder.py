"""What the folder of a run says of it."""

from __future__ import annotations

from pathlib import Path

from engine.config.run_config import parse
from engine.lifecycle import finish
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from engine.run.run_folder import RunStatus


def test_a_turn_between_stages_of_zero_is_told(tmp_path: Path) -> None:
    """While the run goes on, and once it has ended: by its status and by the file of it."""
    config = parse({"parallel": {"dp": 2, "zero_stage": 2}})
    folder = run_folder.create(tmp_path, config, {})
    run_folder.update_status(folder, state="running", layout={"dp": 2, "zero_stage": 2})
    assert RunStatus.from_folder(folder).layout == {"dp": 2, "zero_stage": 2}
    run_folder.change_config(folder, config.with_values({"parallel.zero_stage": 3}))
    assert RunStatus.from_folder(folder).layout == {"dp": 2, "zero_stage": 3}
    finish(folder, config, "gloo", RunOutcome(Ending.COMPLETED))
    status = run_folder.read_json(folder / run_folder.STATUS) or {}
    assert status["layout"]["zero_stage"] == 3 and status["layout"]["dp"] == 2
