"""The map in CONTRIBUTING.md, from the sentence of each folder; ``python -m tests.house_map`` writes it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- map: written by `python -m tests.house_map` -->\n", "<!-- end of map -->"
PACKAGES = ("workbench", "tuning", "engine", "profilers")


def lines() -> list[str]:
    """A line for each package and folder, with its sentence."""
    found = []
    for package in PACKAGES:
        for init in sorted((ROOT / package).rglob("__init__.py")):
            folder = init.parent.relative_to(ROOT)
            sentence = ast.get_docstring(ast.parse(init.read_text("utf-8"))) or ""
            indent = "  " * (len(folder.parts) - 1)
            found.append(f"{indent}- `{folder.as_posix()}/`: {sentence.partition(chr(10))[0]}")
    return found


def with_map(text: str) -> str:
    """The guide with the map as it is now."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n".join(["", *lines(), "", ""]) + END + rest.partition(END)[2]


if __name__ == "__main__":
    GUIDE.write_text(with_map(GUIDE.read_text("utf-8")), "utf-8")
