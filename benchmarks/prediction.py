"""Predicted step times beside published ones that the constants were not fitted to.

    python -m benchmarks.prediction [--only vtrain_multi ... playbook frontier] [--table NAME=CSV ...] [--save]

Each row of the table is a split: what was fitted, what was predicted, the mean error beside that of one efficiency for
all configurations, the rank correlation, how much slower the predicted best is than the best, and the issue's bar.
``--table`` takes another file with the same columns in place of a shipped one. The playbook's trials and Frontier
have tables of their own (``benchmarks.prediction_playbook``, ``benchmarks.prediction_frontier``).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import _published as published
from benchmarks import _scatter, prediction_frontier, prediction_playbook
from benchmarks import _table as table
from benchmarks._scores import mean_error, one_efficiency, score
from benchmarks.published import megatron
from tuning.predict.fit import calibrate
from tuning.predict.fit.calibrate import TrialMeasurements, select
from tuning.predict.model import step_time
from tuning.predict.model.cases import FULL, Array
from tuning.predict.model.constants import START, Constants

HEADER = (
    "predicted",
    "rows",
    "fitted to",
    "mean error",
    "bar",
    "one efficiency",
    "Spearman",
    "regret",
    "best in top 10",
    "verdict",
)
DRAWS, ROWS_OF_OTHERS, SINGLE_ROWS = 10, 10, 200
_BAND = 0.10
_TITLES = {
    "vtrain": "Step times of vTrain's A100s, predicted",
    "megatron": "Megatron-LM's step times, predicted by constants of vTrain's",
    "fsdp": "llm-foundry's step times, each kind of device by the others",
}


class Split(NamedTuple):
    """What was predicted by constants that were ``fitted_to`` other rows. ``plain``: the error of one efficiency.

    ``picture``: the file that shows its points, None where another split shows them.
    """

    name: str
    fitted_to: str
    predicted: Array
    measured: Array
    bar: float | None = None
    plain: float = float("nan")
    picture: str | None = None

    def cells(self) -> list[str]:
        """A line of the table."""
        found = score(self.predicted, self.measured)
        verdict = "" if self.bar is None else "pass" if found.mean_error <= self.bar else "missed"
        limit = "" if self.bar is None else f"{self.bar:.0%}"
        plain = "" if np.isnan(self.plain) else f"{self.plain:.1%}"
        order = [f"{found.spearman:.2f}", f"{found.regret:.1%}", "yes" if found.recalled else "no"]
        return [
            self.name,
            f"{len(self.measured):,}",
            self.fitted_to,
            f"{found.mean_error:.1%}",
            limit,
            plain,
            *order,
            verdict,
        ]


def predicted(measured: TrialMeasurements, constants: Constants) -> Array:
    """Seconds of each row."""
    return step_time.step(measured.cases, measured.machine, constants).seconds


def vtrain_single() -> Iterator[Split]:
    """Fitted to 200 rows, drawn ten times; errors are of the rest."""
    one = published.single(published.FILES["vtrain_single"])
    parts, plain = [], []
    for seed in range(DRAWS):
        rows = np.random.default_rng(seed).permutation(len(one.seconds))
        train, test = rows[:SINGLE_ROWS], rows[SINGLE_ROWS:]
        rest = select(one, test)
        parts.append(
            (
                predicted(rest, calibrate.fit_constants(select(one, train), most=published.EFFECTIVE_ROWS)),
                rest.seconds,
            )
        )
        plain.append(_plain(one, train, test))
    found, wanted = map(np.concatenate, zip(*parts, strict=True))
    fitted_to = f"{SINGLE_ROWS} rows, {DRAWS} draws"
    yield Split("vTrain, 1 node", fitted_to, found, wanted, 0.08, float(np.mean(plain)), "vtrain")


def vtrain_multi() -> Iterator[Split]:
    """Fitted to one node alone, and with ten rows of other model sizes."""
    one, many = (getattr(published, n)(published.FILES[f"vtrain_{n}"]) for n in ("single", "multi"))
    single = calibrate.fit_constants(one, most=published.EFFECTIVE_ROWS)
    sizes, every = np.unique(many.groups), np.arange(len(many.seconds))
    plain = [_plain(many, every[many.groups != s], every[many.groups == s]) for s in sizes]
    weights = [np.mean(many.groups == size) for size in sizes]
    usual = float(np.dot(plain, weights)) if len(sizes) > 1 else float("nan")
    yield Split(
        "vTrain, 64 to 512", "its 1 node alone", predicted(many, single), many.seconds, 0.15, usual, "vtrain"
    )
    found, wanted = [], []
    for size, seed in itertools.product(sizes if len(sizes) > 1 else [], range(DRAWS)):
        others = np.random.default_rng(seed).permutation(every[many.groups != size])[:ROWS_OF_OTHERS]
        rest = select(many, many.groups == size)
        found.append(
            predicted(
                rest,
                calibrate.fit_constants(
                    published.joined(one, select(many, others)), most=published.EFFECTIVE_ROWS
                ),
            )
        )
        wanted.append(rest.seconds)
    if found:
        name = f"its 1 node and {ROWS_OF_OTHERS} rows of other sizes"
        yield Split("vTrain, 64 to 512", name, np.concatenate(found), np.concatenate(wanted), 0.10, usual)


def megatron_2205() -> Iterator[Split]:
    """Tables 3 and 5, by constants from vTrain's tables."""
    known = published.recomputation(published.FILES["megatron_2205_table3_table5"])
    found = predicted(known, published.a100())
    plain = _leave_one_out(known)
    yield Split(
        "Megatron 2205, tables 3 and 5", "vTrain's A100s", found, known.seconds, 0.05, plain, "megatron"
    )


