"""What one package hands to another has a type: ``dict[str, Any]`` crosses a border only under a name that says what
its keys and values are, where these are data.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import _borders

PACKAGES = ("profilers", "engine", "tuning", "workbench")
ROOT = Path(__file__).parents[1]
#: By full name, why what it takes or returns has neither a type nor a name of its own.
UNTYPED = {
    "profilers.torch_private.allocator_snapshot": "pickled for other tools as torch tells it, and read by none of ours",
}
#: Modules of a made-up house; one of its lines is changed by each case.
HOUSE = {
    "inside/facts.py": """from typing import Any
#: By knob.
Named = dict[str, Any]
Alias = dict[str, Any]
class Facts:
    _own: dict[str, Any]
    name: str
    def as_dict(self) -> dict[str, Any]: ...
    def _read(self, line: dict[str, Any]) -> None: ...
def facts() -> Named: ...
def other() -> dict[str, Any]: ...
""",
    "outside/page.py": """from inside import facts as told
from inside.facts import Facts
told.facts()
""",
}


def test_no_untyped_document_crosses_a_border() -> None:
    assert _borders.bare(ROOT, PACKAGES) == set(UNTYPED)


@pytest.mark.parametrize(
    ("line", "changed", "found"),
    [
        ("", "", set()),
        ("    name: str", "    name: dict[str, Any]", {"Facts.name"}),
        ("    name: str", "    name: list[dict[str, Any] | None]", {"Facts.name"}),
        ("    name: str", "    name: Alias", {"Facts.name"}),
        ("    name: str", "    def read(self, line: dict[str, Any]) -> None: ...", {"Facts.read"}),
        ("    name: str", "    @property\n    def rows(self) -> dict[str, Any]: ...", {"Facts.rows"}),
        ("    name: str", "    def __init__(self, **rows: dict[str, Any]) -> None: ...", {"Facts.__init__"}),
        ("def facts() -> Named: ...", "def facts() -> Alias: ...", {"facts"}),
        ("def facts() -> Named: ...", "def facts(*, rows: dict[str, Any]) -> Named: ...", {"facts"}),
        ("told.facts()", "told.other()", {"other"}),
    ],
)
def test_a_made_up_house_is_looked_through(tmp_path: Path, line: str, changed: str, found: set[str]) -> None:
    for name, text in HOUSE.items():
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(text.replace(line, changed) if line else text, encoding="utf-8")
    named = ("inside.facts.Named",)
    assert _borders.bare(tmp_path, ("inside", "outside"), named) == {f"inside.facts.{name}" for name in found}
    assert _borders.bare(tmp_path, ("inside",), named) == set(), "what stays inside is nobody else's"


@pytest.mark.parametrize("name", _borders.NAMED)
def test_a_name_for_open_keys_says_what_they_are(name: str) -> None:
    module, _, alias = name.rpartition(".")
    lines = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8").splitlines()
    [number] = [number for number, line in enumerate(lines) if line.startswith(f"{alias} = ")]
    assert ast.unparse(ast.parse(lines[number])).endswith(_borders.BARE)
    assert lines[number - 1].startswith("#: ")
