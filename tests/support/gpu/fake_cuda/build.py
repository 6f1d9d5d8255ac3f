"""Compiles the device guard against the installed torch, once for each torch and source; imports no torch."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.cpp")
_LIBRARIES = ("libc10.so", "libtorch_cpu.so")


def why_not() -> str | None:
    """What this machine lacks to build the guard; None if nothing."""
    if _compiler() is None:
        return "no C++ compiler (g++ or clang++) for the device guard of fake CUDA"
    if not all((_torch() / "lib" / name).exists() for name in _LIBRARIES):
        return f"torch has no {' and '.join(_LIBRARIES)} here"
    return None


def built() -> Path:
    """The guard's library, compiled where that was not done before.

    Raises:
        RuntimeError: it does not compile.
    """
    torch, compiler = _torch(), _compiler()
    assert compiler is not None, why_not()
    version = (torch / "version.py").read_bytes()
    name = hashlib.sha256(SOURCE.read_bytes() + version + str(torch).encode()).hexdigest()[:16]
    library = _cache() / f"fake-cuda-guard-{name}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        partial = library.with_suffix(f".{os.getpid()}")
        include = torch / "include"
        headers = [f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"]
        # The libraries are not linked: the process that loads the guard has loaded them, for all to see.
        command = [
            compiler,
            "-O1",
            "-fPIC",
            "-shared",
            "-std=c++20",
            *headers,
            str(SOURCE),
            "-o",
            str(partial),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode:
            raise RuntimeError(f"{SOURCE.name} does not compile:\n{done.stderr}")
        partial.replace(library)
    return library


def load() -> None:
    """Into this process, which has not imported torch yet: torch looks for CUDA's hooks once, and remembers them."""
    for name in _LIBRARIES:
        ctypes.CDLL(str(_torch() / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(built()), mode=ctypes.RTLD_GLOBAL)


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")


def _torch() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def _cache() -> Path:
    """Where torch's own extension builder would keep it."""
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    return Path(root) if root else Path(tempfile.gettempdir()) / f"fake-cuda-{os.getuid()}"
