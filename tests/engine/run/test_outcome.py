"""An ending is one entry: a made-up one is retried, counted, advised, coloured and exported like the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.run.outcome import GOOD, About, Ending, RunOutcome, endings_about

ROOT = Path(__file__).parents[3]
ENTRY = '    MELTED = "melted", About.CHANCE, "too hot", "melted away", "red", "whatshot", "a fan"\n'
#: The module with one line more, in place of the real one; then everybody who knows endings is asked.
SCRIPT = """
import sys, types
from pathlib import Path

source = Path("engine/run/outcome.py").read_text("utf-8")
at = source.index("    CRASHED = (")
module = types.ModuleType("engine.run.outcome")
sys.modules["engine.run.outcome"] = module
exec(compile(source[:at] + sys.argv[1] + source[at:], "outcome.py", "exec"), module.__dict__)

from engine.run.outcome import RETRY_ONCE, Ending, RunOutcome
from tuning.report.failures import advice, rule_words
from workbench.metrics.families import STATES
from workbench.text import words

assert RunOutcome.from_dict(RunOutcome(Ending("melted")).as_dict()).ending in RETRY_ONCE
assert not RunOutcome(Ending("melted")).good
assert advice("melted", [{}]) == ["a fan"]
assert words.look("melted") == ("red", ":material/whatshot:")
assert words.spoken("melted") == "too hot"
assert "melted" in STATES
print("known everywhere")
"""


def test_every_ending_is_about_something() -> None:
    assert set().union(*map(endings_about, About)) == set(Ending)
    assert {Ending.COMPLETED, Ending.PRUNED} == GOOD
    assert [ending for ending in Ending if RunOutcome(ending).good] == [Ending.COMPLETED, Ending.PRUNED]


@pytest.mark.parametrize("field", ["spoken", "counted", "color", "icon"])
def test_no_ending_is_without_words(field: str) -> None:
    assert all(getattr(ending, field) for ending in Ending)


def test_a_new_ending_is_one_entry() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ENTRY], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "known everywhere\n", done.stderr
