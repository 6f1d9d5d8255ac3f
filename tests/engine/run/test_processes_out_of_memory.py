"""Want of memory is known by its many names, and by a thread that found no room for its stack."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from engine.rank.worker import ending_of_exception
from engine.run import processes
from engine.run.outcome import Ending


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Got the following error when running the callback: MemoryError: <EMPTY MESSAGE>"),
    ],
)
def test_its_many_names(error: BaseException) -> None:
    assert ending_of_exception(error) is Ending.OOM


def test_what_a_linker_says_before_it_gives_up() -> None:
    words = "python: error while loading shared libraries: libm.so.6: failed to map segment: Cannot allocate memory"
    assert Ending.OOM.is_named_in(words)
    assert not Ending.OOM.is_named_in("RuntimeError: shape mismatch")


def test_a_thread_without_room_is_one_only_under_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmData:\t  102400 kB\n")
    monkeypatch.setattr(processes, "_STATUS", tmp_path / "status")
    no_thread = RuntimeError("can't start new thread")
    for limit, ending in (
        (resource.RLIM_INFINITY, Ending.CRASHED),
        (104 << 20, Ending.OOM),
        (1 << 30, Ending.CRASHED),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, resource.RLIM_INFINITY))
        assert ending_of_exception(no_thread) is ending
    monkeypatch.setattr(resource, "getrlimit", lambda which: (104 << 20, resource.RLIM_INFINITY))
    assert ending_of_exception(RuntimeError("Resource temporarily unavailable")) is Ending.OOM
    assert ending_of_exception(RuntimeError("something else")) is Ending.CRASHED
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert ending_of_exception(no_thread, 104 << 20) is Ending.OOM, (
        "the limit is lifted before the error is told"
    )
    assert ending_of_exception(no_thread) is Ending.CRASHED
