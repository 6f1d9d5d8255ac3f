"""An ending is one entry: a made-up one of any kind is treated by studies as that kind and its facts ask, told from an
error's text or by its deadline, and advised, coloured and exported like the others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.run.outcome import (
    GOOD,
    Ending,
    FailureClass,
    RunOutcome,
    cause_among,
    endings_about,
    named_ending,
    printed_cause,
)

ROOT = Path(__file__).parents[3]
ENTRY = """
    MELTED = (
        "melted",
        EndingFacts(
            failure_class=FailureClass.{}, phrase="too hot", count_phrase="melted away", color="red", icon="whatshot",
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
from torch.distributed import DistNetworkError

from engine.launch.ending import ProcessExit, ending_of_process, hanging_rank, outcome_of_ranks, overdue_outcome
from engine.launch.job.ranks import JobRanks, report_of_rank
from engine.rank.worker import ending_of_exception, group_timeout
from engine.run.messages import RankReport
from engine.run.outcome import ABOUT_CONFIGURATION, FROM_OUTSIDE, GOOD, NO_MEMORY, ORDERLY, RETRY_ONCE
from engine.run.outcome import Ending, RecordedOutcome, RunOutcome, limits_of
from engine.run.progress import RankProgress
from tuning.analysis.leaderboard import wants_retry
from tuning.storage.state import StudyState
from tuning.analysis.scoring import constraints
from tuning.execution.command.process import Exit
from tuning.execution.command.verdict import outcome_of_command, outcome_of_silence
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
tips = advice("oom", [failed]) if "melted" in NO_MEMORY else []
if facts.deadline:
    tips = ["more time (train.timeout_seconds, 600 here)"]
    limits = limits_of(RunConfig().value_of)
    saving = lambda s: [RankProgress(1, 7, 4, "checkpoint", s, state="checkpoint", state_seconds=s)]
    assert hanging_rank(saving(599.0), 60.0) and not hanging_rank(saving(599.0), 60.0, frozenset(), limits)
    assert not overdue_outcome(saving(599.0), limits, 599.0)
    assert overdue_outcome(saving(601.0), limits, 1.0).ending is melted.ending
    assert group_timeout(RunConfig()).total_seconds() == 630.0
assert advice("melted", [failed]) == [*tips, "a fan"]
assert ("melted" in ORDERLY) == facts.orderly
if facts.words.any:
    said = "RuntimeError: the board is at 130 degrees"
    failed = {"kind": "RuntimeError", "reason": said, "out_of_memory": False, "distributed": False, "last_lines": []}
    assert ending_of_exception(RuntimeError(said)) is melted.ending
    assert ending_of_exception(DistNetworkError(said)) is melted.ending
    assert report_of_rank({"rank": 0, "failed": failed}).ending is melted.ending
    assert report_of_rank({"rank": 0, "failed": failed | {"distributed": True}}).ending is melted.ending
    gone = ProcessExit(2, -6, None, (said,), ending_of_process((said, "Aborted"), killed_for_memory=False))
    assert outcome_of_ranks([], [gone]).reason == f"rank 2 melted away: {said}"
    silent = JobRanks(Path(), {0: {"rank": 0, "pid": 0, "world_size": 1}}, silent=[0])
    assert silent.outcome(1, (said,)).ending is melted.ending
    refuses = "train.py: error: unrecognized arguments: --x"
    for code, lines, steps in ((1, [said], 3), (-9, [said], 3), (2, [said, refuses], 0)):
        assert outcome_of_command(Exit(code), lines, steps, lambda pid: False).ending is melted.ending
    assert outcome_of_silence("no step for 8 s", [said, "noise"], None).ending is melted.ending
view = types.SimpleNamespace(outcome="melted", folder=Path(sys.argv[2]))
compaction.progress.read = lambda folder: [types.SimpleNamespace(pid=os.getpid())]
assert compaction.writers_live(view) == ("unseen" in sys.argv[1])
assert words.look("melted") == ("red", ":material/whatshot:")
assert words.ending_words("melted") == "too hot"
assert "melted" in STATES
assert facts.consequence == ("CONSEQUENCE" in sys.argv[1])
if not facts.orderly:
    cause = outcome_of_ranks([RankReport(0, melted.ending), RankReport(1, Ending.DIVERGED)], [])
    assert cause.rank == (1 if facts.consequence else 0)
assert RankReport(0, melted.ending).good == facts.orderly == ("orderly" in sys.argv[1])
assert ("melted" in NO_MEMORY) == ("MEMORY" in sys.argv[1])
print("known everywhere")
"""


def test_every_ending_is_about_something() -> None:
    assert set().union(*map(endings_about, FailureClass)) == set(Ending)
    assert {Ending.COMPLETED, Ending.PRUNED} == GOOD
    assert [ending for ending in Ending if RunOutcome(ending).good] == [Ending.COMPLETED, Ending.PRUNED]


@pytest.mark.parametrize("field", ["phrase", "count_phrase", "color", "icon"])
def test_no_ending_is_without_words(field: str) -> None:
    assert all(getattr(ending.facts, field) for ending in Ending)


@pytest.mark.parametrize(
    ("about", "others"),
    [
        ("GOOD", "orderly=True"),
        ("CONFIGURATION", "missing=MissingResource.MEMORY"),
        ("CONFIGURATION", 'deadline=Deadline("train.timeout_seconds", "checkpoint")'),
        ("CHANCE", 'words=ErrorWords(any=("board is at",))'),
        ("CHANCE", "precedence=Precedence.CONSEQUENCE"),
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
    assert named_ending("RuntimeError: NCCL error in: x.cpp", runtime=True) is Ending.COMM_ERROR
    assert named_ending("requests.exceptions.ConnectionError: no such host") is None
    assert named_ending("OSError: [Errno 32] Broken pipe", printed=True) is Ending.COMM_ERROR
    assert named_ending("RuntimeError: NCCL error: CUDA out of memory", runtime=True) is Ending.OOM


def test_of_several_endings_the_cause_counts_in_any_order() -> None:
    told = [Ending.COMM_ERROR, None, Ending.CRASHED, Ending.OOM, Ending.DIVERGED]
    assert cause_among(told) is cause_among(reversed(told)) is Ending.OOM
    assert cause_among(told[:3]) is Ending.CRASHED
    assert cause_among([Ending.DIVERGED, Ending.CRASHED]) is Ending.DIVERGED, "of equals the first"
    assert cause_among([None]) is None
    lines = ["CUDA out of memory", "the last words", "RuntimeError: broken pipe"]
    assert printed_cause(lines) == (Ending.OOM, "CUDA out of memory")
    assert printed_cause(lines[1:]) is None
