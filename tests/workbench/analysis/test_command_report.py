"""The command that a study of a command ends with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tuning.report.study_result import StudyResult
from tuning.spec.study_file import parse
from workbench.analysis import command_report

COMMAND = "python train.py --block 128"


@pytest.mark.parametrize(("recommended", "block"), [(64, 64), (None, 256)])
def test_it_is_the_one_of_the_trial_that_is_recommended(recommended: int | None, block: int) -> None:
    """Which on a tie is not the fastest; an export of the study has the same."""
    file = parse({"name": "s", "trainer": {"command": COMMAND}, "space": {"trainer.block": [64, 128, 256]}})
    entries = {"best": 256, "recommended": recommended}
    result = {
        name: value and SimpleNamespace(config={"trainer.block": value}) for name, value in entries.items()
    }
    report = command_report.report_command(file, cast(StudyResult, SimpleNamespace(**result)))
    assert report is not None and report.best == COMMAND.replace("128", str(block))
