"""What one package hands to another has a type: a ``dict[str, Any]`` crosses a border only where its keys are data."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGES = ("profilers", "engine", "tuning", "workbench")
ROOT = Path(__file__).parents[1]
#: By function, why what it takes or returns has no type of its own.
UNTYPED = {
    **dict.fromkeys(
        (
            "engine.config.environment.requested_settings",
            "engine.config.knobs.catalogue.arithmetic",
            "engine.config.knobs.catalogue.exact_changes",
            "engine.config.knobs.catalogue.lossy",
            "engine.config.knobs.catalogue.baseline_values",
            "engine.config.run_config.flatten",
            "engine.config.validation.live_changes.change_config",
            "tuning.space.knobs.parse_space",
            "tuning.storage.commands.send",
        ),
        "keys are knobs, as people and files name them",
    ),
    **dict.fromkeys(
        (
            "engine.run.run_folder.read_json",
            "engine.run.run_folder.write_json",
            "tuning.spec.trainers.sweep.study_of_sweep",
            "tuning.storage.study_folder.parts",
        ),
        "any JSON document, as a file has it: a type of its own takes it up",
    ),
    "profilers.torch_private.allocator_snapshot": "written to a file for other tools as torch tells it",
}


def test_no_untyped_document_crosses_a_border() -> None:
    trees = {
        path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    untyped = {
        f"{_module(path)}.{node.name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and _is_untyped(node)
    }
    crossing = {
        name
        for path, tree in trees.items()
        for name in _called(tree) & untyped
        if name.partition(".")[0] != path.parts[0]
    }
    assert crossing == set(UNTYPED)


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _is_untyped(function: ast.FunctionDef) -> bool:
    said = f"{ast.unparse(function.args)} {ast.unparse(function.returns) if function.returns else ''}"
    return "dict[str, Any]" in said or "Document" in said.replace("StudyDocument", "")


def _called(tree: ast.Module) -> set[str]:
    """Full names of the functions of our packages that a file calls."""
    names = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    found = set()
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Name) and function.id in names:
            found.add(names[function.id])
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            found.add(f"{names.get(function.value.id, '')}.{function.attr}")
    return found
