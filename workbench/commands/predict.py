"""``predict``: what a configuration would need, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Json, More, Sets

if TYPE_CHECKING:
    from engine.config import RunConfig
    from engine.dryrun.check import DryRun


def predict(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML or JSON file with sections of a run.")
    ],
    more: More = None,
    sets: Sets = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Is it legal, and what must its ranks hold? For any number of them."),
    ] = False,
    json: Json = False,
) -> int:
    """Check a layout of any size on this machine: its rules, and the memory of each kind of rank."""
    from engine.errors import InputError

    if not dry_run:
        raise InputError("predict", None, "times are not predicted yet; --dry-run checks rules and memory")
    asked = _config(config, [*(sets or []), *(more or [])])
    found = _found(asked)
    _report(asked, found, json)
    return 2 if not found.legal else 1 if found.mismatches else 0


def _config(path: Path, sets: list[str]) -> RunConfig:
    from engine.config import parse
    from workbench.inputs import assignments, read_tree, set_dotted

    tree = read_tree(path, "config")
    for key, value in assignments(sets).items():
        set_dotted(tree, key, value)
    return parse(tree)


def _found(config: RunConfig) -> DryRun:
    from engine.dryrun.check import dry_run
    from workbench.output import stdout_for_results

    with stdout_for_results():
        return dry_run(config)


def _report(config: RunConfig, found: DryRun, json: bool) -> None:
    from workbench.output import emit_json, result_console, say

    for problem in found.problems:
        say(f"error: {' '.join(problem.split())}")
    if json:
        emit_json(found.as_dict())
    elif found.legal:
        from workbench.render_predict import print_dry_run

        print_dry_run(result_console(), config, found)
