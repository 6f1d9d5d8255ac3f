"""A calibration as people read it in a terminal: the best rates, and what a payload costs by the fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.run.calibration import store
from engine.run.calibration.host_links import HostLinks
from engine.run.calibration.table import Calibration, Curve, Kind
from workbench.home.calibrations import island_lines, rates_mbit, segments, size
from workbench.text import words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_TITLES: dict[Kind, str] = {
    "gemm": "matrix products, of each rank",
    "memory": "passes over memory, of each rank",
    "transfer": "copies between host and device, of each rank",
    "collective": "collectives: seconds(S) = alpha + S / beta, error at sizes that the fit did not see",
}


def print_calibration(console: Console, lookup: store.CalibrationLookup) -> None:
    """What holds here, or the newest that no longer does and why; without any, what to do."""
    calibration = lookup.calibration or lookup.stale
    if lookup.reason:
        console.print(f"[yellow]{lookup.reason}[/]", soft_wrap=True)
    if calibration is None:
        return
    console.print(_headline(calibration), soft_wrap=True)
    for kind in _TITLES:
        if curves := calibration.select_curves(kind):
            console.print(_collectives(curves) if kind == "collective" else _rates(kind, curves))


def _headline(calibration: Calibration) -> str:
    mark = calibration.fingerprint
    parts = [
        f"{mark.cpu}, {mark.cores:,} cores, {mark.memory_gib:,.1f} GiB",
        *mark.gpus,
        f"torch {mark.torch}",
    ]
    complete = "" if calibration.complete else " [yellow](interrupted; incomplete)[/]"
    date_text = (
        f"measured {words.date_text(calibration.measured_unix)} in {words.seconds(calibration.seconds)}"
    )
    return f"[bold]{mark.id}[/]  {'; '.join(parts)}; {date_text}{complete}"


def _rates(kind: Kind, curves: list[Curve]) -> Table:
    table = _table(_TITLES[kind])
    for name in ("", "ranks", "threads each", "at sizes", "at the largest", "best"):
        table.add_column(name, justify="left" if not name else "right")
    for curve in curves:
        sizes = [point.size for point in curve.points]
        span = _span(kind, sizes[0], sizes[-1])
        cells = (curve.name.replace("_", " "), f"{curve.ranks:,}", f"{curve.threads:,}", span)
        table.add_row(*cells, _rate(curve, curve.rate(curve.points[-1])), _rate(curve, curve.peak))
    return table


def _span(kind: Kind, first: int, last: int) -> str:
    return f"n {first:,} – {last:,}" if kind == "gemm" else f"{size(first)} – {size(last)}"


def _rate(curve: Curve, rate: float | None) -> str:
    if rate is None:
        return words.NOTHING
    return f"{rate / 1e9:,.2f} {'GFLOP/s' if curve.kind == 'gemm' else 'GB/s'}"


def _collectives(curves: list[Curve]) -> Table:
    table = _table(_TITLES["collective"])
    for name in ("", "ranks", "for S", "alpha", "beta", "error: median", "largest", "best bus bandwidth"):
        table.add_column(name, justify="left" if not name else "right")
    for curve in curves:
        first = (f"{curve.name.replace('_', ' ')}, {curve.backend}", f"{curve.ranks:,}")
        for number, (span, alpha, beta) in enumerate(segments(curve)):
            errors = _errors(curve) if number == 0 else ("", "")
            peak = _rate(curve, curve.peak) if number == 0 else ""
            table.add_row(*(first if number == 0 else ("", "")), span, alpha, beta, *errors, peak)
    return table


def _errors(curve: Curve) -> tuple[str, str]:
    fit = curve.fit
    return (words.percent(fit.median_error, 1), words.percent(fit.largest_error, 1)) if fit else ("", "")


def _table(title: str) -> Table:
    from rich.table import Table

    return Table(title=title, title_justify="left", box=None)


def print_links(console: Console, links: HostLinks) -> None:
    """What joins each two hosts: rates from row to column, the start of a message below."""
    console.print(
        f"[bold]{links.words()}[/], {links.backend}, in {words.seconds(links.seconds)}", soft_wrap=True
    )
    for title, rows in (
        ("Mbit/s from row to column", rates_mbit(links)),
        (
            "microseconds before the first byte",
            [[1e6 * seconds for seconds in row] for row in links.alpha_seconds],
        ),
    ):
        table = _table(title)
        for name in ("", *links.hosts):
            table.add_column(name, justify="left" if not name else "right")
        for place, row in enumerate(rows):
            cells = [words.NOTHING if place == column else f"{rate:,.0f}" for column, rate in enumerate(row)]
            table.add_row(links.hosts[place], *cells)
        console.print(table)
    for line in island_lines(links):
        console.print(line, soft_wrap=True)
