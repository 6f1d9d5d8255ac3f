"""What one package hands to another without saying what is in it: public names whose types have ``dict[str, Any]``."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

BARE = "dict[str, Any]"
#: Gives the document of ``--json`` or of a file: its keys are for other programs.
AS_JSON = "as_dict"
#: Names for ``dict[str, Any]`` that say what its keys and values are, since these are data.
NAMED = (
    "engine.config.sections.ConfigTree",
    "engine.config.sections.KnobValues",
    "engine.run.run_folder.JsonDocument",
    "profilers.records.schema.EventData",
    "profilers.trace.chrome.TraceArguments",
    "profilers.trace.chrome.TraceEvent",
    "tuning.space.knobs.KnobLimits",
    "tuning.storage.commands.Arguments",
    "tuning.storage.state.Line",
    "tuning.storage.state.StudyChanges",
)


class _Module(NamedTuple):
    name: str
    tree: ast.Module
    #: What its names stand for: full names of what it imports, and of the aliases in it.
    names: dict[str, str]


def bare(root: Path, packages: Iterable[str], named: Collection[str] = NAMED) -> set[str]:
    """Full names of what one of the packages in this folder has and a file of another one imports, by itself or as an
    attribute of its module: functions, annotated values, and of classes fields and public methods, whose types have
    ``dict[str, Any]``, or an alias of it that is not ``named``.
    """
    modules = [_parse(path, root) for package in packages for path in sorted((root / package).rglob("*.py"))]
    aliases = {
        f"{module.name}.{_name(node)}" for module in modules for node in module.tree.body if _is_alias(node)
    }
    unnamed, found = aliases - set(named), set[str]()
    used = {module.name: set(_used(module)) for module in modules}
    for module in modules:
        package = module.name.partition(".")[0]
        abroad = set[str]().union(
            *(names for user, names in used.items() if user.partition(".")[0] != package)
        )
        for node in module.tree.body:
            if f"{module.name}.{_name(node)}" in abroad:
                found |= {f"{module.name}.{name}" for name in _untyped(node, module.names, unnamed)}
    return found


def _parse(path: Path, root: Path) -> _Module:
    module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    tree, names = ast.parse(path.read_bytes()), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
    names |= {_name(node): f"{module}.{_name(node)}" for node in tree.body if _is_alias(node)}
    return _Module(module, tree, names)


def _used(module: _Module) -> Iterator[str]:
    """Full names that a file imports, and the attributes that it takes of the modules among them."""
    yield from module.names.values()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            yield _full_name(node, module.names)


def _full_name(node: ast.AST, names: Mapping[str, str]) -> str:
    """Of a name, or of attributes of one; empty of anything else."""
    if isinstance(node, ast.Attribute):
        whole = _full_name(node.value, names)
        return f"{whole}.{node.attr}" if whole else ""
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return next((target.id for target in targets if isinstance(target, ast.Name)), "")


def _is_alias(node: ast.stmt) -> bool:
    """Whether a statement gives a type with ``dict[str, Any]`` in it another name."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return isinstance(value, ast.Subscript | ast.BinOp) and BARE in ast.unparse(value)


def _untyped(
    node: ast.stmt, names: Mapping[str, str], unnamed: Collection[str], within: str = ""
) -> Iterator[str]:
    """Names of a function, of an annotated value, or of the public parts of a class."""
    name, types = within + _name(node), list[ast.AST]()
    if isinstance(node, ast.ClassDef):
        for part in node.body:
            if _name(part) == "__init__" or not _name(part).startswith("_"):
                yield from _untyped(part, names, unnamed, f"{name}.")
    elif isinstance(node, ast.AnnAssign):
        types = [node.annotation]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.endswith(AS_JSON):
        types = [node.args, *([node.returns] if node.returns else [])]
    if any(_is_bare(part, names, unnamed) for whole in types for part in ast.walk(whole)):
        yield name


def _is_bare(node: ast.AST, names: Mapping[str, str], unnamed: Collection[str]) -> bool:
    if isinstance(node, ast.Subscript):
        return ast.unparse(node) == BARE
    return isinstance(node, ast.Name | ast.Attribute) and _full_name(node, names) in unnamed
