"""The rules of the house: sizes, docstrings, leftovers, and who may load what."""

import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config.knobs.catalogue import KNOBS
from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.methods.outer_methods import OUTER_METHODS
from engine.config.presets import SHIPPED
from engine.run.outcome import Ending
from engine.schedules.registry import SCHEDULES
from profilers.records.operations import OPERATIONS
from tests import house_map
from tuning.spec.sampler_choice import SAMPLERS
from tuning.spec.trainers.registry import TRAINERS
from workbench.export.targets import TARGETS
from workbench.pages.navigation import PAGES

ROOT = Path(__file__).parent.parent
CODE = ("profilers", "engine", "tuning", "workbench", "benchmarks", "app.py")
LONGEST_FUNCTION = 60
LONGEST_FILE = 500
PACKAGES = ("profilers", "engine", "tuning", "workbench")
#: Modules and packages in one folder.
MOST_ENTRIES = 12
#: Directly in these packages, which have most rooms.
MOST_IN = {"engine": 14, "workbench": 14}
#: Base names that several folders of a package use, and what the folders say of them.
SAME_NAME: dict[str, dict[str, str]] = {
    "profilers": dict.fromkeys(
        ("communication", "machine", "pipeline", "steps"), "analysis has the numbers, verdicts the rules"
    )
    | {"memory": "system reads it, analysis sums it up"},
    "engine": {
        "build": "of a lab's hosts, of a rank's parallel model",
        "communication": "knobs has the knobs of it, validation their rules",
        "pool": "of ranks that train, of processes that only build",
        "rank": "one that measures, one that is only built",
        "registry": "one for each kind of thing",
        "store": "between ranks, and of calibrations on disk",
    },
    "tuning": {"journal": "in a folder, in PostgreSQL"}
    | {
        "commands": "as files, and applied to a study",
    },
    "workbench": dict.fromkeys(
        (
            "calibration",
            "compare",
            "control",
            "export",
            "host",
            "live",
            "machine",
            "overview",
            "plan",
            "quality",
            "run",
            "runs",
            "selftest",
            "sensitivity",
            "step_view",
            "steps",
            "study",
            "tune",
            "verdicts",
        ),
        "the same topic as a command, a figure, a page, sentences and terminal tables",
    )
    | {
        "details": "of a run, of a study",
        "progress": "of a study on its page, of what is copied in a terminal",
        "parquet": "written for other tools, read by ours",
        "settings": "of this installation, and of a run on its page",
    },
}
#: Names that users write or read, by the registry that has them.
ENTRIES: dict[str, list[str]] = {
    "compression methods": list(COMPRESSION_METHODS),
    "endings": [ending.value for ending in Ending],
    "knobs": [key for key, knob in KNOBS.items() if knob.title],
    "outer methods": list(OUTER_METHODS),
    "operations": [operation.name.replace("_", "-") for operation in OPERATIONS],
    "samplers": [sampler.name for sampler in SAMPLERS],
    "schedules": list(SCHEDULES),
    "trainers": [kind.name for kind in TRAINERS],
    "targets": [target.name for target in TARGETS],
    "workloads": ["decoder", *SHIPPED],
}
LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
SELECT = re.compile(r"\bselect\.sel" r"ect\(|\bSelect" r"Selector\b")
ONE_MACHINE = re.compile(rb"(?<![\w.~-])/wo" rb"rk/")

# Imports every module named on stdin as a JSON list; prints {module: error} for those that fail,
# followed by which of the watched modules are loaded in the end.
IMPORT_ALL = """
import importlib, json, sys
blocked, watched = sys.argv[1].split(","), sys.argv[2]

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(name + " is not for this package")

sys.meta_path.insert(0, Block())
failed = {}
for name in json.load(sys.stdin):
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = repr(error)
    if watched in sys.modules:
        failed[name] = "loads " + watched
        break
print("RESULT", json.dumps(failed))
"""


def files(*places: str) -> list[Path]:
    roots = [ROOT / place for place in places]
    return sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py")))


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@functools.cache
def parsed(file: Path) -> tuple[ast.AST, ...]:
    """Modules, functions and handlers of a file; the module first."""
    wanted = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler)
    return tuple(node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, wanted))


def nodes(*places: str) -> Iterator[tuple[str, ast.AST]]:
    for file in files(*places):
        for node in parsed(file):
            yield name(file), node


def modules(*packages: str) -> list[str]:
    paths = [file.relative_to(ROOT).with_suffix("") for file in files(*packages)]
    return [".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__"]


