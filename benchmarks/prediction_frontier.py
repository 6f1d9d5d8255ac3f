"""Frontier's 22B, 175B and 1T (arXiv 2312.12705): each predicted by constants that were fitted to the other two.

    python -m benchmarks.prediction_frontier [--save]

``benchmarks/_frontier.py`` says what is taken to have run, and how the paper counts. Constants begin at the shipped
ones, which are those of A100s and H100s, and move where the other two figures pull them. What two figures leave open is
a matter of belief: the table of choices says what other beliefs do. ``--save`` also writes the constants that are
fitted to all three, with which ``workbench predict`` and ``plan`` answer for an MI250X.

"half-width" is Student's t of the three errors, each of a model that was left out; "without it too" takes errors of the
other two, of constants that saw neither of them nor this one: each fitted to a single figure.

Scaling is predicted, not fitted. Weak scaling keeps a replica's batch, from the script's GCDs to the abstract's MI250X,
two GCDs each. Strong scaling keeps the global batch, which the abstract does not tell. With the script's own a pipeline
would stand idle for longer than the published percentage allows, whatever the machine: it cannot be that one. The other
row takes the batch with which weak scaling ends, so that both curves meet at their largest scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from benchmarks import _frontier as frontier
from benchmarks import _published as published
from benchmarks import _table as table
from benchmarks._frontier import Trials
from tuning.predict.cluster.csv_table import DATA
from tuning.predict.fit import calibrate, device_constants
from tuning.predict.fit.calibrate import CalibratedConstants
from tuning.predict.model import step_time
from tuning.predict.model.cases import Array, Cases
from tuning.predict.model.constants import Constants

NAME = "prediction_frontier"
MODELS = (
    "model",
    "layout, from the authors' scripts",
    "paper, % of peak",
    "shipped constants",
    "its own figure left out",
    "off by",
    "90 %",
    "in it",
    "half-width",
    "half-width without it too",
    "slowest terms",
)
CHOICES = ("choice", "22B off by", "175B off by", "1T off by", "half-width")
CONSTANTS = ("constant", "MI250X", "shipped", "may move by")
SCALING = (
    "model",
    "scaling",
    "global batch",
    "GCDs",
    "predicted",
    "even stages alone",
    "paper",
    "points off",
)
#: GCDs at the end: the abstract's MI250X, two each.
DEVICES = {"175B": 2048, "1T": 6144}
#: Points that strong scaling may be off by, and batches that are looked at, in times of the script's.
_POINTS, _MOST_TIMES = 10, 1024.0


def models(found: Trials) -> Iterator[list[str]]:
    """A line for each model."""
    errors, cases = frontier.left_out(found), found.measured.cases
    width = frontier.half_width(errors)
    usual = frontier.predicted(found.measured, calibrate.shipped_constants().constants)
    paper, known = (frontier.of_peak(cases, seconds) for seconds in (found.measured.seconds, usual))
    parts = step_time.step(cases, found.measured.machine, frontier.calibrated(found).constants)
    for row, name in enumerate(found.models):
        here = paper[row] * np.exp(-errors[row])
        ends = here * np.exp(-width), here * np.exp(width)
        strict = np.expm1(frontier.nested_half_width(found, row))
        yield [
            name,
            _layout(cases, row),
            f"{paper[row]:.2f}",
            f"{known[row]:.1f}",
            f"{here:.2f}",
            f"{here / paper[row] - 1:+.1%}",
            f"{ends[0]:.1f} to {ends[1]:.1f}",
            "yes" if ends[0] <= paper[row] <= ends[1] else "no",
            f"{np.expm1(width):.1%}",
            f"{strict:.1%}",
            ", ".join(f"{term} {share:.0%}" for term, share in parts.largest(row, 3)),
        ]


def choices(found: Trials) -> Iterator[list[str]]:
    """What other beliefs do to what is left out."""
    rows = found.measured
    yield _choice("as above", found)
    for share, words in ((1.0, "as an A100's"), (0.5, "as an H100's"), (0.25, "a quarter of an A100's")):
        machine = rows.machine._replace(device=rows.machine.device._replace(attention=share))
        yield _choice(f"attention {words}", Trials(found.models, rows._replace(machine=machine)))
    whole = rows.cases.put(scattered_boundary=np.zeros(len(found)))
    words = "each tensor-parallel rank sends all to the next stage"
    yield _choice(words, Trials(found.models, rows._replace(cases=whole)))
    plain = rows.seconds * rows.cases.model_flops / frontier.counted_flops(rows.cases)
    words = "the paper does not count what is computed again"
    yield _choice(words, Trials(found.models, rows._replace(seconds=plain)))


def _choice(words: str, found: Trials) -> list[str]:
    errors = frontier.left_out(found)
    off = [f"{share:+.1%}" for share in np.expm1(-errors)]
    return [words, *off, f"{np.expm1(frontier.half_width(errors)):.1%}"]


def of_constants(known: CalibratedConstants) -> Iterator[list[str]]:
    """Those that moved by one percent or more."""
    shipped = calibrate.shipped_constants().constants
    for name, deviation in frontier.FREE.items():
        ours, theirs = getattr(known.constants, name), getattr(shipped, name)
        if abs(ours / theirs - 1) >= 0.01:
            yield [name, f"{ours:.3g}", f"{theirs:.3g}", f"x {np.exp(deviation):.2f}"]


def scaling(found: Trials, known: Constants) -> Iterator[list[str]]:
    """Throughput per device over that of the script's layout, with more replicas."""
    papers = {kind: frontier.figures(f"{kind}_scaling_pct") for kind in ("weak", "strong")}
    for name, devices in DEVICES.items():
        one = found.measured.cases.take(np.array([found.models.index(name)]))
        factor = devices / float(one.world[0])
        yield _scaled(
            name, "weak", one, (one, _more(one, factor, one.micro_batches)), known, papers["weak"][name]
        )
        for batch in (1.0, factor):
            start = one.put(micro_batches=one.micro_batches * batch)
            pair = start, _more(start, factor, start.micro_batches / factor)
            yield _scaled(name, "strong", one, pair, known, papers["strong"][name])


