"""How YAML files of people are read."""

from __future__ import annotations

import re
from typing import Any

import yaml


class StrictLoader(yaml.SafeLoader):
    """YAML as people expect it: 1e-3 is a number, and a key given twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: list[Any] = []
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} is given twice", problem_mark=key.start_mark
                )
            keys.append(name)
        return super().construct_mapping(node, deep)


def _refuse_code(loader: yaml.Loader, tag: str, node: yaml.Node) -> Any:
    raise yaml.MarkedYAMLError(
        problem=f"has code in it (!!python/{tag}), and nothing in such a file is run; write plain values",
        problem_mark=node.start_mark,
    )


StrictLoader.add_multi_constructor("tag:yaml.org,2002:python/", _refuse_code)
StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def place(error: yaml.YAMLError) -> str:
    """What is wrong with a text, and on which line and column."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else str(problem)
