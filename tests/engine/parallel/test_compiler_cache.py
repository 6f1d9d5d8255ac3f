"""Compiled runs after a compiler was killed: what it left in torch's cache is found, and nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from torch.utils._filelock import FileLock

from engine.parallel import compiler_cache
from profilers import torch_private
from tests.support.waiting import wait_until

KEY = "cabcdefgh"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own; what torch keeps beside it for everybody, too."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "shared"))
    (tmp_path / "cache" / "ab").mkdir(parents=True)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared library as a compiler makes it."""
    made = tmp_path_factory.mktemp("library") / "one.so"
    source = "extern int one() { return 1; }"
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made)]
    subprocess.run(command, input=source, text=True, check=True)
    return made.read_bytes()


@needs_compiler
@pytest.mark.parametrize("end", [".main.so", ".so", ".main.o"])
def test_a_library_that_is_not_whole_is_removed(cache: Path, library: bytes, end: str) -> None:
    path = cache / "ab" / (KEY + end)
    for contents in (b"", library[:40], library[: len(library) // 2], library[:-1], bytes(len(library))):
        path.write_bytes(contents)
        assert compiler_cache.remove_broken_entries() == 1
        assert not path.exists()
    path.write_bytes(library)
    assert compiler_cache.remove_broken_entries() == 0
    assert path.read_bytes() == library


@needs_compiler
def test_what_a_compiler_was_working_on_is_removed(cache: Path, library: bytes) -> None:
    """Its folder tells; of a precompiled header nothing else does."""
    headers = Path(torch_private.compiled_code_folders()[1]) / "precompiled_headers"
    for folder, name in ((cache / "ab", f"{KEY}.main.so"), (headers, f"{KEY}.h.gch")):
        folder.mkdir(parents=True, exist_ok=True)
        source, other = folder / f"{KEY}.cpp", folder / f"other{Path(name).suffix}"
        for path in (folder / name, source, other):
            path.write_bytes(library)
        (folder / f"{Path(name).stem}_CxxBuild").mkdir()
        assert compiler_cache.remove_broken_entries() == 1
        assert sorted(folder.glob("*.*")) == sorted([source, other])
        assert not list(folder.glob("*_CxxBuild"))
        assert compiler_cache.remove_broken_entries() == 0


@needs_compiler
def test_what_is_being_written_stays(cache: Path, library: bytes) -> None:
    path, lock = cache / "ab" / f"{KEY}.main.so", cache / "locks" / f"{KEY}.lock"
    lock.parent.mkdir()
    path.write_bytes(library[:100])
    removed: list[int] = []
    other = threading.Thread(target=lambda: removed.append(compiler_cache.remove_broken_entries()))
    with FileLock(str(lock)):
        other.start()
        other.join(0.5)
        assert other.is_alive(), "it waits for the compiler"
        path.write_bytes(library)
    other.join()
    assert removed == [0]
    assert path.read_bytes() == library


#: g++ that, while a file named stall is there, stops with a kernel's library opened and nothing written, as a linker
#: in its first moment.
COMPILER = """#!/bin/sh
for word; do
  case "$word" in *.main.so) [ -e "{stall}" ] && : > "$word" && exec sleep 600 ;; esac
done
exec g++ "$@"
"""
CONTROLLER = """
import json
import sys
from pathlib import Path
from engine.session import Session
from tests.support.runs import execute, small
if __name__ == "__main__":
    values = {"compile": True, "parallel__dp": 2, "model__layers": 1, "train__step_timeout_seconds": 110.0}
    with Session(Path(sys.argv[1])) as session:
        outcome, summary = execute(session, small(**values))
    print(json.dumps([outcome.good, outcome.reason, summary.notes, len(summary.losses)]))
"""


def start(folder: Path, compiler: Path) -> subprocess.Popen[str]:
    """A compiled run of two ranks, in a process group and with a cache of its own."""
    (folder / "controller.py").write_text(CONTROLLER)
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "CXX": str(compiler)}
    own |= {"PYTHONPATH": os.pathsep.join(sys.path), "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    command = [sys.executable, str(folder / "controller.py"), str(folder / "home")]
    return subprocess.Popen(
        command, env=os.environ | own, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def result(run: subprocess.Popen[str]) -> list[Any]:
    out, _ = run.communicate(timeout=110)
    answer: list[Any] = json.loads(out.splitlines()[-1])
    return answer


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_after_one_that_was_killed_while_it_compiled(tmp_path: Path) -> None:
    compiler, stall = tmp_path / "compiler", tmp_path / "stall"
    compiler.write_text(COMPILER.format(stall=stall))
    compiler.chmod(0o755)
    stall.touch()
    killed = start(tmp_path, compiler)
    try:
        assert wait_until(lambda: list((tmp_path / "cache").glob("*/*.main.so")) != [], 100)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    left = list((tmp_path / "cache").glob("*/*.main.so"))
    assert [path.stat().st_size for path in left] == [0] * len(left)
    stall.unlink()
    good, reason, notes, steps = result(start(tmp_path, compiler))
    assert (good, reason, steps) == (True, "", 3)
    assert len([note for note in notes if "compiler had been killed" in note]) == 1
    again = result(start(tmp_path, compiler))
    assert again == [True, "", [], 3]


@pytest.mark.drawn(1, of="compiled code")
def test_without_a_compiler_a_compiled_run_says_so(tmp_path: Path) -> None:
    good, reason, _, _ = result(start(tmp_path, tmp_path / "absent"))
    assert not good
    assert "compiler" in reason
    assert "\n" not in reason
