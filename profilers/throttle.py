"""The reasons that hold a GPU's clocks down, in words.

The bits are NVML's nvmlClocksEventReasons, which drivers before 535 call nvmlClocksThrottleReasons; the values are the
same. What AMD's GPUs tell is put into them (``amd_readings``).
"""

from __future__ import annotations

#: Bit -> words, in NVML's order.
REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "application clocks setting",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
    0x100: "display clocks setting",
    0x200: "board limit",
    0x400: "reliability limit",
}
#: Someone chose these, or there is nothing to do: no trouble.
CHOSEN = frozenset({"idle", "application clocks setting", "display clocks setting"})
_HARDWARE, _HARDWARE_CAUSES = 0x8, 0x40 | 0x80


def words(mask: int) -> tuple[str, ...]:
    """What a mask of reasons says; empty if the clocks are as high as they can be.

    "hardware slowdown" is said only where the driver gives no cause of it.
    """
    if mask & _HARDWARE_CAUSES:
        mask &= ~_HARDWARE
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple(REASONS.get(bit, f"unknown reason {bit:#x}") for bit in bits)


def slows(mask: int) -> tuple[str, ...]:
    """As ``words``, without what someone chose."""
    return tuple(reason for reason in words(mask) if reason not in CHOSEN)
