"""A rank that runs out of memory ends the run as that, though its peers wait for it, with NCCL's habits for ever; so
does one that dies under torchrun.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.launch import torchrun
from engine.run import progress, run_folder
from engine.run.devices.selection import BACKEND_VARIABLE
from engine.run.outcome import Ending
from engine.run.progress import Progress
from engine.session import Session
from tests.support.engine.memory_limit import Starving, large, when_there
from tests.support.engine.torchrun import at_step, on_one_host, tiny
from tests.support.gpu import like_nccl
from tests.support.runs import execute

AXES: dict[str, dict[str, Any]] = {"pp": {"parallel__pp": 2}, "tp": {"parallel__tp": 2}}
BACKENDS = {"gloo": "", "nccl": like_nccl.BACKEND}
CASES = list(itertools.product(AXES, BACKENDS, (0, 1)))
PATIENCE_SECONDS = 280.0


def choose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks take a backend; skipped where it cannot be built."""
    if name == "nccl":
        if reason := like_nccl.why_not():
            pytest.skip(reason)
        like_nccl.build()
    monkeypatch.setenv(BACKEND_VARIABLE, BACKENDS[name])


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Sessions of one fork server."""
    with Session(tmp_path_factory.mktemp("home")) as session:
        yield session


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("axis", "name", "rank"), CASES)
def test_the_rank_that_ran_out_is_named_and_its_peers_are_not_waited_for(
    warm: Session, monkeypatch: pytest.MonkeyPatch, axis: str, name: str, rank: int
) -> None:
    """The steps' patience is a minute: a run that waited for it would be a hang."""
    choose(name, monkeypatch)
    outcome, summary = execute(warm, large(**AXES[axis]), on_start=Starving(rank))
    assert (outcome.ending, outcome.rank) == (Ending.OOM, rank), outcome
    assert outcome.phase in ("forward", "backward", "optimizer", "communication_exposed", "bubble", "data")
    assert summary.losses


def test_a_rank_whose_receives_are_pending_reports_before_its_group_is_torn_down(
    warm: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stage waits for gradients that the second one, in want of its activations, never makes."""
    test_the_rank_that_ran_out_is_named_and_its_peers_are_not_waited_for(warm, monkeypatch, "pp", "nccl", 0)


@pytest.mark.drawn(1, of="failures under torchrun")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("axis", "name", "rank"), CASES)
def test_under_torchrun_rank_0_writes_which_rank_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axis: str, name: str, rank: int
) -> None:
    choose(name, monkeypatch)
    out = tmp_path / "runs"
    when_there(out, Starving(rank))
    with on_one_host(large(**AXES[axis]), out) as process:
        said = process.communicate(timeout=PATIENCE_SECONDS)[0]
        assert process.returncode == 1
    (folder,) = out.glob("*-*-*")
    status: dict[str, Any] = run_folder.read_json(folder / run_folder.STATUS) or {}
    assert status["state"] == "ended", said
    assert (status["outcome"]["ending"], status["outcome"]["rank"]) == ("oom", rank), said
    told = [json.loads(line) for line in said.splitlines() if line.startswith('{"run"')]
    assert [(one["run"], one["outcome"]) for one in told] == [(folder.name, "oom")]
    assert (run_folder.read_json(folder / run_folder.SUMMARY) or {})["losses"] == told[0]["losses"] != []


def test_under_torchrun_a_rank_without_memory_may_have_some_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else telling of it fails as well, and the run ends without an ending."""

    def starve(*_: object) -> bool:
        raise MemoryError

    monkeypatch.setattr(torchrun, "train_in_group", starve)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 44, hard))
    try:
        report = torchrun._train(0, tiny(), tmp_path, torch.device("cpu"), Progress(tmp_path, 2))
        assert report.ending is Ending.OOM
        assert resource.getrlimit(resource.RLIMIT_DATA) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@pytest.mark.drawn(1, of="failures under torchrun")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["gloo", "nccl"])
def test_under_torchrun_a_rank_that_dies_without_a_word_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Not the one that is left, which loses a connection, or with NCCL waits until torchrun ends it."""
    choose(name, monkeypatch)
    out = tmp_path / "runs"
    with on_one_host(tiny(), out) as process:
        folder = at_step(out, 3)
        os.kill(progress.read(folder)[1].pid, signal.SIGKILL)
        said = process.communicate(timeout=PATIENCE_SECONDS)[0]
        assert process.returncode == 1
    outcome = (run_folder.read_json(folder / run_folder.STATUS) or {}).get("outcome") or {}
    assert (outcome.get("ending"), outcome.get("rank"), outcome.get("reason")) == (
        "crashed", 1, "rank 1 died without a report"
    ), said  # fmt: skip
