"""``predict``: what a configuration would need and how long its steps would take, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Home, Json, More, Sets

if TYPE_CHECKING:
    from engine.config.run_config import RunConfig
    from engine.dry_run.check import DryRun
    from tuning.predict.answer import Forecast
    from tuning.predict.placement.place import Placed
    from tuning.predict.plan.why_not import WhyNot
    from tuning.predict.target import Target

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME|FILE",
        help="A known cluster or a TOML file; default: this machine, if calibrated.",
    ),
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="How many of the cluster's nodes.")]

WithoutRuns = Annotated[
    bool, typer.Option("--without-runs", help="For this machine: leave out what finished runs told of it.")
]
WhyNotAsked = Annotated[
    bool, typer.Option("--why-not", help="Legal? Does it fit? How far behind the best, and by which term?")
]
Simulated = Annotated[
    bool,
    typer.Option(
        "--simulate", help="Play a few steps event by event; kept as a run that is marked as simulated."
    ),
]
DryRunAsked = Annotated[
    bool, typer.Option("--dry-run", help="Is it legal, and what must its ranks hold? For any number of them.")
]


def predict(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML or JSON file with sections of a run.")
    ],
    home: Home,
    more: More = None,
    sets: Sets = None,
    cluster: Cluster = None,
    nodes: Nodes = None,
    *,
    why_not: WhyNotAsked = False,
    simulate: Simulated = False,
    dry_run: DryRunAsked = False,
    without_runs: WithoutRuns = False,
    json: Json = False,
) -> int:
    """Predict a step's time and memory, what limits it, and what would change that; nothing runs."""
    from workbench.inputs import parsed
    from workbench.targets import target_of

    asked = parsed(config, [*(sets or []), *(more or [])])
    if dry_run:
        return _dry_run(asked, json)
    from engine.config.layout import layout_of

    target = target_of(home, cluster, nodes, layout_of(asked).world_size, not without_runs)
    if simulate:
        return _simulate(asked, target, home, json)
    if why_not:
        from tuning.predict.plan import why_not as explanation

        return _why_not(explanation.why_not(asked, target), json)
    from tuning.predict.forecast import forecast
    from tuning.predict.placement import place

    found = forecast(asked, target)
    return _forecast(found, place.of(asked, target), json)


def _forecast(found: Forecast, where: Placed | None, json: bool) -> int:
    from workbench.output import emit_json, result_console

    if json:
        emit_json(found.as_dict() | {"placement": where and where.as_dict()})
    else:
        from workbench.render_forecast import print_forecast

        print_forecast(result_console(), found, where)
    return 0


def _why_not(found: WhyNot, json: bool) -> int:
    """Broken rules are wrong input, as everywhere; what is slow or does not fit is an answer."""
    from workbench.output import emit_json, result_console, say

    for problem in found.problems:
        say(f"error: {' '.join(problem.split())}")
    if json:
        emit_json(found.as_dict())
    else:
        from workbench.render_forecast import print_why_not

        print_why_not(result_console(), found)
    return 0 if found.legal else 2


def _simulate(config: RunConfig, target: Target, home: Path, json: bool) -> int:
    """Keep the run, and show it as any other."""
    from engine.validation import rules
    from tuning.predict.events.rehearsal import rehearse
    from tuning.predict.events.simulate import write_run
    from workbench import runs
    from workbench.output import emit_json, result_console
    from workbench.render import print_run

    rules.check(config)
    name, _ = write_run(home, config, rehearse(config, target.at(config)))
    view = runs.load(home / name)
    if json:
        emit_json(runs.document(view))
    else:
        print_run(result_console(), view)
    return 0


def _dry_run(config: RunConfig, json: bool) -> int:
    found = _found(config)
    _report(config, found, json)
    return 2 if not found.legal else 1 if found.mismatches else 0


def _found(config: RunConfig) -> DryRun:
    from engine.dry_run.check import dry_run
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
