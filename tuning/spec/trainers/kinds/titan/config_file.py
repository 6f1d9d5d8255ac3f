"""What a torchtitan command is configured with besides its options: the TOML file of releases up to 0.2, and since then
a recipe, which is a function of Python. Recipes are read as text, and nothing in them runs: what is computed there is
left out.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tuning.spec.trainers.invocation import Invocation

Settings = dict[str, Any]
TOML = "--job.config_file"
#: Of a TOML file that does not say.
_USUAL: Settings = {"training.local_batch_size": 8, "training.seq_len": 2048}
#: Where a module of recipes is looked for, by its short name and by its whole one.
_SHORT = ("torchtitan.models.{}.config_registry", "torchtitan.experiments.{}.config_registry")
_WHOLE = ("{}.config_registry", "{}")
#: Recipes that are made from another one are followed so far.
_DEPTH = 8
_COMPUTED: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
}


def toml_file(command: Invocation) -> str | None:
    """The TOML file that it names, if it does."""
    return command.value(TOML) or (command.variable("CONFIG_FILE") if command.is_shell else None)


def recipe(command: Invocation) -> tuple[str, str] | None:
    """The module and the name of its recipe, if it has one."""
    options = [
        command.options.value(option) or (command.variable(name) if command.is_shell else None)
        for option, name in (("--module", "MODULE"), ("--config", "CONFIG"))
    ]
    module, name = options
    return (module, name) if module and name else None


def settings(command: Invocation) -> Settings:
    """By their dotted names, such as ``training.local_batch_size``; empty where nothing can be read."""
    path = toml_file(command)
    if path is not None:
        return _of_toml(command.directory / path)
    named = recipe(command)
    return _of_recipe(*named, list(_roots(command)), _DEPTH) if named else {}


def _of_toml(path: Path) -> Settings:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return _USUAL | {
        f"{section}.{key}": value
        for section, inner in tree.items()
        if isinstance(inner, dict)
        for key, value in inner.items()
    }


def _roots(command: Invocation) -> Iterator[Path]:
    """Where Python would look for its modules: its folder, PYTHONPATH, and beside the program that is started."""
    yield command.directory
    for entry in (command.variable("PYTHONPATH") or "").split(os.pathsep):
        if entry:
            yield command.directory / entry
    for word in command.launcher.words:
        program = shutil.which(word, path=command.variables.get("PATH"))
        if program is not None:
            yield from sorted(Path(program).parent.parent.glob("lib/python*/site-packages"))


def _of_recipe(module: str, name: str, roots: list[Path], depth: int) -> Settings:
    names = (*_WHOLE, *_SHORT) if "." in module else (*_SHORT, *_WHOLE)
    for root in roots:
        for pattern in names:
            stem = root / pattern.format(module).replace(".", "/")
            for path in (stem.with_suffix(".py"), stem / "__init__.py"):
                tree = _tree(path)
                if tree is not None and _function(tree, name) is not None:
                    return _Recipe(tree, roots, depth).settings(name)
    return {}


def _tree(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    return next(
        (
            statement
            for statement in tree.body
            if isinstance(statement, ast.FunctionDef) and statement.name == name
        ),
        None,
    )


class _Recipe:
    """The recipes of one file."""

    def __init__(self, tree: ast.Module, roots: list[Path], depth: int) -> None:
        self._tree, self._roots, self._depth = tree, roots, depth

    def settings(self, name: str) -> Settings:
        """What a recipe of this file comes to."""
        function = _function(self._tree, name)
        if function is None or self._depth <= 0:
            return {}
        self._depth -= 1
        by_name: dict[str, Settings] = {}
        for node in function.body:
            if isinstance(node, ast.Return):
                return self._value(node.value, by_name)
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], node.value, by_name)
            else:
                _forget(node, by_name)
        return {}

    def _assign(self, target: ast.expr, value: ast.expr, by_name: dict[str, Settings]) -> None:
        name, key = _path(target)
        if not key:
            by_name[name] = self._value(value, by_name)
        elif name in by_name:
            settings = by_name[name]
            for setting in [
                setting for setting in settings if setting == key or setting.startswith(f"{key}.")
            ]:
                del settings[setting]
            settings |= _section(key, value)

    def _value(self, node: ast.expr | None, by_name: dict[str, Settings]) -> Settings:
        """What a name, another recipe, or a call with sections as its keywords stands for."""
        if isinstance(node, ast.Name):
            return by_name.get(node.id, {})
        if not isinstance(node, ast.Call):
            return {}
        if isinstance(node.func, ast.Name):
            if not node.args and not node.keywords:
                return self._other(node.func.id)
            if _function(self._tree, node.func.id) is not None:
                return {}  # what it makes of its arguments is not known
        settings: Settings = {}
        for keyword in node.keywords:
            if keyword.arg:
                settings |= _section(keyword.arg, keyword.value)
        return settings

    def _other(self, name: str) -> Settings:
        if _function(self._tree, name) is not None:
            return self.settings(name)
        for node in self._tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for imported in node.names:
                    if (imported.asname or imported.name) == name:
                        return _of_recipe(node.module, imported.name, self._roots, self._depth)
        return {}


def _section(key: str, node: ast.expr) -> Settings:
    """A plain value, or those of a section: ``training=TrainingConfig(steps=10)`` as training.steps."""
    if isinstance(node, ast.Call):
        settings: Settings = {}
        for keyword in node.keywords:
            if keyword.arg:
                settings |= _section(f"{key}.{keyword.arg}", keyword.value)
        return settings
    is_plain, value = _plain(node)
    return {key: value} if is_plain else {}


def _plain(node: ast.expr) -> tuple[bool, Any]:
    """Whether it is known, and what it is; whole numbers may be computed, such as 8 * 2048."""
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        (left_plain, left_value), (right_plain, right_value) = _plain(node.left), _plain(node.right)
        whole = left_plain and right_plain and type(left_value) is int and type(right_value) is int
        if not whole or (isinstance(node.op, ast.FloorDiv) and right_value == 0):
            return False, None
        return True, _COMPUTED[type(node.op)](left_value, right_value)
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None


def _forget(node: ast.stmt, by_name: dict[str, Settings]) -> None:
    """What is set under a condition, or in a loop, is not known."""
    for inner in ast.walk(node):
        targets = inner.targets if isinstance(inner, ast.Assign) else []
        if isinstance(inner, ast.AugAssign | ast.AnnAssign):
            targets = [inner.target]
        for name, key in map(_path, targets):
            settings = by_name.get(name, {})
            for setting in [
                setting for setting in settings if not key or setting == key or setting.startswith(f"{key}.")
            ]:
                del settings[setting]


def _path(node: ast.expr) -> tuple[str, str]:
    """``config.training.steps`` as config and training.steps."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else "", ".".join(reversed(parts)))


def is_titan(command: Invocation) -> bool:
    """Whether torchtitan is what a command starts: as a module, by its file, by its script, or by its options."""
    started = command.program
    if command.module.startswith("torchtitan.") or started.endswith("torchtitan/train.py"):
        return True
    if any(word.startswith("--parallelism.") for word in command.words) or command.has(TOML):
        return True
    named = started.rpartition("/")[2] == "run_train.sh" and any(
        name in command.variables for name in ("CONFIG_FILE", "CONFIG", "NGPU")
    )
    return command.is_shell and (named or bool(re.search(r"\btorchtitan[./]train\b", command.script)))
