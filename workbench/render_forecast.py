"""A prediction as people read it in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tuning.predict.answer import WORDS, Change, Forecast
from tuning.predict.placement.place import Placed
from tuning.predict.plan.why_not import WhyNot
from workbench import render_placed, words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Changes that are shown, and the least share of a step that has a row of its own.
_CHANGES, _LEAST = 6, 0.005
#: What loses something is worth telling if it gains this much.
_LOSSY = 0.01
_BAR = 30


def print_forecast(console: Console, found: Forecast, where: Placed | None = None) -> None:
    """Time, memory, what the step is made of, what would change it, where ranks belong, and what to know of numbers."""
    _head(console, found)
    console.print(_breakdown(found))
    for line in _changes(found):
        _line(console, line)
    for line in render_placed.lines(where):
        _line(console, line)
    _notes(console, found.notes)


def print_why_not(console: Console, found: WhyNot) -> None:
    """Legal, fits, and how far behind: one line each."""
    if found.forecast is None:
        console.print("[red]not legal[/]")
    else:
        console.print(f"[green]legal[/]  {words.layout(found.layout)}", soft_wrap=True)
        _line(
            console, f"{'fits' if found.forecast.fits else 'does not fit safely'}: {_memory(found.forecast)}"
        )
        _line(console, f"step: {step(found.forecast)}")
    for line in _behind(found):
        _line(console, line)
    _notes(console, found.forecast.notes if found.forecast else ())


def step(found: Forecast) -> str:
    """Seconds of a step, with its range."""
    low, high = words.seconds(found.step_seconds.low), words.seconds(found.step_seconds.high)
    return f"{words.seconds(found.step_seconds.median)} (90 %: {low} to {high})"


def settings(values: Mapping[str, Any]) -> str:
    """Keys and values as ``--set`` takes them."""
    return " ".join(f"{key}={'null' if item is None else item}" for key, item in values.items())


def layout(found: Forecast) -> str:
    """Degrees and what else a plan turns, in a few words."""
    config = found.config
    parts = [words.layout(config.parallel.model_dump()), f"micro-batch {config.batch.micro_batch}"]
    if config.schedule.chunks > 1:
        parts.append(f"{config.schedule.chunks} stages a rank")
    if config.memory.recompute != "none":
        parts.append(f"recompute {config.memory.recompute}")
    return ", ".join(parts)


def probability(value: float) -> str:
    """Of too little memory, without digits that nobody believes."""
    return "under 1 %" if value < 0.01 else "over 99 %" if value > 0.99 else words.percent(value)


def _head(console: Console, found: Forecast) -> None:
    cluster = found.target.cluster
    console.print(
        f"[bold]{words.layout(found.config.parallel.model_dump())}[/] on {cluster.name} "
        f"({found.target.group.accelerator.name})",
        soft_wrap=True,
    )
    rows = {
        "step": step(found),
        "tokens/s": words.number(found.tokens_per_second),
        "MFU": f"{words.percent(found.mfu, 1)} of {found.peak_flops / 1e12:,.5g} TFLOP/s a device",
        "memory": _memory(found),
        **_outside(found),
        "limits": "; ".join(limit.words for limit in found.limits[:3]),
    }
    for label, text in rows.items():
        _line(console, f"  {label:<10}{text}")


def _memory(found: Forecast) -> str:
    limit = found.target.memory_bytes
    share = words.percent(found.memory_bytes.median / limit)
    low, high = words.gib(found.memory_bytes.low), words.gib(found.memory_bytes.high)
    return (
        f"{words.gib(found.memory_bytes.median)} ({low} to {high}), {share} of {words.gib(limit)}; "
        f"out of memory with {probability(found.out_of_memory_probability)}"
    )


def _outside(found: Forecast) -> dict[str, str]:
    """A row for what the allocator does not count; none on a CPU."""
    beside = found.outside
    if not beside.likely:
        return {}
    count = len(beside.communicators)
    buffers = f" and buffers of {count} NCCL communicator{'s' if count > 1 else ''}" if count else ""
    sizes = f"{words.gib(beside.likely)} ({words.gib(beside.low)} to {words.gib(beside.high)})"
    return {"": f"of that {sizes} outside torch's allocator: CUDA context{buffers}, believed"}


def _breakdown(found: Forecast) -> Table:
    from rich.table import Table

    table = Table(
        title="Where a step goes", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for name in ("seconds", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    whole = sum(found.breakdown.values())
    for name, seconds in sorted(found.breakdown.items(), key=lambda item: -item[1]):
        share = seconds / whole
        if share >= _LEAST:
            table.add_row(
                WORDS[name],
                words.seconds(seconds),
                words.percent(share, 1),
                "█" * max(1, round(share * _BAR)),
            )
    return table


def _changes(found: Forecast) -> Iterator[str]:
    if not found.changes:
        yield "No neighbour of this layout fits."
        return
    yield "What would change it:"
    worth = [change for change in found.changes if not change.lossy or change.gain >= _LOSSY]
    for change in worth[:_CHANGES]:
        yield f"  {_gain(change)}  {settings(change.values)}{_caution(change)}"


def _gain(change: Change) -> str:
    return f"{100 * change.gain:+6.1f} % tokens/s"


def _caution(change: Change) -> str:
    return "  (lossy: see `workbench quality`)" if change.lossy else ""


def _behind(found: WhyNot) -> Iterator[str]:
    if found.best is None:
        yield f"no best layout to compare with: {found.reason}"
        return
    yield f"the best of as many ranks and this batch: {layout(found.best)}: {step(found.best)}"
    if found.slower is None:
        return
    if found.slower <= 0:
        yield "this one is as fast, or faster by settings that plans do not turn"
        return
    terms = "; ".join(term.words for term in found.terms)
    yield f"{words.percent(found.slower, 1)} behind it: {terms}"


def _notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"  {note}", markup=False, soft_wrap=True, style="dim")


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