def megatron_2104() -> Iterator[Split]:
    """Table 1 without micro-batch and chunks: the fastest predicted of all plausible ones, and their spread."""
    columns = megatron.weak_scaling(published.FILES["megatron_2104_table1"])
    constants, wanted = published.a100(), columns["iteration_seconds"]
    spreads = []
    for index in range(len(wanted)):
        cases = published.plausible(columns, index)
        seconds = step_time.step(cases, published.on("selene", 64), constants).seconds
        spreads.append((seconds.min(), seconds.max()))
    low, high = np.array(spreads).T
    rates = columns["flops"] / columns["devices"] / wanted
    plain = mean_error(rates, np.full(len(rates), np.median(rates)))
    yield Split(
        "Megatron 2104, table 1", "vTrain's A100s; fastest predicted", low, wanted, 0.05, plain, "megatron"
    )
    yield Split("- its slowest plausible", "the same", high, wanted)


def fsdp() -> Iterator[Split]:
    """llm-foundry, one kind of device or one model size left out."""
    for by in ("accelerator", "model"):
        every = published.fsdp(published.FILES["llmfoundry"], by)
        left = calibrate.cross_validate(every, most=published.EFFECTIVE_ROWS)
        rows = np.arange(len(left))
        plain = [_plain(every, rows[every.groups != g], rows[every.groups == g]) for g in every.groups]
        found = every.seconds * np.exp(left)
        yield Split(
            "llm-foundry, FSDP", f"all but one {by}", found, every.seconds, 0.10, float(np.mean(plain))
        )
        for group in np.unique(every.groups):
            own = every.groups == group
            alone, shown = plain[int(np.argmax(own))], "fsdp" if by == "accelerator" else None
            yield Split(f"- {group}", "the others", found[own], every.seconds[own], None, alone, shown)


def held_share() -> Iterator[Split]:
    """What another held share of the peak does to two of the tables."""
    one = published.single(published.FILES["vtrain_single"])
    many = published.multi(published.FILES["vtrain_multi"])
    known = published.recomputation(published.FILES["megatron_2205_table3_table5"])
    for share in (0.74, 0.78, 0.82):
        constants = calibrate.fit_constants(one, START.put(gemm_share=share), most=published.EFFECTIVE_ROWS)
        for name, other in (("vTrain, 64 to 512", many), ("Megatron 2205", known)):
            found = predicted(other, constants)
            yield Split(name, f"vTrain's 1 node, gemm_share {share}", found, other.seconds)


TABLES: dict[str, Callable[[], Iterator[Split]]] = {
    "vtrain_single": vtrain_single,
    "vtrain_multi": vtrain_multi,
    "megatron_2205": megatron_2205,
    "megatron_2104": megatron_2104,
    "llmfoundry": fsdp,
    "held_share": held_share,
}


def _plain(measured: TrialMeasurements, train: Array, test: Array) -> float:
    cases = measured.cases
    again = np.where(cases.recompute == FULL, 4 / 3, 1.0)
    return one_efficiency(cases.model_flops * again, cases.world, measured.seconds, train, test)


def _leave_one_out(measured: TrialMeasurements) -> float:
    rows = np.arange(len(measured.seconds))
    return float(np.mean([_plain(measured, rows[rows != one], rows[rows == one]) for one in rows]))


def main() -> None:
    """Print the table."""
    parser: argparse.ArgumentParser = table.parser(__doc__)
    every = [*TABLES, "playbook", "frontier"]
    parser.add_argument("--only", nargs="*", choices=every, default=every)
    parser.add_argument("--table", action="append", default=[], metavar="NAME=CSV")
    given = parser.parse_args()
    for name, _, path in (asked.partition("=") for asked in given.table):
        if name not in published.FILES or not path:
            parser.error(f"--table {name}={path}: give one of {', '.join(published.FILES)}, = and a file")
        published.FILES[name] = Path(path)
    if "playbook" in given.only:
        prediction_playbook.report(published.FILES["ultrascale_playbook_benchmarks"], given.save)
    if "frontier" in given.only:
        prediction_frontier.report(given.save)
    splits = [split for name in given.only if name in TABLES for split in TABLES[name]()]
    if not splits:
        return
    table.show(
        "prediction",
        "Step times predicted and published",
        HEADER,
        [one.cells() for one in splits],
        given.save,
    )
    if given.save:
        draw(splits)


def draw(splits: list[Split]) -> None:
    """A picture of those splits that name the same one."""
    for picture in dict.fromkeys(one.picture for one in splits if one.picture):
        points = {
            one.name.strip("- "): (one.predicted, one.measured) for one in splits if one.picture == picture
        }
        _scatter.save(picture, _TITLES[picture], "s", points, _BAND)


if __name__ == "__main__":
    main()
