"""Finds ROCm's management library and its Python module, or says in one line why there is none."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import Any

_LIBRARY = "libamd_smi.so"


class NoAmdSmiError(Exception):
    """Why AMD SMI cannot be used, in one line."""


def load() -> Any:
    """The module amdsmi.

    Without ROCm's library its import prints two lines and ends in a KeyError, OSError or AttributeError, so the
    library is looked for first.

    Raises:
        NoAmdSmiError: no package, no library, or a package of another ROCm.
    """
    spec = importlib.util.find_spec("amdsmi")
    if spec is None:
        raise NoAmdSmiError("the Python package amdsmi is not installed (extra amd, of this machine's ROCm)")
    if not _is_there(Path(spec.origin).parent if spec.origin else Path()):
        raise NoAmdSmiError(f"{_LIBRARY} was not found: install ROCm's amd-smi-lib, or set ROCM_PATH")
    try:
        return importlib.import_module("amdsmi")
    except (ImportError, KeyError, OSError, AttributeError) as error:
        why = f"amdsmi {_version()} does not fit this machine's {_LIBRARY}"
        raise NoAmdSmiError(f"{why} ({_one_line(error)}): install the amdsmi of its ROCm") from error


def _is_there(package: Path) -> bool:
    """In ROCm's folder, beside the package, or wherever the linker looks."""
    roots = {os.environ.get(name) for name in ("ROCM_HOME", "ROCM_PATH")} | {"/opt/rocm"}
    places = [package, *(Path(root) / "lib" for root in roots if root)]
    if any((place / _LIBRARY).is_file() for place in places):
        return True
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def _version() -> str:
    try:
        return importlib.metadata.version("amdsmi")
    except importlib.metadata.PackageNotFoundError:  # ROCm's own copy, on the path
        return "of an unknown version"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
