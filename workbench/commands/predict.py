"""``plan``: the best layouts for a cluster that one may not have.

``predict``: what a configuration would need and how long its steps would take, before anything runs.

``schedule``: the order of pipeline work, as the engine executes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.commands.options import Home, Json, More, Sets

if TYPE_CHECKING:
    from engine.config.run_config import RunConfig
    from engine.dry_run.check import DryRun
    from engine.schedules.actions import Plan
    from tuning.predict.forecast_document import Forecast
    from tuning.predict.placement.place import PlacementReport
    from tuning.predict.plan.plans import PlanResult
    from tuning.predict.plan.why_not import LayoutExplanation
    from tuning.predict.target import Target

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME|FILE",
        help="A known cluster or a TOML file; default: this machine, if calibrated.",
    ),
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Number of the cluster's nodes to use.")]

WithoutRuns = Annotated[
    bool,
    typer.Option(
        "--without-runs", help="Ignore what finished runs on this machine have taught the predictions."
    ),
]
WhyNotAsked = Annotated[
    bool,
    typer.Option(
        "--why-not",
        help="Say whether it is legal and fits, and how far behind the best layout it is, by which term.",
    ),
]
Simulated = Annotated[
    bool,
    typer.Option(
        "--simulate", help="Simulate a few steps event by event; saved as a run that is marked as simulated."
    ),
]
DryRunAsked = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Check that it is legal, and what its ranks must hold; for any number of ranks."
    ),
]


def predict(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML or JSON file with the configuration of a run.")
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
    from workbench.home.calibrations import target_of
    from workbench.home.inputs import parse_config

    configuration = parse_config(config, [*(sets or []), *(more or [])])
    if dry_run:
        return _dry_run(configuration, json)
    from engine.config.layout import layout_of

    target = target_of(home, cluster, nodes, layout_of(configuration).world_size, not without_runs)
    if simulate:
        return _simulate(configuration, target, home, json)
    if why_not:
        from tuning.predict.plan import why_not as explanation

        return _why_not(explanation.why_not(configuration, target), json)
    from tuning.predict.forecast import forecast
    from tuning.predict.placement import place

    prediction = forecast(configuration, target)
    return _forecast(prediction, place.place_config(configuration, target), json)


def _forecast(prediction: Forecast, placement: PlacementReport | None, json: bool) -> int:
    from tuning.predict.placement.signatures.mesh import compare, unknown
    from tuning.predict.placement.traffic_map import traffic_of
    from workbench.text.output import emit_json, result_console

    traffic = traffic_of(prediction.config, prediction.target)
    if json:
        mesh = compare(prediction.config, prediction.target)
        details = {
            "placement": placement and placement.as_dict(),
            "traffic": traffic and traffic.as_dict(),
            "signatures": mesh and mesh.lists_as_dict(),
            "mesh_signatures": mesh and mesh.as_dict(),
            "mesh_signatures_reason": unknown(prediction.config),
        }
        emit_json(prediction.as_dict() | details)
    else:
        from workbench.terminal.prediction import print_forecast

        print_forecast(result_console(), prediction, placement, traffic)
    return 0


def _why_not(answer: LayoutExplanation, json: bool) -> int:
    """Broken rules are wrong input, as everywhere; what is slow or does not fit is an answer."""
    from workbench.text.output import emit_json, result_console, say

    for problem in answer.problems:
        say(f"error: {' '.join(problem.split())}")
    if json:
        emit_json(answer.as_dict())
    else:
        from workbench.terminal.prediction import print_why_not

        print_why_not(result_console(), answer)
    return 0 if answer.legal else 2


def _simulate(config: RunConfig, target: Target, home: Path, json: bool) -> int:
    """Keep the run, and show it as any other."""
    from engine.config.validation import rules
    from tuning.predict.simulation.run_folder import write_run
    from tuning.predict.simulation.simulate import simulate_config
    from workbench.home import runs
    from workbench.terminal.run import print_run
    from workbench.text.output import emit_json, result_console

    rules.check(config)
    name, _ = write_run(home, config, simulate_config(config, target.adapt_to_config(config)))
    view = runs.load(home / name)
    if json:
        emit_json(runs.document(view))
    else:
        print_run(result_console(), view)
    return 0


def _dry_run(config: RunConfig, json: bool) -> int:
    dry_run_result = _dry_run_quietly(config)
    _report_prediction(config, dry_run_result, json)
    return 2 if not dry_run_result.legal else 1 if dry_run_result.mismatches else 0


def _dry_run_quietly(config: RunConfig) -> DryRun:
    from engine.dry_run.check import dry_run
    from workbench.text.output import stdout_for_results

    with stdout_for_results():
        return dry_run(config)


def _report_prediction(config: RunConfig, dry_run_result: DryRun, json: bool) -> None:
    from workbench.text.output import emit_json, result_console, say

    for problem in dry_run_result.problems:
        say(f"error: {' '.join(problem.split())}")
    if json:
        emit_json(dry_run_result.as_dict())
    elif dry_run_result.legal:
        from workbench.terminal.prediction import print_dry_run

        print_dry_run(result_console(), config, dry_run_result)


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
        typer.Option(
            "--global-batch",
            min=1,
            help="Sequences per step; default without a file: 1,024.",
        ),
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(
            "--sequence",
            min=2,
            help="Tokens per sequence; default without a file: 2,048.",
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Number of layouts to show.")] = 10,
    without_runs: WithoutRuns = False,
    json: Json = False,
) -> int:
    """Show the best layouts of a model on a cluster, the Pareto front of time and memory, and why others are worse."""
    from tuning.predict.plan import plans
    from workbench.home.calibrations import target_of

    overrides = {"model.preset": model, "batch.global_batch": global_batch, "data.sequence_length": sequence}
    question, ranks = _configuration_of(
        config, sets or [], {key: value for key, value in overrides.items() if value is not None}
    )
    target = target_of(home, cluster, nodes, ranks if cluster else None, not without_runs)
    result = plans.plan(question, target, top, ranks if nodes is None else None)
    _report_plan(result, None if cluster else home, json)
    return 0 if result.best else 1


def _report_plan(result: PlanResult, home: Path | None, json: bool) -> None:
    """With how predictions held here, if it is for this machine, whose ``home`` has the runs."""
    from workbench.analysis.planning import record_of_home
    from workbench.text.output import emit_json, result_console

    record = None if home is None else record_of_home(home)
    if json:
        emit_json(result.as_dict() | {"measured": record and record.as_dict()})
    else:
        from workbench.terminal.plan import print_plan

        print_plan(result_console(), result, record)


def _configuration_of(
    path: Path | None, sets: list[str], overrides: dict[str, Any]
) -> tuple[RunConfig, int | None]:
    """A file's configuration with what was given beside it, and a study's ranks; else a named model's."""
    from engine.config.errors import InputError
    from workbench.analysis.planning import model_config
    from workbench.home.inputs import load_plan_input

    if path is None and "model.preset" not in overrides:
        raise InputError("plan", None, "give a configuration or a study, or a model with --model")
    config, ranks = load_plan_input(path, sets) if path else (model_config(sets), None)
    return config.with_values(overrides), ranks


