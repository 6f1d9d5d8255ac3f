"""Environment variables of a run: the checked list, and what they do to real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from engine.config import environment
from engine.config.environment import VARIABLES, Environment
from engine.config.errors import InputError, LayoutError
from engine.config.run_config import RunConfig, parse
from engine.config.validation.rules import check
from engine.launch.workers import ForkServers
from engine.rank import environment_report
from engine.run import run_folder
from engine.session import Session
from profilers.model.environment import ASKED, NO, UNTOLD, YES, environment_rows
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from tests.support.runs import execute, small

MIB = 2**20
#: Threads that share cores with other work make small operators slow: as few as there can be.
TINY = {"model__layers": 1, "data__sequence_length": 16, "train__steps": 2, "train__validation_batches": 0}


@pytest.mark.parametrize(
    ("values", "field", "remedy"),
    [
        ({"NCL_ALGO": "Ring"}, "environment.NCL_ALGO", "unknown key; known here: NCCL_ALGO"),
        ({"NCCL_ALGO": "Star"}, "environment.NCCL_ALGO", "'Ring', 'Tree'"),
        ({"OMP_NUM_THREADS": "2"}, "environment.OMP_NUM_THREADS", "whole number"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, "environment.GLOO_SOCKET_IFNAME", "unknown key"),
    ],
)
def test_what_is_not_on_the_list_is_refused(values: dict[str, object], field: str, remedy: str) -> None:
    with pytest.raises(InputError) as refused:
        parse({"environment": values})
    assert (refused.value.field, remedy in refused.value.remedy) == (field, True), refused.value


@pytest.mark.parametrize(
    "values",
    [
        {"NCCL_MIN_CTAS": 8, "NCCL_MAX_CTAS": 4},
        {"NCCL_P2P_DISABLE": True, "NCCL_P2P_LEVEL": "NVL"},
        {"NCCL_SOCKET_NTHREADS": 16, "NCCL_NSOCKS_PERTHREAD": 8},
    ],
)
def test_what_contradicts_itself_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(LayoutError, match=r"environment\.NCCL_"):
        check(parse({"environment": values}))


def test_every_setting_has_a_source() -> None:
    assert all(
        known.source.startswith("https://") and known.effect and known.since for known in VARIABLES.values()
    )


def test_values_become_variables() -> None:
    given = {
        "OMP_NUM_THREADS": 2, "NCCL_P2P_DISABLE": True, "allocator_max_split_size_mb": 64,
        "allocator_expandable_segments": True, "allocator_garbage_collection_threshold": 0.8,
    }  # fmt: skip
    asked = Environment.model_validate(given)
    found = environment.variables(asked)
    text = "max_split_size_mb:64,expandable_segments:True,garbage_collection_threshold:0.8"
    assert found == {"OMP_NUM_THREADS": "2", "NCCL_P2P_DISABLE": "1", "PYTORCH_ALLOC_CONF": text}
    assert environment.process_value("allocator_expandable_segments", found) == "True"
    assert environment.process_value("allocator_roundup_power2_divisions", found) is None
    assert environment.variables(asked, at_start=True) == {}
    assert environment.variables(Environment(MALLOC_ARENA_MAX=2), at_start=True) == {"MALLOC_ARENA_MAX": "2"}


def test_nccl_logs_what_it_reads_where_it_is_turned() -> None:
    assert environment.rank_variables(Environment(OMP_NUM_THREADS=1), {}) == {"OMP_NUM_THREADS": "1"}
    quiet = environment.rank_variables(Environment(NCCL_NTHREADS=64), {})
    assert (quiet["NCCL_DEBUG"], quiet["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,ENV")
    assert (
        environment.rank_variables(Environment(NCCL_ALGO="Ring"), {})["NCCL_DEBUG_SUBSYS"]
        == "INIT,ENV,TUNING"
    )
    assert "NCCL_DEBUG" not in environment.rank_variables(
        Environment(NCCL_ALGO="Ring"), {"NCCL_DEBUG": "WARN"}
    )


def test_an_older_name_of_a_variable_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:32")
    environment.take({"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ


def test_only_what_is_set_is_kept_in_a_file() -> None:
    assert '"environment": {}' in RunConfig().dumps()
    config = parse({"environment": {"OMP_NUM_THREADS": 2}})
    assert '"OMP_NUM_THREADS": 2\n  }' in config.dumps()
    assert config.flat()["environment.NCCL_ALGO"] is None


def test_the_gpu_allocator_is_compared_with_its_own_settings() -> None:
    known = {
        "max_split_size": 64 * MIB, "expandable_segments": False, "garbage_collection_threshold": 0.8,
        "roundup_power2_divisions": {"1": 4, "2": 4},
    }  # fmt: skip
    told = {
        name: environment_report.allocator_proof(f"allocator_{name}", asked, known).proven
        for name, asked in {
            "max_split_size_mb": 64, "expandable_segments": True, "garbage_collection_threshold": 0.8,
            "roundup_power2_divisions": 4,
        }.items()
    }  # fmt: skip
    assert list(told.values()) == [YES, NO, YES, YES]
    assert environment_report.allocator_proof("allocator_max_split_size_mb", 64, {}).proven == UNTOLD


def test_a_rank_that_ended_early_says_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    with RecordWriter(tmp_path, "rank-0") as writer:
        environment_report.note_asked(Environment(NCCL_ALGO="Ring"), writer)
    with RecordWriter(tmp_path, "rank-1") as writer:
        writer.event(ASKED, rows="from a later version")
    (row,) = environment_rows(RunRecords(tmp_path))
    assert (row.asked, row.seen, row.proven, row.ranks) == ("Ring", "Tree", NO, [0])


def test_a_change_of_environment_is_a_change_of_ranks(tmp_path: Path) -> None:
    pids: list[int] = []
    with Session(tmp_path) as session:
        for threads in (1, 1, 2, 1):
            outcome, summary = execute(session, small(**TINY, environment__OMP_NUM_THREADS=threads))
            assert outcome.good, outcome
            (row,) = summary.environment
            assert (row.seen, row.used, row.proven) == (str(threads), str(threads), YES)
            pids += (run_folder.read_json(tmp_path / summary.id / run_folder.STATUS) or {})["rank_pids"]
    assert pids[0] == pids[1]
    assert len(set(pids)) == 3
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_malloc_has_what_it_reads_at_its_start(session: Session) -> None:
    before = dict(os.environ)
    asked = {"environment__MALLOC_ARENA_MAX": 2, "environment__MALLOC_MMAP_THRESHOLD_": MIB}
    outcome, summary = execute(session, small(parallel__dp=2, **TINY, **asked))
    assert outcome.good, outcome
    assert [(row.name, row.proven, row.ranks) for row in summary.environment] == [
        ("MALLOC_ARENA_MAX", YES, [0, 1]),
        ("MALLOC_MMAP_THRESHOLD_", YES, [0, 1]),
    ]
    assert dict(os.environ) == before


def test_servers_with_variables_of_their_own_end_with_the_pool() -> None:
    servers, begun = ForkServers(), time.monotonic()
    process = servers.start(time.sleep, (60.0,), {"MALLOC_ARENA_MAX": "2"})
    assert process.pid is not None
    parent = psutil.Process(process.pid).parent()
    assert parent is not None
    assert psutil.Process(process.pid).environ()["MALLOC_ARENA_MAX"] == "2"
    assert "MALLOC_ARENA_MAX" not in os.environ
    process.kill()
    process.join()
    servers.close()
    assert not parent.is_running()
    assert time.monotonic() - begun < 60


TRIES = (
    "from engine.run import processes as malloc; "
    "print(malloc.prove_mmap_threshold(1 << 20).proven, malloc.arenas(2).proven)"
)


def test_malloc_is_not_believed_without_its_variables() -> None:
    found = subprocess.run([sys.executable, "-c", TRIES], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [NO, NO]


def test_nccl_settings_on_gloo_are_told_to_be_without_effect(session: Session) -> None:
    outcome, summary = execute(session, small(parallel__dp=2, **TINY, environment__NCCL_ALGO="Ring"))
    (row,) = summary.environment
    assert outcome.good
    assert (row.seen, row.proven, "gloo" in row.how) == ("Ring", NO, True)


@pytest.mark.gpu
def test_the_gpu_allocator_takes_its_settings(session: Session) -> None:
    asked = {
        "environment__allocator_expandable_segments": True,
        "environment__allocator_max_split_size_mb": 64,
    }
    outcome, summary = execute(session, small(device="cuda", **asked))
    assert outcome.good, outcome
    assert {row.proven for row in summary.environment} == {YES}
    _, plain = execute(session, small(device="cuda"))
    assert plain.environment == []


@pytest.mark.gpu
def test_nccl_takes_its_settings(session: Session) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL talks between two GPUs")
    for algorithm in ("Ring", "Tree"):
        asked = {"environment__NCCL_ALGO": algorithm, "environment__NCCL_MAX_CTAS": 2}
        outcome, summary = execute(session, small(device="cuda", parallel__dp=2, **asked))
        assert outcome.good, outcome
        assert {row.name: row.proven for row in summary.environment} == {
            "NCCL_ALGO": YES,
            "NCCL_MAX_CTAS": YES,
        }


_INFO = "gpu01:4242:4301 [0] NCCL INFO "
#: NCCL caches what it read: in a process's second run it logs the algorithm alone again, of each communicator.
_READ = f"{_INFO}NCCL_BUFFSIZE set by environment to 1048576.\n"
_AGAIN = f"{_INFO}NCCL_ALGO set by environment to Ring\n"
_CHOICE = f"{_INFO}AllReduce: 4096 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}\n"


@pytest.fixture
def on_nccl(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A process with variables that NCCL takes, between two ranks."""
    asked = Environment(NCCL_BUFFSIZE=1 << 20, NCCL_ALGO="Ring")
    for name, value in environment.requested_settings(asked).items():
        monkeypatch.setenv(name, environment.text_of(name, value))
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr(environment_report, "_SAID", [])
    return asked


