"""An ending is one entry: a made-up one of any kind is treated by studies as that kind and its facts ask, told from an
error's text, and advised, coloured and exported like the others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.run.outcome import GOOD, Ending, RunOutcome, Subject, ending_named_in, endings_about

ROOT = Path(__file__).parents[3]
ENTRY = """
    MELTED = (
        "melted",
        EndingFacts(
            about=Subject.{}, spoken="too hot", counted="melted away", color="red", icon="whatshot",
            advice=("a fan",), {}
        ),
    )
"""
#: The module with one line more, in place of the real one; then everybody who knows endings is asked.
SCRIPT = """
import os, sys, types
from pathlib import Path

source = Path("engine/run/outcome.py").read_text("utf-8")
at = source.index("    CRASHED = (\\n")
module = types.ModuleType("engine.run.outcome")
sys.modules["engine.run.outcome"] = module
exec(compile(source[:at] + sys.argv[1] + source[at:], "outcome.py", "exec"), module.__dict__)

from engine.config.run_config import RunConfig
from engine.launch.ending import decide
from engine.launch.job.ranks import report_of
from engine.rank.worker import classify
from engine.run.messages import RankReport
from engine.run.outcome import ABOUT_CONFIGURATION, FROM_OUTSIDE, GOOD, NO_MEMORY, ORDERLY, RETRY_ONCE
from engine.run.outcome import Ending, RecordedOutcome, RunOutcome
from tuning.analysis.leaderboard import wants_retry
from tuning.storage.state import StudyState
from tuning.analysis.scoring import constraints
from tuning.execution.command.process import Exit
from tuning.execution.command.verdict import classify_exit
from tuning.report.failures import advice, is_from_outside
from workbench.home import compaction
from workbench.metrics.families import STATES
from workbench.text import words

about, melted = sys.argv[2], RunOutcome(Ending("melted"))
facts = melted.ending.facts
assert RecordedOutcome.from_dict(melted.as_dict()).outcome() == melted
kinds = {"GOOD": GOOD, "CONFIGURATION": ABOUT_CONFIGURATION, "CHANCE": RETRY_ONCE, "OUTSIDE": FROM_OUTSIDE}
assert [kind for kind, endings in kinds.items() if melted.ending in endings] == [about]
assert melted.good == (about == "GOOD")
once, again = (constraints(melted, repeated, None) for repeated in (False, True))
assert once == ({"melted": 1.0} if about == "CONFIGURATION" else {})
assert again == ({"melted": 1.0} if about in ("CONFIGURATION", "CHANCE") else {})
trial = types.SimpleNamespace(
    outcome="melted", by_command=False, killed_from_outside=False, source="search", attempt=0, number=0
)
trial.retry_of = trial.confirms = None
assert wants_retry(StudyState(), trial) == (about in ("CHANCE", "OUTSIDE"))
assert is_from_outside(trial) == (about == "OUTSIDE")
failed = RunConfig().flat()
assert advice("melted", [failed]) == ([*advice("oom", [failed]), "a fan"] if "melted" in NO_MEMORY else ["a fan"])
assert ("melted" in ORDERLY) == facts.orderly
view = types.SimpleNamespace(outcome="melted", folder=Path(sys.argv[2]))
compaction.progress.read = lambda folder: [types.SimpleNamespace(pid=os.getpid())]
assert compaction.writers_live(view) == ("unseen" in sys.argv[1])
if facts.words.any:
    said = "RuntimeError: the board is at 130 degrees"
    failed = {"kind": "RuntimeError", "reason": said, "out_of_memory": False, "distributed": False, "last_lines": []}
    assert classify(RuntimeError(said)) is melted.ending
    assert report_of({"rank": 0, "failed": failed}).ending is melted.ending
    assert classify_exit(Exit(1), [said], 3, lambda pid: False).ending is melted.ending
assert words.look("melted") == ("red", ":material/whatshot:")
assert words.ending_words("melted") == "too hot"
assert "melted" in STATES
assert facts.consequence == ("consequence" in sys.argv[1])
if not facts.orderly:
    cause = decide([RankReport(0, melted.ending), RankReport(1, Ending.OOM)], [])
    assert cause.rank == (1 if facts.consequence else 0)
assert RankReport(0, melted.ending).good == facts.orderly == ("orderly" in sys.argv[1])
assert ("melted" in NO_MEMORY) == ("MEMORY" in sys.argv[1])
print("known everywhere")
"""


def test_every_ending_is_about_something() -> None:
    assert set().union(*map(endings_about, Subject)) == set(Ending)
    assert {Ending.COMPLETED, Ending.PRUNED} == GOOD
    assert [ending for ending in Ending if RunOutcome(ending).good] == [Ending.COMPLETED, Ending.PRUNED]


@pytest.mark.parametrize("field", ["spoken", "counted", "color", "icon"])
def test_no_ending_is_without_words(field: str) -> None:
    assert all(getattr(ending.facts, field) for ending in Ending)


@pytest.mark.parametrize(
    ("about", "others"),
    [
        ("GOOD", "orderly=True"),
        ("CONFIGURATION", "lack=Lack.MEMORY"),
        ("CHANCE", 'words=ErrorWords(any=("board is at",))'),
        ("CHANCE", "consequence=True"),
        ("OUTSIDE", "unseen=True"),
    ],
)
def test_a_new_ending_is_one_entry(about: str, others: str) -> None:
    """A consequence gives way to the cause that another rank tells of."""
    command = [sys.executable, "-c", SCRIPT, ENTRY.format(about, others), about]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "known everywhere\n", done.stderr


def test_nowhere_else_are_endings_listed() -> None:
    """By name, that is: what treats several of them alike asks for a fact of theirs."""
    named = re.compile(r"[([{][^)\]}]*\bEnding\.[A-Z_]+\b(\.value)?, *Ending\.[A-Z]")
    code = [
        path
        for part in ("engine", "tuning", "workbench", "profilers")
        for path in (ROOT / part).rglob("*.py")
    ]
    assert [path.name for path in code if named.search(path.read_text("utf-8"))] == []


def test_the_text_of_an_error_names_an_ending() -> None:
    assert ending_named_in("RuntimeError: NCCL error in: x.cpp", runtime=True) is Ending.COMM_ERROR
    assert ending_named_in("requests.exceptions.ConnectionError: no such host") is None
    assert ending_named_in("OSError: [Errno 32] Broken pipe", printed=True) is Ending.COMM_ERROR
    assert ending_named_in("RuntimeError: NCCL error: CUDA out of memory", runtime=True) is Ending.OOM