def near_batches(found: Trials, name: str, known: Constants) -> str:
    """Global batches with which strong scaling is within ten points of the paper's, in powers of two."""
    one = found.measured.cases.take(np.array([found.models.index(name)]))
    factor, paper = DEVICES[name] / float(one.world[0]), frontier.figures("strong_scaling_pct")[name]
    good, times, own = list[float](), 1.0, float(one.global_batch[0])
    while times <= _MOST_TIMES:
        start = one.put(micro_batches=one.micro_batches * times)
        share = _efficiency(start, _more(start, factor, start.micro_batches / factor), known)
        good += [times] if abs(100 * share - paper) <= _POINTS else []
        times *= 2
    if not good:
        return f"{name}: none"
    ends = "and more" if good[-1] == _MOST_TIMES else f"to {good[-1] * own:,.0f}"
    return f"{name}: {good[0] * own:,.0f} {ends}"


def _scaled(
    name: str, kind: str, one: Cases, pair: tuple[Cases, Cases], known: Constants, paper: float
) -> list[str]:
    start, end = pair
    share, idle = _efficiency(start, end, known), _idle(start) / _idle(end)
    batch = f"{start.global_batch[0]:,.0f}"
    if kind == "weak":
        batch += f" to {end.global_batch[0]:,.0f}"
    elif start.global_batch[0] == one.global_batch[0]:
        batch += ", the script's"
    else:
        batch += ", as weak scaling ends"
    devices = f"{one.world[0]:,.0f} to {end.world[0]:,.0f}"
    off = f"{100 * share - paper:+.0f}"
    return [name, kind, batch, devices, f"{share:.0%}", f"{float(idle[0]):.0%}", f"{paper:.0f} %", off]


def _more(one: Cases, factor: float, micro_batches: Array) -> Cases:
    return one.put(dp=one.dp * factor, micro_batches=np.maximum(micro_batches, 1.0))


def _efficiency(start: Cases, end: Cases, known: Constants) -> float:
    machine = published.on("frontier", 2)
    first, last = (
        each.tokens / step_time.step(each, machine, known).seconds / each.world for each in (start, end)
    )
    return float((last / first)[0])


def _idle(cases: Cases) -> Array:
    """A step in times of its micro-batches, if stages were even and messages free (arXiv 2104.04473, section 2.2)."""
    turns: Array = 1 + (cases.pp - 1) / cases.micro_batches
    return turns


def _layout(cases: Cases, row: int) -> str:
    degrees = ", ".join(f"{axis} {getattr(cases, axis)[row]:g}" for axis in ("tp", "pp", "dp"))
    return (
        f"{degrees}, micro-batch {cases.micro_batch[row]:g}, batch {cases.global_batch[row]:g}, "
        f"ZeRO {cases.zero_stage[row]:g}"
    )


def report(save: bool) -> None:
    """Print the tables; keep them and the constants if asked to."""
    found = frontier.trials()
    known = frontier.calibrated(found)
    title = "Frontier's models, each by constants of an MI250X that were fitted to the other two"
    table.show(NAME, title, MODELS, list(models(found)), save)
    title = "What is left out, with other choices"
    table.show(f"{NAME}_choices", title, CHOICES, list(choices(found)), save)
    title = "Constants of an MI250X that moved"
    table.show(f"{NAME}_constants", title, CONSTANTS, list(of_constants(known)), save)
    batches = "; ".join(near_batches(found, name, known.constants) for name in DEVICES)
    title = f"Frontier's scaling by these constants (strong scaling within {_POINTS} points at batches of {batches})"
    table.show(f"{NAME}_scaling", title, SCALING, list(scaling(found, known.constants)), save)
    if save:
        text = json.dumps(known.as_dict(), indent=2) + "\n"
        (DATA / device_constants.FITTED["mi250x-gcd"].file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    report(table.parser(__doc__).parse_args().save)
