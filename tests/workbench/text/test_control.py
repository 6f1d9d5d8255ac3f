"""The actions of ``workbench control``: each stands whole on one line of its help."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.run import commands
from workbench.text.control import Action, table


def test_the_table_has_each_action_once_and_fits_a_terminal() -> None:
    lines = table().splitlines()
    assert [line.split()[0] for line in lines[1:]] == [action.value for action in Action]
    assert max(map(len, lines)) <= 78


def test_the_orders_to_ranks_are_the_actions_of_runs_alone() -> None:
    assert {action.value for action in Action if action.targets == "run"} == set(commands.COMMANDS)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_help_keeps_its_lines(columns: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "control", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": columns, "PATH": ""},
    )
    shown = {line.strip() for line in done.stdout.splitlines()}
    assert {line.strip() for line in table().splitlines()} <= shown
