"""The shape of the code: files, folders, functions, names used twice, circles, and what one study runs through.

``--before COMMIT`` measures another commit in the same way, from a copy of it, and puts both side by side.

One study is six trials on a made-up machine, without ranks and without torch. Its functions, files and deepest stack
are counted with ``sys.setprofile``, of the four packages only and without comprehensions: over the whole study, and
over its third trial, from one call of the executor to the next.
"""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks import _borders
from benchmarks import _table as table

ROOT = Path(__file__).parents[1]
PACKAGES = ("profilers", "engine", "tuning", "workbench")
#: What one study runs through. The names of before the rooms are tried second.
TRACE = """
import importlib, json, sys, tempfile
from pathlib import Path

def first(*names):
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            pass
    raise SystemExit("none of " + ", ".join(names))

fake = first("tests.support.studies.fake", "tests.tuning.fake")
from tuning.study import run_study

root = str(Path.cwd()) + "/"
packages = tuple(root + name + "/" for name in ("profilers", "engine", "tuning", "workbench"))
seen, turn, stack = {}, {}, [0, 0]
made = fake.Machine()
began = []

def watch(frame, event, argument):
    code = frame.f_code
    if not code.co_filename.startswith(packages) or code.co_name.startswith("<"):
        return
    if event == "call":
        stack[0] += 1
        stack[1] = max(stack)
        key = code.co_filename.removeprefix(root), code.co_qualname
        seen[key] = seen.get(key, 0) + 1
        if len(began) == 3:
            turn[key] = turn.get(key, 0) + 1
    elif event == "return":
        stack[0] -= 1

def counted(*arguments, **named):
    began.append(1)
    return made(*arguments, **named)

with tempfile.TemporaryDirectory() as home:
    sys.setprofile(watch)
    try:
        run_study(fake.study(), Path(home), counted)
    finally:
        sys.setprofile(None)
parts = {}
for name, calls in (("study", seen), ("trial", turn)):
    parts[name] = [len(calls), len({file for file, _ in calls}), sum(calls.values())]
print("TRACE", json.dumps({**parts, "stack": stack[1], "executed": len(began)}))
"""


def main() -> None:
    """Print the table."""
    asked = table.parser(__doc__)
    asked.add_argument("--before", metavar="COMMIT", help="another commit to lay beside this tree")
    arguments = asked.parse_args()
    columns = {"now": measure(ROOT)}
    if arguments.before:
        with tempfile.TemporaryDirectory() as folder:
            columns = {arguments.before: measure(copy_of(arguments.before, Path(folder))), **columns}
    names = list(columns["now"])
    rows = [[name, *(column.get(name, "-") for column in columns.values())] for name in names]
    table.show("house", "The shape of the code", ["figure", *columns], rows, arguments.save)


def copy_of(commit: str, folder: Path) -> Path:
    """The files of a commit."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def measure(root: Path) -> dict[str, str]:
    """All figures of one tree, by name."""
    return {**sizes(root), **folders(root), **names(root), **trace(root)}


def sources(root: Path) -> Iterator[tuple[Path, ast.Module, str]]:
    """Every file of the four packages."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text("utf-8")
            yield path.relative_to(root), ast.parse(text), text


def sizes(root: Path) -> dict[str, str]:
    """Files, lines and functions."""
    lines, functions = dict[Path, int](), list[int]()
    for path, tree, text in sources(root):
        lines[path] = len(text.splitlines())
        nodes = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        functions += [(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes]
    modules = [count for path, count in lines.items() if path.name != "__init__.py"]
    by_package = Counter(dict.fromkeys(PACKAGES, 0))
    for path, count in lines.items():
        by_package[path.parts[0]] += count
    return {
        "lines in the four packages": f"{sum(lines.values()):,}",
        **{f"lines of {name}": f"{by_package[name]:,}" for name in PACKAGES},
        "files without `__init__`": f"{len(modules):,}",
        "lines a file: median, p90, max": spread(modules),
        "functions": f"{len(functions):,}",
        "lines a function: median, p90, max": spread(functions),
    }


def spread(values: list[int]) -> str:
    """Median, 90th percentile and maximum."""
    return f"{statistics.median(values):.0f}, {statistics.quantiles(values, n=10)[-1]:.0f}, {max(values)}"


def entries(folder: Path) -> list[Path]:
    """What a reader sees in a folder of code: modules and packages, without data."""
    found = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    return sorted(found + [path for path in folder.iterdir() if (path / "__init__.py").is_file()])


def folders(root: Path) -> dict[str, str]:
    """The largest folder of each package."""
    most = {}
    for package in PACKAGES:
        inside = [path.parent for path in (root / package).rglob("__init__.py")]
        largest = max(inside, key=lambda folder: len(entries(folder)))
        most[f"largest folder of {package}"] = f"{len(entries(largest))} ({largest.relative_to(root)})"
    return most


def names(root: Path) -> dict[str, str]:
    """Base names and class names that several files use, and what packages hand over without a type."""
    bases, classes = Counter[str](), Counter[str]()
    for path, tree, _ in sources(root):
        if path.name not in ("__init__.py", "__main__.py"):
            bases[f"{path.parts[0]}/{path.name}"] += 1
        classes.update({node.name for node in tree.body if isinstance(node, ast.ClassDef)})
    return {
        "base names twice in a package": str(sum(count > 1 for count in bases.values())),
        "class names in several files": str(sum(count > 1 for count in classes.values())),
        "public names between packages with bare dict[str, Any]": str(len(_borders.bare(root, PACKAGES))),
    }


def trace(root: Path) -> dict[str, str]:
    """What six trials on the made-up machine run through, and the third of them."""
    done = subprocess.run(
        [sys.executable, "-c", TRACE],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "TRACE " not in done.stdout:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.rpartition("TRACE ")[2])
    rows = {}
    for part, words in (("study", "a study of six trials"), ("trial", "one of its trials")):
        functions, files, calls = found[part]
        rows[f"{words}: functions, files, calls"] = f"{functions}, {files}, {calls:,}"
    return rows | {"deepest stack": str(found["stack"])}


if __name__ == "__main__":
    main()
