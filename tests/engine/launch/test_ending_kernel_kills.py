"""Whether the kernel killed a process for want of memory: its log decides, then its count."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.launch import ending

LOG = (
    "3,1,2,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
    "3,2,3,-;Memory cgroup out of memory: Killed process 17625 (python) total-vm:1936028kB, UID:0\n"
)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel that killed one process, in the first namespace of processes."""
    (tmp_path / "vmstat").write_text("nr_free_pages 7\noom_kill 1\n")
    (tmp_path / "kmsg").write_text(LOG)
    monkeypatch.setattr(ending, "_COUNTS", tmp_path / "vmstat")
    monkeypatch.setattr(ending, "_LOG", tmp_path / "kmsg")
    monkeypatch.setattr(ending, "_FIRST_NAMESPACE", str(Path("/proc/self/ns/pid").readlink()))
    return tmp_path


def test_the_log_names_the_process(kernel: Path) -> None:
    assert ending.was_killed(17625, before=0)
    assert not ending.was_killed(17626, before=0)  # another one's memory, and a signal from somebody


def test_without_a_new_kill_nothing_was_killed(kernel: Path) -> None:
    assert ending.count() == 1
    assert not ending.was_killed(17625, before=1)


def test_where_the_log_cannot_be_read_the_count_decides(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernel / "kmsg").write_text("")
    assert ending.was_killed(17626, before=0)
    (kernel / "kmsg").unlink()
    assert ending.was_killed(17626, before=0)
    monkeypatch.setattr(ending, "_FIRST_NAMESPACE", "another one")
    assert ending.was_killed(17626, before=0)


def test_a_kernel_that_does_not_count(kernel: Path) -> None:
    (kernel / "vmstat").unlink()
    assert ending.count() == 0
    assert not ending.was_killed(17625, before=0)
