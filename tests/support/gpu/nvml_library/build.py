"""Builds the library with this machine's C compiler, once for each state of its source and branch of the driver."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent
NAME = "libnvidia-ml.so.1"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
WHY_NONE = (
    None if COMPILER else "no C compiler on this machine (cc, gcc or clang) to build a libnvidia-ml.so.1"
)
_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread",
          "-Wl,-Bsymbolic", f"-Wl,-soname,{NAME}")  # fmt: skip


def folder(branch: int) -> Path:
    """The folder that holds the library of a driver's branch, such as 570, for LD_LIBRARY_PATH."""
    sources = sorted(SOURCE.glob("*.c"))
    command = [str(COMPILER), *_FLAGS, f"-DNVML_DRIVER={branch}", *map(str, sources), "-o"]
    read = b"".join(file.read_bytes() for file in [*sources, *SOURCE.glob("*.h")])
    digest = hashlib.sha256(read + " ".join(command).encode()).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"workbench-tests-{os.getuid()}" / f"nvml-{branch}-{digest}"
    if not (kept / NAME).exists():
        kept.mkdir(parents=True, exist_ok=True)
        # Several tests may build at once: each its own file, and the last one renamed stays.
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            made = Path(scratch) / NAME
            subprocess.run([*command, str(made)], check=True)
            made.replace(kept / NAME)
    return kept
