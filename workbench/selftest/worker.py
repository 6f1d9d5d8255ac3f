"""A check's own process: what it is asked comes in a file, its verdict goes into another one beside it."""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

from engine.config.errors import WorkbenchError
from engine.run import run_folder
from engine.run.processes import die_with
from workbench.selftest.check_context import CheckContext
from workbench.selftest.results import Verdict, make_failure, not_possible

REQUEST, ANSWER = "request.json", "answer.json"


def main(scratch: Path) -> None:
    """Run the check that a scratch folder asks for; whatever it does becomes a verdict."""
    die_with(sys.stdin.fileno())
    request = run_folder.read_json(scratch / REQUEST) or {}
    try:
        verdict = judge(request, scratch)
    except WorkbenchError as error:
        verdict = make_failure(str(error))
    except Exception as error:
        traceback.print_exc()
        verdict = make_failure(f"{type(error).__name__}: {error}")
    run_folder.write_json(scratch / ANSWER, asdict(verdict))


def judge(request: dict[str, Any], scratch: Path) -> Verdict:
    """Whether it is possible, and what it finds."""
    bench = CheckContext(request["device"], request["ranks"], scratch)
    missing = import_function(request["needs"])(bench)
    if missing is not None:
        return not_possible(missing)
    verdict: Verdict = import_function(request["function"])(bench)
    return verdict


def name_of(function: Any) -> str:
    """By which :func:`import_function` finds it."""
    return f"{function.__module__}:{function.__qualname__}"


def import_function(name: str) -> Any:
    """A function by its module and name."""
    module, _, path = name.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