def _proven(folder: Path, asked: Environment, logs: list[str]) -> dict[str, tuple[str, list[int]]]:
    """What a run says of each variable whose ranks logged this."""
    for rank, text in enumerate(logs):
        log = folder / f"rank-{rank}.log"
        folder.mkdir(exist_ok=True)
        log.write_text(text)
        with RecordWriter(folder, f"rank-{rank}") as writer:
            environment_report.note(asked, torch.device("cuda"), log, writer)
    rows = environment_rows(RunRecords(folder))
    return {row.name: (row.proven, row.ranks) for row in rows}


def test_what_nccl_read_in_a_process_first_run_counts_in_the_second(
    tmp_path: Path, on_nccl: Environment
) -> None:
    wanted = {"NCCL_BUFFSIZE": (YES, [0]), "NCCL_ALGO": (YES, [0])}
    assert _proven(tmp_path / "first", on_nccl, [_READ + _AGAIN + _CHOICE]) == wanted
    assert _proven(tmp_path / "second", on_nccl, [_AGAIN + _CHOICE]) == wanted


def test_of_choices_the_rank_counts_that_logs_them(tmp_path: Path, on_nccl: Environment) -> None:
    both = _READ + _AGAIN
    assert _proven(tmp_path / "run", on_nccl, [both + _CHOICE, both])["NCCL_ALGO"] == (YES, [0])
    assert _proven(tmp_path / "untold", on_nccl, [both, both])["NCCL_ALGO"] == (UNTOLD, [0, 1])
    other = _CHOICE.replace("RING", "TREE")
    assert _proven(tmp_path / "other", on_nccl, [both + other, both])["NCCL_ALGO"] == (NO, [0])
