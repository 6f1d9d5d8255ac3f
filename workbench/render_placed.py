"""Where ranks belong, as people read it in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tuning.predict.placement.place import Placed
from workbench import words

#: The most devices that are listed as a person types them; of more, runs of them are told.
_LISTED = 64


def lines(found: Placed | None) -> Iterator[str]:
    """What the best placement is and what it gains; nothing where all devices and links are alike."""
    if found is None:
        return
    yield f"Where ranks belong on {found.where}:"
    if not found.values:
        yield f"  {found.reason}"
        return
    yield f"  {100 * found.gain:+6.1f} % tokens/s  {settings(found)}"
    yield f"  {found.reason}"
    yield f"  {_axes(found)}"
    if found.configured_seconds is not None:
        yield f"  as configured: {words.seconds(sum(found.configured_seconds.values()))} a step, nothing hidden"


def settings(found: Placed) -> str:
    """Keys and values as ``--set`` takes them; a long order in runs of devices that follow each other."""
    return " ".join(f"{key}={_listed(values)}" for key, values in found.values.items())


def _listed(values: Sequence[int]) -> str:
    if len(values) <= _LISTED:
        return f"[{','.join(map(str, values))}]"
    return f"[{', '.join(_runs(values))}] (--json has the whole list)"


def _runs(values: Sequence[int]) -> Iterator[str]:
    first = last = values[0]
    for value in values[1:]:
        if value != last + 1:
            yield f"{first}-{last}" if first < last else str(first)
            first = value
        last = value
    yield f"{first}-{last}" if first < last else str(first)


def _axes(found: Placed) -> str:
    """Seconds of what an order changes, before and after."""
    before, after = found.in_order_seconds, found.seconds
    changed = [name for name in after if abs(after[name] - before[name]) > 0.005 * sum(before.values())]
    parts = [f"{name} {words.seconds(before[name])} -> {words.seconds(after[name])}" for name in changed]
    return f"ranks in order -> placed, nothing hidden: {', '.join(parts)}"