def import_all(names: list[str], *, blocked: str = "", watched: str = "-") -> dict[str, str]:
    command = [sys.executable, "-c", IMPORT_ALL, blocked, watched]
    done = subprocess.run(
        command, input=json.dumps(names), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "RESULT " in done.stdout, done.stderr
    failed: dict[str, str] = json.loads(done.stdout.rpartition("RESULT ")[2])
    return failed


def test_functions_fit_on_a_screen() -> None:
    long = {
        f"{where}:{node.lineno} {node.name}": lines
        for where, node in nodes(*CODE)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    }
    assert not long


def test_files_stay_short() -> None:
    lengths = {name(file): len(file.read_bytes().splitlines()) for file in files(*CODE, "tests")}
    assert not {where: lines for where, lines in lengths.items() if lines > LONGEST_FILE}


def entries(folder: Path) -> list[str]:
    """The modules and folders, those of data too, that a reader sees in a folder."""
    found = [path.stem for path in folder.glob("*.py") if path.name != "__init__.py"]
    return sorted(
        found + [path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"]
    )


def test_a_folder_holds_few_things() -> None:
    folders = [init.parent for package in PACKAGES for init in (ROOT / package).rglob("__init__.py")]
    crowded = {
        name(folder): len(found)
        for folder in folders
        if len(found := entries(folder)) > MOST_IN.get(name(folder), MOST_ENTRIES)
    }
    assert not crowded, (
        f"at most {MOST_ENTRIES}, or as MOST_IN says: what belongs together gets a folder of its own"
    )
    assert not [name(folder) for folder in folders if not entries(folder)]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_base_name_is_used_once_or_explained(package: str) -> None:
    counted = Counter(file.stem for file in files(package) if file.stem not in ("__init__", "__main__"))
    twice = {stem for stem, count in counted.items() if count > 1}
    assert twice == set(SAME_NAME[package])


def test_a_package_is_one_sentence() -> None:
    """Its ``__init__`` says what is in it, and passes nothing on.

    The engine's also sets a variable of torch, and that of the profilers has what a foreign job calls.
    """
    for file in files(*PACKAGES):
        tree = ast.parse(file.read_text("utf-8"))
        if file.name == "__init__.py" and file.parent not in (ROOT / "engine", ROOT / "profilers"):
            assert len(tree.body) == 1, name(file)


def test_the_map_is_that_of_the_house() -> None:
    assert house_map.with_map(house_map.GUIDE.read_text("utf-8")) == house_map.GUIDE.read_text("utf-8"), (
        "python -m tests.house_map"
    )


def test_every_file_that_the_guide_names_is_there() -> None:
    named = re.findall(
        r"`((?:engine|tuning|workbench|profilers|tests|benchmarks)/[\w/.]*)`",
        house_map.GUIDE.read_text("utf-8"),
    )
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("registry", sorted(ENTRIES))
def test_every_entry_is_in_the_documentation(registry: str) -> None:
    named = set(
        re.findall(
            r"[\w-]+(?:\.[\w-]+)*", "".join(path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md"))
        )
    )
    assert not [entry for entry in ENTRIES[registry] if entry not in named]


def test_every_file_is_reached() -> None:
    """From the command line, the pages, the ranks' entry points, or a process that is started by its module's name.

    The entry point of a foreign job's ranks is a file that Python reads as it starts.
    """
    known = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files(*PACKAGES)}
    texts = {module: file.read_text("utf-8") for module, file in known.items()}
    started = {module for module in known if any(f'"{module}"' in text for text in texts.values())}
    reached = {"workbench.cli", "workbench.__main__", "engine.launch.torchrun"} | started
    reached.add("profilers.rank.hook.sitecustomize")
    pages = {path.removesuffix(".py").replace("/", ".") for path in PAGES.values()}
    reached |= {"workbench.pages.main"} | {f"workbench.pages.{page}" for page in pages}
    waiting = list(reached)
    while waiting:
        for wanted in imported(texts[waiting.pop()]):
            if wanted in known and wanted not in reached:
                reached.add(wanted)
                waiting.append(wanted)
    assert not [module for module in known if module not in reached and not module.endswith("__init__")]


def imported(text: str) -> Iterator[str]:
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_tests_have_the_folders_of_what_they_test() -> None:
    """Beside them whole runs, whole studies, and what is taken for granted of backends."""
    whole = (ROOT / "tests/engine/runs", ROOT / "tests/engine/backends", ROOT / "tests/tuning/studies")
    folders = [init.parent for name in PACKAGES for init in (ROOT / "tests" / name).rglob("__init__.py")]
    astray = [
        name(folder)
        for folder in folders
        if not (ROOT / folder.relative_to(ROOT / "tests")).is_dir()
        and not set(whole) & {folder, *folder.parents}
    ]
    assert folders
    assert not astray


def test_every_module_says_what_lives_in_it() -> None:
    assert not [
        where
        for where, node in nodes(*CODE, "tests", "examples")
        if isinstance(node, ast.Module) and not ast.get_docstring(node)
    ]


def test_nothing_is_left_for_later() -> None:
    assert not [
        f"{name(file)}:{number}"
        for file in files(*CODE, "tests", "examples")
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if LEFTOVER.search(line)
    ]


def test_no_error_is_caught_blindly() -> None:
    assert not [
        f"{where}:{node.lineno}"
        for where, node in nodes(*CODE, "tests", "examples")
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]


def test_nothing_waits_with_select() -> None:
    """It refuses descriptors above 1,023, which a process that has much open comes to; ``poll`` takes all."""
    assert not [
        f"{name(file)}:{number}"
        for file in files(*CODE, "tests", "examples")
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if SELECT.search(line)
    ]


def test_no_file_names_a_path_of_one_machine() -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: cannot tell which files belong to the project")
    kept = [file for path in listed.decode().split("\0") if path and (file := ROOT / path).is_file()]
    assert not [name(file) for file in kept if ONE_MACHINE.search(file.read_bytes())]


def test_ranks_need_no_tuner_page_or_command_line() -> None:
    blocked = "optuna,plotly,rich,streamlit,typer,yaml"
    assert not import_all(modules("engine", "profilers"), blocked=blocked)


def test_the_page_does_not_load_torch() -> None:
    pages = modules("workbench/pages")
    if not pages:
        pytest.skip("no pages yet")
    assert not import_all(pages, watched="torch")
