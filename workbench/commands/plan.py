"""``plan``: the best layouts for a cluster that one may not have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.commands.options import Home, Json, Sets
from workbench.commands.predict import Cluster, Nodes, WithoutRuns

if TYPE_CHECKING:
    from engine.config.run_config import RunConfig
    from tuning.predict.plan.plans import Planned

#: Of a model without a file: mixed precision, and sequences as the papers on its sizes take them.
_BATCH, _SEQUENCE = 1024, 2048


def plan(
    home: Home,
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG|STUDY", help="A run's or a study's file; or give --model."),
    ] = None,
    cluster: Cluster = None,
    nodes: Nodes = None,
    sets: Sets = None,
    *,
    model: Annotated[
        str | None, typer.Option("--model", metavar="PRESET", help="A model by name: 7b, 22b, 175b, 1t ...")
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option("--global-batch", min=1, help=f"Sequences a step; {_BATCH:,} without a file."),
    ] = None,
    sequence: Annotated[
        int | None, typer.Option("--sequence", min=2, help=f"Tokens of one; {_SEQUENCE:,} without a file.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many layouts.")] = 10,
    without_runs: WithoutRuns = False,
    json: Json = False,
) -> int:
    """The best layouts of a model on a cluster, the pareto of time and memory, and why not the others."""
    from tuning.predict.plan import plans
    from workbench.targets import target_of

    given = {"model.preset": model, "batch.global_batch": global_batch, "data.sequence_length": sequence}
    asked, ranks = _asked(
        config, sets or [], {key: value for key, value in given.items() if value is not None}
    )
    target = target_of(home, cluster, nodes, ranks if cluster else None, not without_runs)
    found = plans.plan(asked, target, top, ranks if nodes is None else None)
    _report(found, json)
    return 0 if found.best else 1


def _report(found: Planned, json: bool) -> None:
    from workbench.output import emit_json, result_console

    if json:
        emit_json(found.as_dict())
    else:
        from workbench.render_plan import print_plan

        print_plan(result_console(), found)


def _asked(path: Path | None, sets: list[str], given: dict[str, Any]) -> tuple[RunConfig, int | None]:
    """A file's configuration with what was given beside it, and a study's ranks; else a named model's."""
    from engine.config.errors import InputError
    from workbench.inputs import planned

    if path is None and "model.preset" not in given:
        raise InputError("plan", None, "give a configuration or a study, or a model with --model")
    config, ranks = planned(path, sets) if path else (_of_model(sets), None)
    return config.with_values(given), ranks


def _of_model(sets: list[str]) -> RunConfig:
    from engine.config.run_config import parse
    from workbench.inputs import assignments, set_dotted

    tree: dict[str, Any] = {
        "data": {"sequence_length": _SEQUENCE},
        "batch": {"global_batch": _BATCH},
        "precision": "bf16",
        "memory": {"parameters": "bf16"},
    }
    for key, value in assignments(sets).items():
        set_dotted(tree, key, value)
    return parse(tree)
