"""An ending is one entry: a made-up one of any kind is treated by studies as that kind asks, and advised, coloured and
exported like the others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.run.outcome import GOOD, Ending, RunOutcome, Subject, endings_about

ROOT = Path(__file__).parents[3]
ENTRY = '    MELTED = "melted", Subject.{}, "too hot", "melted away", "red", "whatshot", "a fan"\n'
#: The module with one line more, in place of the real one; then everybody who knows endings is asked.
SCRIPT = """
import sys, types
from pathlib import Path

source = Path("engine/run/outcome.py").read_text("utf-8")
at = source.index("    CRASHED = (")
module = types.ModuleType("engine.run.outcome")
sys.modules["engine.run.outcome"] = module
exec(compile(source[:at] + sys.argv[1] + source[at:], "outcome.py", "exec"), module.__dict__)

from engine.launch.ending import decide
from engine.run.messages import RankReport
from engine.run.outcome import ABOUT_CONFIGURATION, FROM_OUTSIDE, GOOD, RETRY_ONCE, Ending, RecordedOutcome, RunOutcome
from tuning.analysis.leaderboard import wants_retry
from tuning.storage.state import StudyState
from tuning.analysis.scoring import constraints
from tuning.report.failures import advice, is_from_outside
from workbench.metrics.families import STATES
from workbench.text import words

about, melted = sys.argv[2], RunOutcome(Ending("melted"))
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
assert advice("melted", [{}]) == ["a fan"]
assert words.look("melted") == ("red", ":material/whatshot:")
assert words.ending_words("melted") == "too hot"
assert "melted" in STATES
assert melted.ending.consequence == (len(sys.argv) > 3)
cause = decide([RankReport(0, melted.ending), RankReport(1, Ending.OOM)], [])
assert cause.rank == (1 if melted.ending.consequence else 0)
print("known everywhere")
"""


def test_every_ending_is_about_something() -> None:
    assert set().union(*map(endings_about, Subject)) == set(Ending)
    assert {Ending.COMPLETED, Ending.PRUNED} == GOOD
    assert [ending for ending in Ending if RunOutcome(ending).good] == [Ending.COMPLETED, Ending.PRUNED]


@pytest.mark.parametrize("field", ["spoken", "counted", "color", "icon"])
def test_no_ending_is_without_words(field: str) -> None:
    assert all(getattr(ending, field) for ending in Ending)


@pytest.mark.parametrize(
    ("about", "consequence"), [*((about.name, False) for about in Subject), ("CHANCE", True)]
)
def test_a_new_ending_is_one_entry(about: str, consequence: bool) -> None:
    """A consequence gives way to the cause that another rank tells of."""
    entry = ENTRY.format(about).replace('"a fan"', 'CONSEQUENCE, "a fan"' if consequence else '"a fan"')
    command = [sys.executable, "-c", SCRIPT, entry, about, *(["consequence"] if consequence else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "known everywhere\n", done.stderr
