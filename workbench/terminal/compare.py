"""Runs side by side: sentences and columns for the page and the terminal, and what the terminal prints."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.analysis.compare import CollectiveRow, Comparison, Pair, Row, Side
from workbench.text import words
from workbench.text.quantities import MEGABYTES, MILLISECONDS, Column

if TYPE_CHECKING:
    from rich.console import Console

#: Runs are A, B, C, ... in tables and figures: their ids are long.
LETTERS = string.ascii_uppercase
_FOUND = {
    "better": "{run} is faster than {beside}",
    "worse": "{run} is slower than {beside}",
    "equal": "{run} and {beside} are equally fast",
    "undecided": "{run} and {beside} were not told apart",
}
_HOW = {
    "rounds": "from {rounds} rounds in which both were measured in turns: this holds for further runs, too",
    "steps": "from the steps of one run each: what changes from run to run is not in it; measure both again to be sure",
}


def names(compared: Comparison) -> dict[str, str]:
    """Run -> its letter."""
    return {side.id: LETTERS[place] for place, side in enumerate(compared.runs)}


def title(side: Side) -> str:
    """What a run is, shorter than its id where it is a trial."""
    return side.id if side.study is None else f"{side.study} trial {side.trial}"


def pair(compared: Pair, letters: dict[str, str]) -> str:
    """Whether a difference is real, with its interval."""
    letters_of_pair = {"run": letters[compared.run], "beside": letters[compared.beside]}
    text = _FOUND[compared.verdict].format(**letters_of_pair)
    if compared.ratio is None:
        return f"{text}: {compared.line}."
    change = f"{letters_of_pair['run']} has {compared.ratio:.3f} x the rate of {letters_of_pair['beside']}"
    if compared.low is not None and compared.high is not None:
        change += f", 95 % {compared.low:.3f} to {compared.high:.3f}"
    else:
        change += ", and too little was measured for an interval"
    return f"{text}: {change}, {_HOW[compared.how].format(rounds=compared.rounds)}."


def overview(compared: Comparison) -> dict[str, list[Any]]:
    """One line a run, as a page's table has it; how they ended is left out where all are completed."""
    sides = compared.runs
    letters = names(compared)
    endings = {"ending": [words.ending_words(side.state) for side in sides]}
    return {
        "as": [letters[side.id] for side in sides],
        "run": [side.id for side in sides],
        "study": [f"{side.study} · trial {side.trial}" if side.study else None for side in sides],
        **(endings if any(side.state != "completed" for side in sides) else {}),
        "layout": [words.layout(side.layout) for side in sides],
        "tokens/s": [side.tokens_per_second for side in sides],
        "95 % of its steps": [words.interval_ends(side.low, side.high) or None for side in sides],
        "step, ms": [None if side.step_seconds is None else side.step_seconds * 1e3 for side in sides],
        "peak memory, GiB": [
            None if side.peak_memory_bytes is None else side.peak_memory_bytes / words.GIB for side in sides
        ],
        "sent, MB a step": [
            None if side.wire_bytes_per_step is None else side.wire_bytes_per_step / 1e6 for side in sides
        ],
        "last loss": [side.last_loss for side in sides],
        "held-out loss": [side.validation_loss for side in sides],
        "said": [remarks(side) or None for side in sides],
    }


def differences(compared: Comparison) -> dict[str, list[Any]]:
    """The keys that differ, and each run's value."""
    rows = compared.differences
    letters = names(compared)
    return {"key": [row.key for row in rows]} | {
        letters[side.id]: [words.value(row.values[place]) for row in rows]
        for place, side in enumerate(compared.runs)
    }


def phase_columns(compared: Comparison) -> list[Column]:
    """Parts of the mean step, run by run."""
    return [Column("part of a step", [part(row.name) for row in compared.phases])] + [
        Column(letter, [row.seconds[place] for row in compared.phases], MILLISECONDS)
        for place, letter in enumerate(names(compared).values())
    ]


def collective_columns(rows: Sequence[CollectiveRow], letters: Sequence[str]) -> list[Column]:
    """Time and bytes of each operation and axis, run by run."""
    columns = [Column("collective", [f"{row.operation} · {row.axis}" for row in rows])]
    for place, letter in enumerate(letters):
        columns.append(
            Column(f"{letter} exposed", [row.exposed_seconds[place] for row in rows], MILLISECONDS)
        )
    for place, letter in enumerate(letters):
        columns.append(Column(f"{letter} payload", [row.bytes[place] for row in rows], MEGABYTES))
    return columns


def remarks(side: Side) -> str:
    """Tags and note of a run in one line."""
    return " ".join([*(f"#{tag}" for tag in side.tags), *side.note.split()])


def part(name: str) -> str:
    """A part of a step."""
    return "between steps" if name == "between" else words.ending_words(name)


def widest(rows: Sequence[Row]) -> Row | None:
    """The part of a step in which the runs are furthest apart."""
    measured = [row for row in rows if len([value for value in row.seconds if value is not None]) > 1]
    return max(measured, key=_spread, default=None)


def _spread(row: Row) -> float:
    values = [value for value in row.seconds if value is not None]
    return max(values) - min(values)


def print_comparison(console: Console, compared: Comparison) -> None:
    """What the page shows, without its figures."""
    letters = names(compared)
    for side in compared.runs:
        rate = f"{words.number(side.tokens_per_second)} tokens/s"
        bounds = words.interval_ends(side.low, side.high)
        text = f"{letters[side.id]}  {title(side)}, {words.ending_words(side.state)}: "
        text += f"{words.layout(side.layout)}, {rate}"
        text += (f" ({bounds})" if bounds else "") + f", {words.gib(side.peak_memory_bytes)} at most"
        console.print(text, markup=False, soft_wrap=True)
        if line := remarks(side):
            console.print(f"   {line}", markup=False, soft_wrap=True, style="dim")
    for compared_pair in compared.pairs:
        console.print(pair(compared_pair, letters), markup=False, soft_wrap=True)
    for note in compared.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True, style="dim")
    _print(console, f"configuration; {compared.same_keys} keys are the same", differences(compared))
    _print(console, "where a step's time goes", _texts(phase_columns(compared)))
    if compared.collectives:
        columns = collective_columns(compared.collectives, list(letters.values()))
        _print(console, "collectives, per step and rank", _texts(columns))


def _texts(columns: Sequence[Column]) -> dict[str, list[str]]:
    return {column.name: column.texts for column in columns}


def _print(console: Console, title: str, columns: Mapping[str, Sequence[Any]]) -> None:
    from rich.table import Table

    lines = list(zip(*columns.values(), strict=True))
    if not lines:
        return
    console.print(f"\n{title}", markup=False)
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=place == 0)
    for line in lines:
        table.add_row(*(str(value).replace("[", r"\[") for value in line))
    console.print(table)
