"""Prints the arguments of Megatron-LM, as ``known_keys.json`` has them; run beside megatron-core."""

# ruff: noqa: I001  # what makes the first import of Megatron possible stands before it
from __future__ import annotations

import argparse
import json
import sys
import typing
from importlib.metadata import version

import tests.support.trainers.newer_python  # noqa: F401
from megatron.training.arguments import add_megatron_arguments


def parser() -> argparse.ArgumentParser:
    """All of them."""
    made = argparse.ArgumentParser(allow_abbrev=False)
    return add_megatron_arguments(made)


def kind(action: argparse.Action) -> typing.Any:
    """How its value is read."""
    if action.nargs == 0:
        return "flag"
    if action.nargs in ("+", "*"):
        return "many"
    if action.choices is not None and all(isinstance(one, str) for one in action.choices):
        return sorted(action.choices)
    name = getattr(action.type, "__name__", "str")
    return name if name in ("int", "float") else "any"


if __name__ == "__main__":
    actions = [action for action in parser()._actions if action.option_strings and action.dest != "help"]
    keys = {
        option: kind(action)
        for action in actions
        for option in action.option_strings
        if option.startswith("--")
    }
    wanted = set(json.loads(sys.argv[1])) if len(sys.argv) > 1 else set()
    usual = {
        option: action.default
        for action in actions
        for option in action.option_strings
        if option in wanted
        and isinstance(action.default, int | float | str)
        and not isinstance(action.default, bool)
    }
    print(json.dumps({"package": f"megatron-core {version('megatron-core')}", "keys": keys, "usual": usual}))
