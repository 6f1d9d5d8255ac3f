"""Numbers in the evidence of a finding."""

from __future__ import annotations


def seconds(value: float) -> str:
    """A duration of a step's size: "12.3 ms", "4.50 s"."""
    return f"{value * 1e3:,.1f} ms" if value < 1 else f"{value:,.2f} s"


def size(value: float) -> str:
    """Bytes: "320 bytes", "3.2 MiB", "1.50 GiB"."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:,.1f} {unit}"
    return f"{value:,.0f} bytes"


def percent(fraction: float) -> str:
    """A fraction as percent, as everywhere in the workbench."""
    return f"{fraction * 100:.0f} %" if fraction >= 0.1 or not fraction else f"{fraction * 100:.1f} %"


def rate(bytes_per_second: float) -> str:
    """A bandwidth: "12.4 MB/s", "45.12 GB/s"."""
    large = bytes_per_second >= 1e9
    return f"{bytes_per_second / 1e9:,.2f} GB/s" if large else f"{bytes_per_second / 1e6:,.1f} MB/s"
