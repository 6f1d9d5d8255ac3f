"""Columns of a table in SI units, and how a terminal and a page write their numbers; those of GPUs and hosts by the
fields of their rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from profilers.model.machine_rows import Display, GpuRow, HostRow
from workbench.text import words


class Unit(NamedTuple):
    """How a quantity in SI units is written: as text, which says its unit, and in a sortable table, whose title does,
    as ``factor`` of it by ``format``.
    """

    name: str
    factor: float
    format: str
    text: Callable[[float | None], str]


def _bandwidth(rate: float | None) -> str:
    return words.NOTHING if rate is None else f"{rate / 1e9:.3f} GB/s"


def _megabyte_rate(rate: float | None) -> str:
    return words.NOTHING if rate is None else f"{rate / 1e6:,.1f} MB/s"


def _with_unit(unit: str, digits: str = ",.0f", factor: float = 1) -> Callable[[float | None], str]:
    return lambda value: words.NOTHING if value is None else f"{value * factor:{digits}} {unit}"


COUNT = Unit("", 1, "%,d", words.number)
MEAN_COUNT = Unit("", 1, "%,.1f", lambda count: words.NOTHING if count is None else f"{count:g}")
RATIO = Unit("", 1, "%.3f", lambda ratio: words.number(ratio, 3))
SECONDS = Unit("s", 1, "%,.2f", words.seconds)
MILLISECONDS = Unit("ms", 1e3, "%,.2f", words.seconds)
MEGABYTES = Unit("MB", 1e-6, "%,.2f", words.gib)
PERCENT = Unit("%", 1e2, "%,.1f", words.percent)
BANDWIDTH = Unit("GB/s", 1e-9, "%,.3f", _bandwidth)
MEGABYTE_RATE = Unit("MB/s", 1e-6, "%,.2f", _megabyte_rate)
WATTS = Unit("W", 1, "%,.0f", _with_unit("W"))
KILOJOULES = Unit("kJ", 1e-3, "%,.1f", _with_unit("kJ", ",.1f", 1e-3))
CELSIUS = Unit("°C", 1, "%.0f", _with_unit("°C"))
GIBIBYTES = Unit("GiB", 2**-30, "%,.1f", words.gib)


#: Figures of the smallest number of a table, and decimals of milliseconds that nobody needs more of.
_FIGURES, _MOST_DECIMALS = 3, 3


def milliseconds(seconds: Iterable[float]) -> Unit:
    """For numbers that are compared with each other: all with so many decimals that the smallest has three figures."""
    smallest = 1e3 * min((value for value in seconds if value > 0), default=1.0)
    decimals = min(max(_FIGURES - 1 - math.floor(math.log10(smallest)), 0), _MOST_DECIMALS)
    return Unit(
        "ms",
        1e3,
        f"%,.{decimals}f",
        lambda value: words.NOTHING if value is None else f"{1e3 * value:,.{decimals}f} ms",
    )


@dataclass(frozen=True, slots=True)
class Column:
    """One column: values in SI units where there is a ``unit``, else as they are; ``note`` explains it."""

    name: str
    values: Sequence[Any]
    unit: Unit | None = None
    note: str | None = None

    @property
    def title(self) -> str:
        """The name, with the unit of ``numbers``."""
        return f"{self.name}, {self.unit.name}" if self.unit and self.unit.name else self.name

    @property
    def numbers(self) -> list[Any]:
        """The values in that unit; None stays None."""
        factor = self.unit.factor if self.unit else None
        return [value if value is None or factor is None else value * factor for value in self.values]

    @property
    def texts(self) -> list[str]:
        """The values as a terminal prints them."""
        return [self.unit.text(value) if self.unit else str(value) for value in self.values]


#: By the units of ``Display``.
_UNITS = {
    "fraction": PERCENT._replace(format="%.0f"),
    "W": WATTS,
    "J": KILOJOULES,
    "°C": CELSIUS,
    "bytes": GIBIBYTES,
    "bytes/s": MEGABYTE_RATE,
}


def gpu(row: GpuRow) -> str:
    """What one GPU amounted to over the measured steps; only what was read."""
    return ", ".join(_in_line(row)) or "no reading"


def host(row: HostRow) -> str:
    """What one host amounted to over the measured steps; only what was read."""
    parts = [", ".join(_in_line(row)), words.named_ranks(row.ranks) if row.ranks else ""]
    return "; ".join(filter(None, parts)) or "no reading"


def _in_line(row: GpuRow | HostRow) -> Iterator[str]:
    for look, column in _display_columns([row]):
        (value,), (text,) = column.values, column.texts
        if look.in_line and value not in (None, words.NOTHING):
            whole = f" of {column.unit.text(getattr(row, look.of))}" if look.of and column.unit else ""
            yield f"{look.title} {text}{whole}"


def gpu_columns(rows: Sequence[GpuRow], with_hosts: bool) -> list[Column]:
    """All GPUs over the measured steps, with what the fields of ``GpuRow`` say of themselves."""
    return [
        *([Column("host", [row.host for row in rows])] if with_hosts else []),
        Column("GPU", [row.gpu for row in rows]),
        Column("ranks", [_ranks_on(row) for row in rows]),
        *(column for _, column in _display_columns(rows)),
    ]


def host_columns(rows: Sequence[HostRow]) -> list[Column]:
    """All hosts over the measured steps, with what the fields of ``HostRow`` say of themselves."""
    names = [Column("host", [row.host for row in rows])] if any(row.host for row in rows) else []
    return [
        *names,
        Column("ranks", [_ranks_on(row) for row in rows]),
        *(column for _, column in _display_columns(rows)),
    ]


def _display_columns(rows: Sequence[GpuRow | HostRow]) -> list[tuple[Display, Column]]:
    columns = []
    for field in fields(rows[0]) if rows else ():
        if look := field.metadata.get("display"):
            values = [getattr(row, field.name) for row in rows]
            if any(isinstance(value, dict) for value in values):
                values = [_shares_text(value) for value in values]
            columns.append((look, Column(look.title, values, _unit(look.unit))))
    return columns


def _unit(name: str) -> Unit | None:
    """How a quantity of a GPU or a host is written; what stands nowhere is a number with its unit."""
    return _UNITS.get(name, Unit(name, 1, "%,.4g", _with_unit(name, ",.4g"))) if name else None


def _ranks_on(row: GpuRow | HostRow) -> str:
    if row.ranks is None:
        return "not known"
    return ", ".join(f"{rank:,}" for rank in row.ranks) or words.NOTHING


def _shares_text(shares: Mapping[str, float]) -> str:
    """ "power cap 75 %, idle 3 %"; a dash if there are none."""
    parts = (f"{reason} {words.percent(share)}" for reason, share in shares.items())
    return ", ".join(parts) or words.NOTHING
