"""Endings of a command from what its processes printed: causes before consequences, and what torchrun reports."""

from __future__ import annotations

import pytest

from engine.run.outcome import Ending, RunOutcome
from tuning.execution.command.process import Exit
from tuning.execution.command.verdict import (
    KEPT_LINES,
    last_error,
    outcome_of_command,
    outcome_of_silence,
    refusal,
)

REPORT = "E1120 10:00:00 elastic: failed (exitcode: {code}) local_rank: 1 (pid: 4711) of binary: python"
AFTER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"


def verdict(code: int | None, *lines: str, steps: int = 5, killed: tuple[int | None, ...] = ()) -> RunOutcome:
    return outcome_of_command(Exit(code), lines, steps, lambda pid: pid in killed)


def test_a_rank_that_the_kernel_killed_ran_out_of_memory_and_any_other_was_killed() -> None:
    lines = (REPORT.format(code=-9), AFTER)
    found = verdict(1, *lines, killed=(4711,))
    assert (found.ending, found.rank, "want of memory" in found.reason) == (Ending.OOM, 1, True)
    other = verdict(1, *lines, killed=(99,))
    assert (other.ending, other.rank, other.killed_from_outside) == (Ending.CRASHED, 1, True)
    assert other.reason == "rank 1 was killed by SIGKILL, after 5 steps"
    assert verdict(-9, killed=(None,)).ending is Ending.OOM
    # Somebody else's process was killed meanwhile: this one failed by itself.
    assert verdict(1, "RuntimeError: no", killed=(None,)).ending is Ending.CRASHED


def test_a_segmentation_fault_comes_from_nobody_outside() -> None:
    found = verdict(1, REPORT.format(code=-11), AFTER)
    assert found.reason.startswith("rank 1 was killed by SIGSEGV") and not found.killed_from_outside


@pytest.mark.parametrize(
    ("line", "ending"),
    [
        ("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", Ending.OOM),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory",
            Ending.OOM,
        ),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp", Ending.COMM_ERROR),
        (
            "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1",
            Ending.COMM_ERROR,
        ),
        ("RuntimeError: the planted error", Ending.CRASHED),
    ],
)
def test_errors_are_what_they_say(line: str, ending: Ending) -> None:
    assert verdict(1, "Traceback (most recent call last):", line, AFTER).ending is ending


def test_a_lost_connection_is_no_cause_where_somebody_had_one_of_his_own() -> None:
    lines = ("[rank1]: RuntimeError: mine", "[rank0]: RuntimeError: gloo: Connection closed by peer", AFTER)
    assert last_error(lines) == "RuntimeError: mine"
    found = verdict(1, *lines)
    assert found.ending is Ending.CRASHED and found.reason.endswith("after 5 steps: RuntimeError: mine")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("usage: t.py [-h]", "t.py: error: unrecognized arguments: --x"), "unrecognized arguments: --x"),
        (("ValueError: Some specified arguments are not used by the HfArgumentParser: ['--x']",),
         "Some specified arguments are not used by the HfArgumentParser: ['--x']"),
        (("[rank0]: AssertionError: heads must divide", AFTER), "AssertionError: heads must divide"),
        (("Error: No such option: --x",), "No such option: --x"),
        (("train: unrecognized option '--x'", "Try 'train --help' for more information."),
         "unrecognized option '--x'"),
        (("RuntimeError: no",), ""),
    ],
)  # fmt: skip
def test_a_trainer_that_says_no_is_quoted(lines: tuple[str, ...], said: str) -> None:
    assert refusal(lines) == said
    before = verdict(2, *lines, steps=0)
    assert (before.ending is Ending.ILLEGAL) == bool(said) and said in before.reason
    assert verdict(2, *lines, steps=3).ending is Ending.CRASHED  # it had said yes


def test_one_that_stands_still_after_a_rank_ran_out_of_memory_did_not_hang() -> None:
    """A launcher takes its time to notice, and to end the other ranks."""
    memory = "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"
    assert outcome_of_silence("no step for 8 s", ["step 5", memory], None).ending is Ending.OOM
    found = outcome_of_silence("no step for 8 s", ["step 5", "noise"], 1)
    assert (found.ending, found.rank, found.reason) == (Ending.HANG, 1, "no step for 8 s")


def test_few_lines_are_kept_and_a_long_reason_is_cut() -> None:
    found = verdict(1, *["noise"] * 500, f"RuntimeError: {'x' * 5000}")
    assert len(found.last_lines) == KEPT_LINES and len(found.reason) < 450


def test_one_that_fails_without_an_error_is_told_in_its_last_words() -> None:
    found = verdict(2, "usage: nobody reads this", "python: can't open file 'x.py'", steps=0)
    assert (
        found.reason
        == "the trainer ended with exit code 2, before its first step: python: can't open file 'x.py'"
    )
    assert verdict(2, "step 5", steps=5).reason == "the trainer ended with exit code 2, after 5 steps"


def test_one_that_leaves_somebody_running_after_too_few_steps_says_so() -> None:
    found = outcome_of_command(Exit(0, ("python",)), ("step 2",), 2, lambda pid: False)
    assert found.ending is Ending.ILLEGAL
    assert "after 2 steps, fewer than are measured, and left python running" in found.reason
