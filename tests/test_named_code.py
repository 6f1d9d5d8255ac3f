"""Entries that name code by text, because it is loaded only when it is needed: what they name is there.

Entries are read without torch and checked when a configuration is; without these tests one that names nothing would
end the run that uses it first.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.methods.outer_methods import OUTER_METHODS
from engine.config.presets import SHIPPED
from tuning.spec.sampler_choice import SAMPLERS
from workbench.pages import navigation

ROOT = Path(__file__).parents[1]
PACKAGES = ("profilers", "engine", "tuning", "workbench")
#: A module of this project, or one with a name in it.
MODULE = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+(?::[\w.]+)?")


def named_by_entries() -> Iterator[tuple[str, str]]:
    """Each entry, and the ``module:function`` that it names."""
    for name, method in COMPRESSION_METHODS.items():
        for function in filter(None, (method.build, method.errors)):
            yield f"compression method {name}", f"{method.module}:{function}"
        if method.torch_hook is not None:
            hooks = "torch.distributed.algorithms.ddp_comm_hooks"
            yield f"torch's hook of {name}", f"{hooks}.{method.torch_hook.module}:{method.torch_hook.name}"
    for name, outer in OUTER_METHODS.items():
        yield f"outer method {name}", f"{outer.module}:{outer.build}"
    for sampler in SAMPLERS:
        yield f"sampler {sampler.name}", sampler.build
    for name, workload in SHIPPED.items():
        yield f"workload {name}", f"{workload.module}:workload"


def named_anywhere() -> Iterator[tuple[str, str]]:
    """Each text in the code that is a module of this project, with the file that has it."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and MODULE.fullmatch(node.value)
                ):
                    yield file.relative_to(ROOT).as_posix(), node.value


def problem(named: str) -> str:
    """What is wrong with ``module`` or ``module:function``; nothing if it is there."""
    module, _, path = named.partition(":")
    try:
        found: object = importlib.import_module(module)
        for name in filter(None, path.split(".")):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        return f"{named}: {error}"
    return "" if callable(found) or not path else f"{named}: no function"


@pytest.mark.parametrize(("entry", "named"), list(named_by_entries()))
def test_what_an_entry_names_is_there(entry: str, named: str) -> None:
    assert problem(named) == "", entry


def test_every_module_that_the_code_names_is_there() -> None:
    found = dict.fromkeys(named_anywhere())
    assert {"engine.compression.methods.cast", "engine.dry_run.rank:build"} <= {named for _, named in found}
    assert {f"{file}: {text}" for file, named in found if (text := problem(named))} == set()


@pytest.mark.parametrize("named", ["engine.compression.methods.gone", "tuning.sampling.samplers:gone"])
def test_what_is_not_there_is_noticed(named: str) -> None:
    assert "gone" in problem(named)


def test_every_page_has_its_file() -> None:
    folder = ROOT / "workbench" / "pages"
    assert [page.file for page in navigation.ENTRIES if not (folder / page.file).is_file()] == []
