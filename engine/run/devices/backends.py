"""Process-group backends that others bring: ``WORKBENCH_BACKEND=MODULE:NAME`` is taken by CPU ranks in place of gloo.

A rank imports the module, which registers the backend (``torch.distributed.Backend.register_backend``). No torch here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

from engine.config.errors import InputError

VARIABLE = "WORKBENCH_BACKEND"


def of_cpu_ranks() -> str:
    """``gloo``, or the one that the environment asks for.

    Raises:
        InputError: it names no module, or one that is not there.
    """
    asked = os.environ.get(VARIABLE)
    if not asked:
        return "gloo"
    module, colon, name = asked.partition(":")
    if not (module and colon and name):
        raise InputError(
            VARIABLE, asked, "must be MODULE:NAME, a module that registers the backend of that name"
        )
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise InputError(VARIABLE, asked, f"there is no module {module}; install it or set PYTHONPATH")
    return asked


def load(backend: str) -> str:
    """What torch calls a backend, in a rank: after its module was imported, if it has one."""
    module, _, name = backend.rpartition(":")
    if module:
        importlib.import_module(module)
    return name
