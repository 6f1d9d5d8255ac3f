"""What failed, as the terminal tells it."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from tuning.report.study_result import StudyResult
from workbench.terminal.study import print_failures

RULE = {
    "outcome": "oom",
    "conditions": [{"key": "tp", "sign": "<=", "value": 2}],
    "failed_with": 2,
    "trials_with": 2,
    "failed_without": 0,
    "trials_without": 7,
    "p": 0.01,
    "looked_at": 1,
    "same": [],
}
ROW = {
    "outcome": "oom",
    "phase": "backward",
    "about": "configuration",
    "count": 2,
    "ranks": [0, 2],
    "trials": [1, 4],
    "tried_again": 0,
    "reason": "too large",
}


def printed(document: dict[str, Any]) -> str:
    """The failures of a result."""
    console = Console(file=io.StringIO(), width=200)
    print_failures(console, StudyResult.from_dict(document))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def board(*endings: dict[str, Any]) -> dict[str, Any]:
    return {
        "line": "2 of 9 trials failed",
        "rules": [RULE | {"words": "tp <= 2: 2 of 2"}],
        "endings": list(endings),
    }


def test_each_ending_has_its_phase_and_ranks() -> None:
    hung = ROW | {
        "outcome": "hang",
        "phase": None,
        "ranks": [],
        "trials": [7],
        "tried_again": 1,
        "reason": "",
    }
    assert printed({"failures": board(ROW, hung)}).splitlines() == [
        "failures: 2 of 9 trials failed",
        "  out of memory in backward on ranks 0 and 2: trials 1 and 4; the last: too large",
        "  hang: trial 7, 1 tried again",
        "  tp <= 2: 2 of 2",
    ]


def test_what_the_result_says_already_is_not_said_again() -> None:
    said = printed({"failures": board(ROW), "result_line": "nothing ran: 2 of 9 trials failed"})
    assert said.startswith("failures: endings\n")
    assert printed({"failures": board() | {"endings": []}}) == ""
