"""Planted offsets of hosts' clocks are found by real ranks, within the error that they state."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from engine.rank.environment_report import HostClocks, kernel_boot_id
from engine.session import Session
from profilers.records.reader import RunRecords
from tests.support.ranks import on_ranks
from tests.support.runs import execute, small

#: Two ranks a host; the clocks of the second and third host are off.
OFFSETS = (0.0, 0.0, 3.5, 3.5, -0.25)


def measured(rank: int, offsets: tuple[float, ...]) -> Any:
    """One real rank whose host's clock is off by a planted number of seconds."""
    offset = offsets[rank]
    clocks = HostClocks(torch.device("cpu"), f"host {offset}", lambda: time.time() + offset)
    began = time.perf_counter()
    return clocks.several, clocks.measure(), time.perf_counter() - began


def test_planted_offsets_are_found_within_their_error() -> None:
    for planted, (several, found, seconds) in zip(
        OFFSETS, on_ranks(len(OFFSETS), measured, OFFSETS), strict=True
    ):
        assert several
        assert abs(found.offset_seconds - planted) <= found.error_seconds + 1e-6
        assert found.error_seconds < seconds
        assert (found.error_seconds > 0) == (planted != 0)


def test_ranks_of_one_kernel_share_a_clock() -> None:
    answers = on_ranks(2, one_kernel)
    assert answers == [(False, 0.0, 0.0, kernel_boot_id())] * 2


def one_kernel(rank: int) -> Any:
    clocks = HostClocks(torch.device("cpu"))
    found = clocks.measure()
    return clocks.several, found.offset_seconds, found.error_seconds, kernel_boot_id()


def test_a_run_tells_its_clocks(session: Session) -> None:
    outcome, summary = execute(session, small(parallel__dp=2, train__validation_batches=0))
    assert outcome.good
    records = RunRecords(session.home / summary.id / "records")
    for rank in range(2):
        told = [event.data for event in records.events(rank) if event.kind == "clock"]
        assert [(one["offset_seconds"], one["error_seconds"]) for one in told] == [(0.0, 0.0)]
        assert told[0]["time_unix"] == pytest.approx(time.time(), abs=600)
    assert summary.clocks == []
