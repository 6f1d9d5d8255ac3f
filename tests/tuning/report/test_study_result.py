"""The typed result: the keys of its document, and documents that older versions wrote."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.support.studies.fake import study
from tests.tuning.analysis.test_confirmation import rerun, searched
from tuning.report.result import result
from tuning.report.study_result import StudyResult

FILE = study()
TIED = result(rerun(searched(1000.0, 1010.0), {0: 1000.0, 1: 1003.0}), FILE)


def test_what_was_written_is_read_back() -> None:
    assert StudyResult.from_dict(json.loads(json.dumps(TIED.as_dict()))) == TIED


def test_what_is_not_known_has_no_key() -> None:
    plain = TIED.as_dict()
    assert {"importance", "prior", "optuna_lag"}.isdisjoint(plain)
    assert "money" not in plain["budget"], "there is no price"
    assert all("guard" in row for row in plain["trials"])
    assert not any("guard" in row for row in plain["confirmations"])


def test_documents_of_before_open() -> None:
    """A key that is missing, one that is unknown, and one that had another shape: budgets as they were set."""
    older = TIED.as_dict() | {"budget": {"trials": 6, "seconds": 60.0}, "colour": "green"}
    del older["failures"], older["confirmation_rounds"]["beside"]
    for row in older["trials"]:
        del row["limits"], row["shown"]
    found = StudyResult.from_dict(older)
    assert (found.budget, found.failures, found.best) == (None, None, TIED.best)
    assert found.confirmation_rounds and found.confirmation_rounds.winner == 1
    assert [row.limits for row in found.trials] == [[], []]


def test_a_configuration_that_ran_once_has_one_interval() -> None:
    """The headline and the list of trials tell the same ends, by whatever method the gain has its own."""
    state = searched(1000.0, 1100.0)
    trials = tuple(replace(one, low=(one.value or 0) - 7, high=(one.value or 0) + 9) for one in state.trials)
    found = result(replace(state, trials=trials), FILE)
    assert found.best and found.baseline and found.gain and found.gain.low is not None
    for entry in (found.best, found.baseline):
        row = next(row for row in found.trials if row.number == entry.trial)
        assert (entry.value, entry.low, entry.high) == (row.value, row.low, row.high)
