"""A run or a study as one HTML file that needs no network: its numbers, tables and figures, with Plotly inside."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from engine.config.errors import InputError
from profilers.model.run_summary import RunSummary
from tuning.report.study_result import StudyResult
from workbench.analysis import live_report, winner_explanation
from workbench.analysis.live_report import LiveReport
from workbench.analysis.quality import values_of
from workbench.analysis.studies import StudyDocument, document
from workbench.figures import base, compare, gpu, host, quality, steps
from workbench.figures import study as study_figures
from workbench.figures.anatomy import heat, lanes
from workbench.figures.search import live as live_figures
from workbench.figures.search.downsampling import downsample, downsample_front
from workbench.figures.search.front import front, front_series
from workbench.home import runs
from workbench.home.resolve import Target
from workbench.home.runs import RunView, add_numbers_so_far
from workbench.records.live_snapshot import LiveRuns, Snapshot
from workbench.text import quantities, words
from workbench.text import run as run_text
from workbench.text import study as study_text
from workbench.text.quantities import Column

#: What the file may do: run its own script and nothing else, from nowhere else.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
#: Hosts whose readings are drawn; the table above has all.
_MOST_HOSTS = 4
_STYLE = """
:root { --st-text-color: #1c2430; --st-background-color: #ffffff; --st-border-color: #dde2ea; --quiet: #5b6472;
  --st-font: system-ui, sans-serif; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --st-text-color: #e4e9f1; --st-background-color: #0f131a;
  --st-border-color: #2a3342; --quiet: #a3adbb; } }
body { font: 15px/1.5 var(--st-font); color: var(--st-text-color); background: var(--st-background-color);
  max-width: 1200px; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.25rem; margin: 2rem 0 0.4rem; }
h3 { font-size: 1.05rem; margin: 1.2rem 0 0; }
p { margin: 0.3rem 0; } .quiet { color: var(--quiet); font-size: 0.87rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.87rem; margin: 0.6rem 0; }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid var(--st-border-color);
  vertical-align: top; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; font-size: 0.8rem; } .workbench-chart { width: 100%; margin: 0.8rem 0; }
