"""Child processes are started apart from this one, asked to end, and killed with all of their group if they do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from engine.run import child_process
from tests.support.descriptors import FD_SETSIZE, beyond_select
from tests.support.waiting import wait_until

#: Says what it started, and then hears nothing but SIGKILL.
DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
#: Ends at once, and leaves a process of its group behind.
CARELESS = DEAF.replace("time.sleep(60)\n", "").replace("signal.signal", "#")
#: Ends in good order on SIGTERM.
POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
time.sleep(60)
"""


@contextmanager
def started(script: str, own_session: bool = True) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A child and the line with which it says that it is up."""
    process = child_process.start(
        ["-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, own_session=own_session
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().decode().strip()
        finally:
            child_process.kill(process)


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_one_that_listens_ends_by_itself() -> None:
    with started(POLITE) as (process, _):
        assert child_process.end(process, 30.0)
        assert process.returncode == 7
        assert process.stdin is not None
        assert process.stdin.closed


def test_the_request_may_be_another_signal_or_none() -> None:
    with started(POLITE) as (process, _):
        assert child_process.end(process, 30.0, signal.SIGINT)
        assert process.returncode == -signal.SIGINT
    with started(POLITE) as (process, _):
        assert not child_process.end(process, 0.2, None)
        assert process.returncode == -signal.SIGKILL


def test_one_that_does_not_listen_is_killed_with_its_group() -> None:
    with started(DEAF) as (process, grandchild):
        assert not child_process.end(process, 0.2)
        assert process.returncode == -signal.SIGKILL
        assert wait_until(lambda: gone(int(grandchild)))


def test_one_that_is_stopped_is_killed() -> None:
    with started(POLITE) as (process, _):
        process.send_signal(signal.SIGSTOP)
        assert not child_process.end(process, 0.2)
        assert process.returncode == -signal.SIGKILL


def test_what_an_ended_one_left_in_its_group_is_killed() -> None:
    with started(CARELESS) as (process, grandchild):
        assert process.wait(30.0) == 0
        assert not gone(int(grandchild))
        child_process.kill(process)
        assert wait_until(lambda: gone(int(grandchild)))


def test_without_a_session_of_its_own_it_alone_is_killed() -> None:
    """Its group is this process's."""
    with started(DEAF, own_session=False) as (process, grandchild):
        assert os.getpgid(process.pid) == os.getpgid(0)
        assert not child_process.end(process, 0.2)
        assert not gone(int(grandchild))
        os.kill(int(grandchild), signal.SIGKILL)


def test_one_that_has_ended_is_ended_again_without_harm() -> None:
    with started("print()") as (process, _):
        process.wait(30.0)
        assert child_process.end(process, 0.0)
        child_process.kill(process)
        child_process.kill_group(process.pid)
        assert process.returncode == 0


def test_a_session_of_its_own_streams_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "1")
    script = (
        "import os, sys; leads = os.getsid(0) == os.getpid()\n"
        "print(leads, os.environ['HERE'], os.environ['MORE'], sys.stdin.read())"
    )
    with (tmp_path / "log").open("wb") as output:
        process = child_process.start(["-c", script], stdout=output, stderr=output, variables={"MORE": "2"})
    assert process.wait(30.0) == 0
    assert (tmp_path / "log").read_text() == "True 1 2 \n"


def test_folders_where_somebody_happens_to_be_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    variables = child_process.package_path()
    assert variables["PYTHONPATH"].endswith(f"{os.pathsep}/elsewhere")
    assert child_process.start(["-c", "import engine.run"], variables=variables).wait(30.0) == 0


def test_a_program_that_is_not_there_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(OSError, match="nothing"):
        child_process.start(["-c", ""])


def test_a_pipe_is_readable_once_something_is_in_it_or_its_writer_is_gone() -> None:
    """Whatever its number, which grows with what a process has open."""
    with beyond_select():
        reads, writes = os.pipe()
        assert reads >= FD_SETSIZE
        assert not child_process.readable(reads, 0.0)
        os.write(writes, b"x")
        assert child_process.readable(reads, 60.0)
        os.read(reads, 1)
        assert not child_process.readable(reads, 0.01)
        os.close(writes)
        assert child_process.readable(reads, 60.0)
        os.close(reads)
