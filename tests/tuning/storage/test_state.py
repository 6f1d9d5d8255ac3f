"""A state that grew with its journal says the same as one that was read at once, whatever it worked out on the way."""

import random
from typing import Any

import pytest

from tests.support import drawn
from tests.support.studies.fake import study
from tests.tuning.report.test_result import lines
from tuning.analysis import confirmation, leaderboard
from tuning.report.result import result
from tuning.search import policy
from tuning.spec.study_file import StudyFile
from tuning.storage.state import Line, StudyState, fold

SPACE = {"parallel.tp": [1, 2], "compression.method": ["none", "topk"], "batch.micro_batch": [1, 2, 4]}
STEPS = 60
BASE = {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": STEPS}}
PLAIN = study(space=SPACE, base=BASE, confirm_runners_up=2)
KEPT = study(space=SPACE, base=BASE, confirm_runners_up=2, constraints={"peak_memory_bytes": 1e9})
ENDINGS = ("completed",) * 6 + ("oom", "timeout", "crashed")
EVENTS = 40


class Author:
    """Writes what studies write, in an order that chance decides."""

    def __init__(self, seed: int) -> None:
        self.chance, self.lines = random.Random(seed), list[Line]()
        self.points = PLAIN.search_space.legal_points

    def event(self) -> list[Line]:
        """One more trial, begun and maybe ended, or one that began before and is withdrawn or told."""
        state = fold(self.lines)
        if state.under_way and self.chance.random() < 0.6:
            number = self.chance.choice(state.under_way).number
            kind = "withdrawn" if self.chance.random() < 0.3 else "tell"
            found = [self._told(number) | {"kind": kind}]
        else:
            found = self._proposed(state)
        self.lines += found
        return found

    def _proposed(self, state: StudyState) -> list[Line]:
        number, chance = state.next_number, self.chance
        again = next((trial for trial in state.trials if leaderboard.wants_retry(state, trial)), None)
        valued = leaderboard.measured_trials(state)
        point, more = chance.choice(self.points), dict[str, Any]()
        if again is not None:
            point, more = again.config, {"retry_of": again.number, "attempt": again.attempt + 1}
            more |= {} if again.confirms is None else {"confirms": again.confirms}
        elif valued and chance.random() < 0.4:
            one = chance.choice(valued)
            point, more = one.config, {"confirms": one.number, "source": "confirm"}
        if not number:
            point = PLAIN.search_space.baseline[0]
        begun = lines(number, point, None, **more)[0]
        return [begun, self._told(number)] if chance.random() < 0.8 else [begun]

    def _told(self, number: int) -> Line:
        chance = self.chance
        outcome = chance.choice(ENDINGS) if number else "completed"
        value = chance.uniform(900, 1100) if outcome == "completed" else None
        told = lines(
            number, {}, value, outcome=outcome, steps=STEPS, validation_loss=chance.uniform(2.3, 2.6)
        )
        memory = {"peak_memory_bytes": {"value": chance.choice([5e8, 5e8, 2e9])}}
        measures = memory if chance.random() < 0.9 else {}
        return told[1] | {"measures": measures, "seconds": chance.uniform(1, 9)}


def said(state: StudyState, file: StudyFile) -> dict[str, Any]:
    """All that is decided from a state."""
    arms = [trial.number for trial in confirmation.arms(state, file)]
    step = policy.next_step(state, file, exhausted=True)
    return {"result": result(state, file), "arms": arms, "step": step}


@pytest.mark.parametrize("file", [PLAIN, KEPT], ids=["plain", "constraints"])
def test_growing_and_reading_agree(file: StudyFile) -> None:
    author, grown = Author(drawn.SEED), StudyState()
    for _ in range(EVENTS):
        before, grown = grown, grown.copy()
        for line in author.event():
            grown.take([line])
        said(
            before, file
        )  # as another thread may that still looks at it: its answers are not those of the new one
        assert said(grown, file) == said(fold(author.lines), file)
        assert said(grown, file) == said(grown.copy(), file)


def test_the_cache_is_for_what_was_asked() -> None:
    author = Author(drawn.SEED)
    state = fold([line for _ in range(EVENTS) for line in author.event()])
    first = said(state, PLAIN), said(state, KEPT)
    assert first == (said(state, PLAIN), said(state, KEPT))
    assert first == (said(fold(author.lines), PLAIN), said(fold(author.lines), KEPT))