"""
_DRAW = """
window.workbenchPlotly = Promise.resolve(window.Plotly);
for (const plot of document.querySelectorAll(".workbench-chart")) {
  const data = JSON.parse(document.getElementById(plot.id + "-data").textContent);
  plot.style.height = data.layout.height + "px";
  mount({ data, parentElement: plot.parentElement });
}
"""


def write_report(home: Path, target: Target, out: Path | None) -> Path:
    """Writes the report of a run or a study, and says where; ``out`` is a new file, by default ID.html here.

    Raises:
        InputError: there is such a file already, or it cannot be written.
    """
    path = (out or Path(f"{target.id}.html")).expanduser().absolute()
    if path.exists():
        raise InputError("--out", str(path), "exists already; give another file")
    text = html(home, target)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        scratch.write_text(text, "utf-8")
        os.link(scratch, path)  # never over a file that came meanwhile
    except OSError as error:
        raise InputError("--out", str(path), f"cannot be written ({error.strerror})") from None
    finally:
        scratch.unlink(missing_ok=True)
    return path


def html(home: Path, target: Target) -> str:
    """The whole file.

    Raises:
        InputError: the run or the study cannot be read.
    """
    figures: list[go.Figure] = []
    make_parts = _study_parts if target.kind == "study" else _run_parts

    def place(drawing: go.Figure, alt: str) -> str:
        figures.append(drawing)
        return _figure(drawing, alt, len(figures))

    body = "\n".join(make_parts(home, target, place))
    return _page(target.id, body)


Place = Callable[[go.Figure, str], str]


def _run_parts(home: Path, target: Target, place: Place) -> Iterator[str]:
    view = add_numbers_so_far(runs.load(target.folder))
    study = view.labels.get("study")
    yield f"<h1>{escape(view.id)}</h1>"
    of_study = f", {study} trial {view.labels.get('trial', '?')}" if study else ""
    yield _quiet(f"{words.ending_words(view.outcome or view.state)}: {words.layout(view.layout)}{of_study}")
    if view.reason:
        yield _line(view.reason)
    if view.last_lines:
        yield f"<pre>{escape(chr(10).join(view.last_lines))}</pre>"
    yield from _run_numbers(view, place)
    yield "<h2>Configuration</h2>"
    values = values_of(view.folder)
    yield _table({"key": list(values), "value": [words.value(value) for value in values.values()]})


def _run_numbers(view: RunView, place: Place) -> Iterator[str]:
    """What it measured: lines as the terminal has them, then figures."""
    summary = view.summary
    if summary is None:
        yield _quiet("It left no numbers.")
        return
    lines = list(run_text.lines(summary))
    yield _table({"what": [name for name, _ in lines], "measured": [text for _, text in lines]})
    snapshot = LiveRuns().snapshot(view.folder)
    yield "<h2>Steps</h2>"
    series = steps.phase_series(steps.slowest_rank(snapshot.steps), "the slowest rank of each step")
    marks = steps.change_marks(view.changes)
    yield place(base.add_marks(base.phases(series, view.id), marks), "Step time by phase")
    yield place(
        base.add_marks(base.ranks(steps.rank_series(snapshot.steps), view.id), marks), "Step time by rank"
    )
    yield place(lanes.skew(steps.skew_series(snapshot.steps), view.id), "Skew between ranks by step")
    yield from _anatomy(snapshot, place)
    yield "<h2>Communication</h2>"
    exposed, hidden = summary.exposed_seconds_by_axis, summary.hidden_seconds_by_axis
    yield place(lanes.axis_bars(exposed, hidden, view.id), "Exposed and hidden communication by axis")
    yield place(base.collectives(steps.collective_series(summary.communication), view.id), "Collectives")
    if summary.communication:
        yield _columns(run_text.communication_columns(summary.communication))
    yield "<h2>Loss and memory</h2>"
    losses = steps.losses_of(summary.losses, summary.validation_loss, summary.first_step)
    yield place(base.loss(losses, view.id), "Training loss per step")
    yield place(
        host.memory(host.memory_series(snapshot.memory, snapshot.status.began_unix), view.id),
        "Memory by rank",
    )
    if len(summary.quality) > 1:
        curve = [asdict(row) for row in summary.quality]
        yield place(quality.quality(curve, [], view.id), "Loss on held-out text")
    yield from _machine_parts(view, summary, place)


def _anatomy(snapshot: Snapshot, place: Place) -> Iterator[str]:
    """Own work of all ranks: of very many a row for each host. Steps are drawn together to a bounded number."""
    ranks = sorted(snapshot.steps)
    rows = heat.rows_by_host(ranks, snapshot.rank_hosts)
    if len(ranks) <= heat.MANY_RANKS or len(rows) < 2:
        rows = {f"rank {rank}": [rank] for rank in ranks}
    if rows:
        series = heat.heat_series(heat.metric_of(snapshot.steps, heat.OWN_WORK), rows)
        yield place(heat.heat(series, snapshot.id), "Own work, by rank and step")


def _machine_parts(view: RunView, summary: RunSummary, place: Place) -> Iterator[str]:
    """Each host and its GPUs, of readings that are thinned as on the page Live: a long run makes no larger a file."""
    snapshot = LiveRuns(thinned=True).snapshot(view.folder)
    yield "<h2>Host and GPUs</h2>"
    if summary.hosts:
        yield _columns(quantities.host_columns(summary.hosts))
    if summary.gpus:
        yield _columns(quantities.gpu_columns(summary.gpus, len(snapshot.hosts) > 1))
    elif summary.gpus_reason:
        yield _quiet(summary.gpus_reason)
    names: list[str | None] = [*list(snapshot.hosts)[:_MOST_HOSTS]] or [None]
    if len(snapshot.hosts) > len(names):
        yield _quiet(f"Drawn are {len(names)} of {words.several(len(snapshot.hosts), 'hosts')}.")
    for name in names:
        if len(names) > 1:
            yield f"<h3>{escape(str(name))}</h3>"
        yield from _host_figures(snapshot.select_host(name), place)


def _host_figures(snapshot: Snapshot, place: Place) -> Iterator[str]:
    """Only of what was read."""
    start, name = snapshot.status.began_unix, snapshot.id
    if cores := host.core_series(snapshot.cores, start).cores:
        yield place(
            host.cores(host.core_series(snapshot.cores, start), name), "How busy each core was over time"
        )
        shares = host.share_series(snapshot.processes, snapshot.host, snapshot.cores, start)
        yield place(host.shares(shares, name), f"Share of {len(cores):,} cores by rank")
    if len(snapshot.host.get("time_unix", ())):
        yield place(host.readings(snapshot.host, snapshot.processes, start, name), host.readings_label())
        network, disk = (
            host.network_series(snapshot.network, snapshot.host, start),
            host.disk_series(snapshot.host, start),
        )
        yield place(host.traffic(network, disk, name), "Network by interface, and disk")
    if len(snapshot.gpu.get("time_unix", ())):
        yield place(gpu.live(snapshot.gpu, start, name), gpu.live_label())


def _study_parts(home: Path, target: Target, place: Place) -> Iterator[str]:
    study_document = document(target.folder)
    result = study_document.result
    yield f"<h1>{escape(target.id)}</h1>"
    yield _quiet(
        f"{words.ending_words(result.state)}: {result.trials_done} of {words.several(result.trials_total, 'trials')}"
    )
    for line in result.result_lines or [result.result_line or "nothing was measured yet"]:
        yield _line(line)
    if study_document.why is not None:
        yield _line(winner_explanation.line(study_document.why))
    if study_document.live is not None:
        yield from _live_parts(study_document.live, place)
    yield from _study_figures(result, place, target.id)
    yield from _study_tables(study_document)
    best = result.best
    if best is not None and best.run and (home / best.run).is_dir():
        yield f"<h2>The best run, {escape(best.run)}</h2>"
        yield from _run_numbers(add_numbers_so_far(runs.load(home / best.run)), place)


def _live_parts(report: LiveReport, place: Place) -> Iterator[str]:
    yield "<h2>The run while it was tuned</h2>"
    for line in live_report.lines(report):
        yield _line(line)
    yield place(live_figures.live(report), "The run's rate and the seconds that tuning saved")
    if report.changes:
        yield "<h2>What each change brought</h2>" + _table(live_report.change_columns(report))


def _study_figures(result: StudyResult, place: Place, name: str) -> Iterator[str]:
    trials = downsample(study_figures.trial_series(result))
    yield place(study_figures.trials(trials, name, result.aim), f"{result.aim.title}, with intervals")
    if trials.note:
        yield _quiet(trials.note)
    importance = study_figures.importance_series(result.importance or None)
    yield place(study_figures.importance(importance, words.short, name), "Importance of each knob")
    for series in front_series(result):
        yield place(front(downsample_front(series), name), "Front of the objectives")
    named = {"best": result.best, "baseline": result.baseline}
    strong = {entry.run: role for role, entry in reversed(named.items()) if entry is not None and entry.run}
    yield place(
        compare.parallel(result.trials, result.aim, strong, name), "Each trial as a line across its knobs"
    )
    yield place(compare.slices(result.trials, result.aim, strong, name), "Each trial by each knob")


def _study_tables(study_document: StudyDocument) -> Iterator[str]:
    result, aim = study_document.result, study_document.result.aim
    if columns := study_text.confirmation_columns(result):
        yield "<h2>Measured again</h2>" + _table(columns) + _quiet(study_text.caption(result))
    if result.failures and result.failures.endings:
        rows = result.failures.endings
        yield "<h2>What failed</h2>" + _line(result.failures.line)
        yield _table(
            {
                "ending": [words.ending_words(row.outcome) for row in rows],
                "trials": [row.count for row in rows],
                "reason": [row.reason for row in rows],
            }
        )
    newest, note = study_text.window(result.trials, study_text.NEWEST)
    yield "<h2>Trials</h2>" + (_quiet(note) if len(newest) < len(result.trials) else "")
    yield _table(
        {
            "trial": [row.number for row in newest],
            "configuration": [row.label or words.point(row.config) for row in newest],
            "ending": [words.ending_words(row.outcome) for row in newest],
            aim.unit: [words.number(aim.to_display(row.value), 1) for row in newest],
            "95 % interval": [words.interval_ends(*aim.bounds(row.low, row.high)) for row in newest],
            "run": [row.run for row in newest],
            "reason": [row.reason for row in newest],
        }
    )


def _columns(columns: Sequence[Column]) -> str:
    return _table({column.name: column.texts for column in columns})


def _table(columns: Mapping[str, Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in zip(*columns.values(), strict=True))
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(value: Any) -> str:
    text = words.NOTHING if value is None else words.plain_commands(str(value))
    number = text[:1].isdigit() and len(text) < len("1,000,000.000 GB/s")
    return f'<td class="number">{escape(text)}</td>' if number else f"<td>{escape(text)}</td>"


def _line(text: str) -> str:
    return f"<p>{_said(text)}</p>"


def _quiet(text: str) -> str:
    return f'<p class="quiet">{_said(text)}</p>'


def _said(text: str) -> str:
    return escape(words.plain_commands(text))


def _figure(drawing: go.Figure, alt: str, number: int) -> str:
    figure = json.loads(drawing.to_json())
    figure["layout"].pop("template", None)
    document = base.as_written({"data": figure["data"], "layout": figure["layout"]})
    data = json.dumps(document | {"alt": alt}).replace("<", "\\u003c")
    name = f"chart-{number}"
    return (
        f'<div><div class="workbench-chart" id="{name}" role="figure"></div></div>'
        f'<script type="application/json" id="{name}-data">{data}</script>'
    )


def _page(title: str, body: str) -> str:
    chart = (resources.files("workbench.pages.widgets") / "assets" / "chart.js").read_text("utf-8")
    plotly = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")
    mounting = chart.replace("export default function", "function mount")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n{body}\n'
        f"<script>{plotly}</script>\n<script>{mounting}\n{_DRAW}</script>\n</body></html>\n"
    )
