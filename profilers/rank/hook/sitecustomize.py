"""Read by every Python of a job under ``workbench run`` as it starts: waits for torch, and passes on to the job's own
file of this name.

It needs nothing but Python (3.7 or newer), does nothing until torch is loaded, and never raises anything of its own.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType

#: The folder of the run; without it nothing is recorded.
FOLDER_VARIABLE = "WORKBENCH_RECORD"
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (pathlib would load a good deal)
_PACKAGE = "profilers"
#: Where that is; nothing else that lies there may come in the way of the job's own packages.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120


class _PackageFinder:
    """Finds this one package, after everything that the job has itself."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [_ROOT]) if name == _PACKAGE else None


class _TorchFinder:
    """Lets torch be found as always, and has its import followed by ours."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            _follow(spec.loader)
        return spec


def _follow(loader: object) -> None:
    """An attribute of this one loader, gone before it is used: its class stays as it is."""
    load = loader.exec_module  # type: ignore[attr-defined]

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # type: ignore[attr-defined]
        load(module)
        _arm()

    loader.exec_module = exec_module  # type: ignore[attr-defined]


def _arm() -> None:
    _leave("torch-seen", "")
    if sys.version_info < (3, 11):  # noqa: UP036  (this file alone is read by older ones)
        _tell(f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old; 3.11 or newer is needed")
        return
    try:
        import_module(_PACKAGE + ".rank.attachment").arm(_tell)
    except Exception as error:  # the job goes on in any case
        _tell(f"{type(error).__name__}: {error}")


def _tell(problem: str) -> None:
    """Why a process is not recorded; the first one counts."""
    _leave("not-recorded", " ".join(f"{sys.executable}: {problem}".split()))


def _leave(name: str, text: str) -> None:
    """A file in the run's folder, unless it is there or the folder is not."""
    path = os.path.join(os.environ.get(FOLDER_VARIABLE, ""), name)  # noqa: PTH118
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError:
        return
    os.write(file, text.encode())
    os.close(file)


def _pass_on() -> None:
    """The job's own ``sitecustomize``, if it has one, as if this folder were not there."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get(FOLDER_VARIABLE):
        sys.meta_path.insert(0, _TorchFinder())
        sys.meta_path.append(_PackageFinder)
    _pass_on()
