"""One ending from what was seen of all ranks: causes beat their consequences."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.errors import LayoutError
from engine.config.run_config import RunConfig
from engine.launch.ending import (
    ProcessExit,
    ending_of_process,
    find_culprit,
    hanging_rank,
    outcome_of_ranks,
    overdue_outcome,
)
from engine.launch.job.ranks import JobRanks
from engine.rank.loop import DivergedError
from engine.rank.worker import ending_of_exception, failure, group_timeout
from engine.run.messages import RankReport
from engine.run.outcome import Deadline, Ending, ErrorWords, Limit, RecordedOutcome, RunOutcome, limits_of
from engine.run.progress import Progress, RankProgress
from profilers.records.schema import PHASES


def report(rank: int, ending: Ending) -> RankReport:
    return RankReport(rank, ending, f"rank {rank}", "forward", ("last",))


def gone(rank: int, exit_code: int, ending: Ending | None = None) -> ProcessExit:
    return ProcessExit(rank, exit_code, "backward", (), ending)


def place(rank: int, step: int, phase: str, age: float) -> RankProgress:
    state = None if phase in PHASES else phase
    return RankProgress(rank, 1000 + rank, step, phase, age, state=state)


def test_a_crash_beats_the_lost_connections_it_causes() -> None:
    outcome = outcome_of_ranks(
        [report(0, Ending.COMM_ERROR), report(2, Ending.OOM), report(1, Ending.COMM_ERROR)], []
    )
    assert (outcome.ending, outcome.rank, outcome.last_lines) == (Ending.OOM, 2, ("last",))


def test_a_death_beats_every_report() -> None:
    outcome = outcome_of_ranks([report(0, Ending.CRASHED)], [gone(3, -9)])
    assert (outcome.ending, outcome.rank, outcome.phase) == (Ending.CRASHED, 3, "backward")
    assert outcome.killed_from_outside


def test_a_segmentation_fault_is_our_own() -> None:
    outcome = outcome_of_ranks([], [gone(0, -11)])
    assert "SIGSEGV" in outcome.reason
    assert not outcome.killed_from_outside


def test_ranks_whose_fork_server_died_are_not_to_blame() -> None:
    orphans = [ProcessExit(rank, 255, "forward", (), orphaned=True) for rank in (0, 1)]
    outcome = outcome_of_ranks([], orphans)
    assert (outcome.ending, outcome.rank, outcome.killed_from_outside) == (Ending.CRASHED, None, True)
    assert "fork server" in outcome.reason
    assert not outcome_of_ranks([], [gone(0, 255)]).killed_from_outside


def test_a_run_past_its_deadline_names_the_rank_furthest_behind() -> None:
    limits = limits_of(RunConfig().with_values({"train.timeout_seconds": 30.0}).value_of)
    ranks = [place(0, 6, "bubble", 0.1), place(1, 5, "forward", 0.1)]
    assert overdue_outcome(ranks, limits, 29.9) is None
    outcome = overdue_outcome(ranks, limits, 30.1)
    assert outcome is not None
    assert (outcome.ending, outcome.rank, outcome.phase) == (Ending.TIMED_OUT, 1, "forward")
    assert outcome.reason == "longer than train.timeout_seconds=30, in step 5"
    assert overdue_outcome([], limits, 30.1) == RunOutcome(
        Ending.TIMED_OUT, "longer than train.timeout_seconds=30"
    )


def test_a_part_of_a_run_past_its_deadline_names_a_rank_only_if_it_is_the_only_one() -> None:
    limit = Limit(Ending.TIMED_OUT, Deadline("checkpoint.seconds", "checkpoint"), 30.0)
    late = replace(place(1, 5, "checkpoint", 4.0), state_seconds=31.0)
    others = [place(0, 5, "forward", 50.0), replace(late, rank=2, state_seconds=29.0)]
    assert overdue_outcome(others, [limit], 1e6) is None
    outcome = overdue_outcome([*others, late], [limit], 0.0)
    assert outcome is not None
    assert (outcome.rank, outcome.phase) == (1, "checkpoint")
    assert outcome.reason == "longer than checkpoint.seconds=30, in step 5 (checkpoint)"
    outcome = overdue_outcome([replace(late, rank=0), late], [limit], 0.0)
    assert outcome is not None
    assert outcome.rank is None


def test_a_part_with_a_deadline_of_its_own_does_not_count_as_hung_before_it() -> None:
    limit = Limit(Ending.TIMED_OUT, Deadline("checkpoint.seconds", "checkpoint"), 30.0)
    for seconds, hangs in ((29.0, False), (31.0, True)):
        assert bool(hanging_rank([place(0, 5, "checkpoint", seconds)], 5.0, limits=[limit])) == hangs
    assert hanging_rank([place(0, 5, "checkpoint", 29.0)], 5.0) is not None
    assert hanging_rank([place(0, 5, "validation", 29.0)], 5.0, limits=[limit]) is not None
    short = [limit._replace(seconds=10.0)]
    assert hanging_rank([place(0, 5, "checkpoint", 24.0)], 5.0, limits=short) is None


def test_collectives_wait_for_longer_than_the_launcher_does() -> None:
    for seconds in (0.5, 60.0, 600.0):
        config = RunConfig().with_values({"train.step_timeout_seconds": seconds})
        patience = group_timeout(config).total_seconds()
        assert hanging_rank([place(0, 5, "validation", patience)], seconds) is not None


def test_what_is_known_of_one_that_is_gone_is_the_cause_and_memory_before_all() -> None:
    outcome = outcome_of_ranks([], [gone(0, -6), gone(1, -9, Ending.OOM)])
    assert (outcome.ending, outcome.rank, outcome.reason) == (Ending.OOM, 1, "rank 1 ran out of memory")
    outcome = outcome_of_ranks([], [gone(0, -6), gone(1, 1, Ending.DIVERGED), gone(2, -9, Ending.OOM)])
    assert outcome.rank == 2
    assert outcome_of_ranks([], [gone(0, -6), gone(1, 1, Ending.DIVERGED)]).rank == 1


def test_a_cause_of_higher_precedence_counts_whichever_rank_tells_of_it() -> None:
    outcome = outcome_of_ranks([report(0, Ending.CRASHED), report(1, Ending.OOM)], [])
    assert (outcome.ending, outcome.rank) == (Ending.OOM, 1)
    assert outcome_of_ranks([report(0, Ending.CRASHED), report(1, Ending.DIVERGED)], []).rank == 0


def test_one_that_is_gone_is_no_mere_consequence_whatever_it_printed() -> None:
    lines = ("RuntimeError: Connection reset by peer", "Aborted")
    assert ending_of_process(lines, killed_for_memory=False) is None
    assert ending_of_process(lines, killed_for_memory=True) is Ending.OOM
    lines = ("can't allocate memory", *lines)
    assert ending_of_process(lines, killed_for_memory=False) is Ending.OOM
    outcome = outcome_of_ranks([], [ProcessExit(0, -6, "forward", lines, Ending.OOM)])
    assert outcome.reason == "rank 0 ran out of memory: can't allocate memory"


def test_all_completed_and_all_stopped() -> None:
    assert outcome_of_ranks([report(0, Ending.COMPLETED)], []).good
    assert (
        outcome_of_ranks([report(0, Ending.STOPPED), report(1, Ending.STOPPED)], []).ending is Ending.STOPPED
    )


def test_the_rank_that_computes_holds_up_those_that_wait() -> None:
    ranks = [
        place(0, 5, "communication_exposed", 9.0),
        place(1, 5, "forward", 8.0),
        place(2, 5, "bubble", 9.0),
    ]
    culprit = hanging_rank(ranks, patience_seconds=5.0)
    assert culprit is not None
    assert culprit.rank == 1


def test_a_process_the_kernel_stopped_is_certain_even_while_it_waits() -> None:
    ranks = [place(0, 5, "forward", 8.0), place(1, 5, "bubble", 8.0)]
    culprit = hanging_rank(ranks, 5.0, frozenset({1001}))
    assert culprit is not None
    assert culprit.rank == 1


def test_a_stopped_process_needs_no_more_patience_before_or_after_its_steps() -> None:
    for phase in ("starting", "finished"):
        ranks = [place(0, 5, "starting", 8.0), place(1, -1, phase, 8.0)]
        assert hanging_rank(ranks, 5.0) is None
        culprit = hanging_rank(ranks, 5.0, frozenset({1001}))
        assert culprit is not None
        assert culprit.rank == 1


def test_when_all_wait_the_furthest_behind_is_named() -> None:
    culprit = hanging_rank([place(0, 6, "bubble", 8.0), place(1, 5, "bubble", 7.0)], 5.0)
    assert culprit is not None
    assert culprit.rank == 1


def test_patience_is_longer_outside_steps_and_endless_at_the_end() -> None:
    assert hanging_rank([place(0, -1, "building", 20.0), place(1, 9, "finished", 1e6)], 5.0) is None
    for state in ("building", "planning", "waiting"):
        assert hanging_rank([place(0, -1, state, 24.0)], 5.0) is None
        assert hanging_rank([place(0, -1, state, 26.0)], 5.0) is not None


def test_outcomes_survive_their_document_and_newer_keys() -> None:
    outcome = RunOutcome(Ending.HANG, "why", 2, "forward", ("a", "b"))
    assert RecordedOutcome.from_dict(outcome.as_dict() | {"newer": 1}).outcome() == outcome


def test_where_all_wait_their_calls_say_who_is_behind() -> None:
    """On a GPU every host stands where it waits for the device, and nobody seems to compute."""
    ranks = [place(rank, 5, "communication_exposed", 9.0 - rank) for rank in range(3)]
    suspect = hanging_rank(ranks, 5.0)
    assert suspect is not None
    assert suspect.rank == 0
    assert find_culprit(suspect, ranks, (2,)) == (ranks[2], True)
    assert find_culprit(suspect, ranks, (1, 2)) == (ranks[1], True)
    assert find_culprit(suspect, ranks, ()) == (suspect, False)
    assert find_culprit(suspect, ranks, (), frozenset({1000})) == (suspect, True)


def test_what_is_seen_of_a_rank_beats_its_calls() -> None:
    ranks = [place(0, 5, "forward", 9.0), place(1, 5, "bubble", 9.0)]
    assert find_culprit(ranks[0], ranks, (1,)) == (ranks[0], True)
    behind = [place(0, 5, "bubble", 9.0), place(1, 6, "bubble", 9.0)]
    assert find_culprit(behind[0], behind, ()) == (behind[0], True)
    assert find_culprit(behind[0], behind[:1], ()) == (behind[0], True), "alone, it waits for its own device"


def of_a_job(folder: Path, words: str) -> RunOutcome | None:
    failed = {
        "kind": "RuntimeError",
        "reason": words,
        "last_lines": [],
        "out_of_memory": False,
        "distributed": False,
    }
    return JobRanks(folder, {0: {"rank": 0, "pid": 0, "world_size": 1, "failed": failed}}).outcome(1, ())


def test_a_lost_connection_is_known_by_the_same_words_in_ranks_of_ours_and_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_a_job(tmp_path, "the pigeon is late") == RunOutcome(
        Ending.CRASHED, "RuntimeError: the pigeon is late", 0
    )
    lost = replace(Ending.COMM_ERROR.facts, words=ErrorWords(runtime=("pigeon",)))
    monkeypatch.setattr(Ending.COMM_ERROR, "facts", lost)
    found = of_a_job(tmp_path, "the Pigeon is late")
    assert found is not None
    assert found.ending is ending_of_exception(RuntimeError("the Pigeon is late")) is Ending.COMM_ERROR


def test_errors_of_ours_speak_for_themselves(tmp_path: Path) -> None:
    with closing(Progress(tmp_path, 1)) as progress:
        diverged = failure(0, DivergedError(3, "no loss", "backward"), progress)
        illegal = failure(0, LayoutError("memory.budget_gib", 1, "too little"), progress)
        other = failure(0, ValueError("no"), progress)
    assert (diverged.ending, diverged.phase) == (Ending.DIVERGED, "backward")
    assert diverged.reason == "step 3: no loss"
    assert (illegal.ending, illegal.reason) == (Ending.ILLEGAL, "memory.budget_gib=1: too little")
    assert (other.ending, other.reason) == (Ending.CRASHED, "ValueError: no")
