"""The anatomy of a step in words, for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from workbench.text import words

AXES = (
    "Exposed seconds sum to the phase of that name. Waits for a pipeline's messages are the phase bubble; of pp only "
    "the wait for the last messages to leave, and for the gradient's norm, is here."
)


def straggler(found: Mapping[str, Any]) -> str:
    """Who is busiest, where, and how often."""
    rank, share = found.get("slowest_rank"), found.get("slowest_rank_share")
    if rank is None or share is None:
        return "With one rank there is no skew."
    host = found.get("slowest_rank_host")
    place = f"rank {rank}" + (f" on {host}" if host else "")
    skew = words.seconds(found.get("rank_skew_seconds"))
    return f"By medians {place} is the busiest, by {skew}; it is in {words.percent(share)} of the steps."


def findings(found: Mapping[str, Any]) -> Iterator[str]:
    """One line each for the bubble, the warm-up and the clocks."""
    if row := found.get("pipeline"):
        yield bubble(row)
    if found.get("warmup_steps") is not None:
        yield warmup(found)
    if rows := found.get("clocks"):
        yield clocks(rows)


def bubble(row: Mapping[str, Any]) -> str:
    """The measured bubble, its parts, and the formula's."""
    parts = {
        "waiting for a neighbour": row["waiting_seconds"],
        "transfer of messages": row["transfer_seconds"],
        "gaps of the rank itself": row["gap_seconds"],
    }
    told = ", ".join(f"{name} {words.seconds(seconds)}" for name, seconds in parts.items())
    formula = row.get("formula_fraction")
    beside = (
        "" if formula is None else f"; {words.percent(formula, 1)} by {row['formula_source']} at these costs"
    )
    error = row.get("clock_error_seconds")
    trust = f"; clocks are known within {words.seconds(error)}" if error else ""
    return (
        f"Bubble as the actions ran: {words.percent(row['bubble_fraction'], 1)} of the pipeline's span{beside}. "
        f"Per rank and step: {told}{trust}."
    )


def warmup(found: Mapping[str, Any]) -> str:
    """Steps that were left out, and those that step times show."""
    left_out, by_times = found["warmup_steps"], found.get("warmup_steps_found")
    shown = (
        "their times do not show how many belong to it"
        if by_times is None
        else f"{by_times:,} by their times"
    )
    return f"Warm-up: {left_out:,} step{'s' * (left_out != 1)} left out, {shown}."


def clocks(rows: list[dict[str, Any]]) -> str:
    """The offsets of hosts' clocks."""
    worst = max(rows, key=lambda row: row["error_seconds"])
    farthest = max(rows, key=lambda row: abs(row["offset_seconds"]))
    return (
        f"Clocks: rank {farthest['rank']} is {farthest['offset_seconds'] * 1e3:+,.3f} ms from rank 0, the largest; "
        f"known within {worst['error_seconds'] * 1e3:,.3f} ms."
    )


def between(row: Mapping[str, Any]) -> str:
    """What was before and after a gap."""
    after, before = row["after"], row["before"]
    if after is None and before is None:
        return "the whole step"
    if after is None:
        return f"start of the step, {words.spoken(before)}"
    return f"{words.spoken(after)}, " + ("end of the step" if before is None else words.spoken(before))


def gap(row: Mapping[str, Any]) -> str:
    """The costliest gap in one line."""
    return (
        f"{words.seconds(row['seconds'])} a step between {between(row)}; at most "
        f"{words.seconds(row['longest_seconds'])}, on rank {row['rank']} in step {row['step']:,}"
    )


def by_axis(exposed: Mapping[str, float], hidden: Mapping[str, float]) -> str:
    """Exposed and hidden seconds of each axis, the largest first."""
    axes = sorted({*exposed, *hidden}, key=lambda axis: -exposed.get(axis, 0.0))
    parts = [
        f"{axis} {words.seconds(exposed.get(axis, 0.0))}"
        + (f" (hidden {words.seconds(hidden[axis])})" if axis in hidden else "")
        for axis in axes
    ]
    return ", ".join(parts)