def schedule_names() -> list[str]:
    """All that ``schedule`` can show."""
    from engine.schedules.registry import SCHEDULES

    return list(SCHEDULES)


def schedule(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Schedule: {names}.")],
    ranks: Annotated[int, typer.Option(min=1, max=64, help="Ranks in the pipeline.")] = 4,
    chunks: Annotated[int | None, typer.Option(min=1, help="Stages per rank.")] = None,
    micro_batches: Annotated[int, typer.Option(min=1, max=512, help="Micro-batches per step.")] = 8,
    *,
    skip: Annotated[
        float,
        typer.Option(
            min=0, max=0.49, help="Share of all (micro-batch, stage) pairs to skip (schedule.skip_share)."
        ),
    ] = 0.0,
    unplanned: Annotated[
        bool,
        typer.Option(
            "--unplanned",
            help="With --skip: skip stages in turn, even if micro-batches then wait for each other.",
        ),
    ] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw it to an SVG file.")] = None,
    json: Json = False,
) -> int:
    """Show a pipeline schedule: each rank's list of actions, its bubble, and what it keeps in memory."""
    from workbench.figures.anatomy.schedule import path_text, series_of
    from workbench.text.output import emit_json

    chosen = _plan(kind, ranks, chunks, micro_batches)
    if skip:
        chosen = _partial(chosen, skip, not unplanned)
    series = series_of(chosen)
    lists = {f"rank {rank}": chosen.rank_text(rank) for rank in range(ranks)}
    if svg is not None:
        from workbench.figures.anatomy.schedule import schedule_svg

        svg.write_text(schedule_svg(series), encoding="utf-8")
    if json:
        emit_json({"kind": kind, "ranks": ranks, "chunks": chosen.chunks, "micro_batches": micro_batches,
                   "rank_of": chosen.rank_of, "actions": list(lists.values()), "length_forwards": series.length,
                   "bubble_fraction": series.bubble_fraction, "in_flight": series.in_flight,
                   "paths": chosen.paths, "trained_shares": chosen.trained_shares})  # fmt: skip
        return 0
    print(series.title)
    for name, actions in lists.items():
        print(f"  {name}: {actions}")
    for number, path in enumerate(chosen.paths):
        print(f"  micro-batch {number}: {path_text(path, chosen.stages)}")
    return 0


def _partial(whole: Plan, share: float, is_planned: bool) -> Plan:
    """With stages left out; LayoutError where the rules of a run do not allow it."""
    from engine.config.run_config import parse
    from engine.config.validation.partial_pipeline import skip_problems
    from engine.schedules.registry import plan
    from engine.schedules.skip_pipe import Skips

    tree = {"parallel": {"pp": whole.ranks}, "batch": {"micro_batch": 1, "global_batch": whole.micro_batches},
            "schedule": {"kind": whole.kind, "chunks": whole.chunks, "skip_share": share}}  # fmt: skip
    for problem in skip_problems(parse(tree)):
        raise problem
    return plan(whole.kind, whole.ranks, whole.chunks, whole.micro_batches, Skips(share, is_planned))


def _plan(kind: str, ranks: int, chunks: int | None, micro_batches: int) -> Plan:
    """With as many chunks as its entry shows it with, where nothing else was asked for."""
    from engine.config.errors import InputError
    from engine.schedules.registry import SCHEDULES, plan

    if kind not in SCHEDULES:
        raise InputError("schedule.kind", kind, f"choose one of {', '.join(SCHEDULES)}")
    chunks = chunks or SCHEDULES[kind].shown_chunks
    if problem := SCHEDULES[kind].chunks_problem(chunks):
        raise InputError("schedule.chunks", chunks, problem)
    return plan(kind, ranks, chunks, micro_batches)
