"""Published dense peaks of devices, each with the vendor's document it is from. Pure.

Figures are those of one device as torch counts devices, in TFLOP/s, without structured sparsity: where a document
prints a figure with sparsity only, half of it is taken, and the row says so. "fp32" is what matrix products reach
without TF32, "tf32" with it. They hold at the document's boost clock; a device may run a little above it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HALVED = "tensor figures are printed with sparsity and halved here"


@dataclass(frozen=True, slots=True)
class Peak:
    """Dense peak of one device in FLOP/s, and the arithmetic and document that it is for."""

    flops_per_second: float
    source: str


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """One row: a pattern for the whole device name as the driver gives it, and its peaks in TFLOP/s."""

    pattern: str
    teraflops: dict[str, float]
    source: str
    note: str = ""


def _row(pattern: str, source: str, note: str = "", **teraflops: float) -> DevicePeaks:
    return DevicePeaks(pattern, teraflops, source, note)


_V100 = "NVIDIA V100 datasheet"
_A100 = "NVIDIA A100 datasheet"
_H100 = "NVIDIA H100 datasheet"
_H200 = "NVIDIA H200 datasheet"
_BLACKWELL = "NVIDIA Blackwell datasheet"

#: Consumer cards: with fp32 accumulation, which is what torch asks for.
TABLE: tuple[DevicePeaks, ...] = (
    _row(r"(Tesla )?V100-SXM2-(16|32)GB", _V100, fp32=15.7, fp16=125),
    _row(r"(Tesla )?V100-PCIE-(16|32)GB", _V100, fp32=14, fp16=112),
    _row(r"(Tesla )?V100S-PCIE-32GB", _V100, fp32=16.4, fp16=130),
    _row(r"A100-(SXM4|PCIE)-(40|80)GB|A100 80GB PCIe", _A100, fp32=19.5, tf32=156, bf16=312, fp16=312),
    _row(r"A40", "NVIDIA A40 datasheet", fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7),
    _row(r"L4", "NVIDIA L4 datasheet", _HALVED, fp32=30.3, tf32=60, bf16=121, fp16=121, fp8=242.5),
    _row(r"L40", "NVIDIA L40 datasheet", fp32=90.5, tf32=90.5, bf16=181.05, fp16=181.05, fp8=362),
    _row(r"L40S", "NVIDIA L40S datasheet", fp32=91.6, tf32=183, bf16=362.05, fp16=362.05, fp8=733),
    _row(r"H100 80GB HBM3", _H100, _HALVED, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979),
    _row(r"H100 PCIe", _H100, _HALVED, fp32=51, tf32=378, bf16=756.5, fp16=756.5, fp8=1513),
    _row(r"H100 NVL", _H100, _HALVED, fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5),
    _row(r"H200", _H200, _HALVED, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5, fp8=1979),
    _row(r"H200 NVL", _H200, _HALVED, fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5),
    _row(
        r"GH200( 480GB| 120GB| 144G HBM3e)?",
        "NVIDIA GH200 datasheet",
        _HALVED,
        fp32=67,
        tf32=494.5,
        bf16=989.5,
        fp16=989.5,
        fp8=1979,
    ),
    _row(r"B200", _BLACKWELL, _HALVED, fp32=75, tf32=1100, bf16=2250, fp16=2250, fp8=4500),
    _row(r"GB200", _BLACKWELL, _HALVED, fp32=80, tf32=1250, bf16=2500, fp16=2500, fp8=5000),
    _row(
        r"AMD Instinct MI250X",
        "AMD Instinct MI250X data sheet",
        "a device is one of the module's two dies: half of the module's matrix figures",
        fp32=47.85,
        bf16=191.5,
        fp16=191.5,
    ),
    _row(
        r"(AMD Instinct )?MI300X( OAM|-O| VF)?",
        "AMD Instinct MI300X data sheet",
        fp32=163.4,
        tf32=653.7,
        bf16=1307.4,
        fp16=1307.4,
        fp8=2614.9,
    ),
    _row(r"GeForce RTX 3090", "NVIDIA Ampere GA102 whitepaper", fp32=35.6, tf32=35.6, bf16=71, fp16=71),
    _row(
        r"GeForce RTX 4090",
        "NVIDIA Ada whitepaper",
        fp32=82.6,
        tf32=82.6,
        bf16=165.2,
        fp16=165.2,
        fp8=330.3,
    ),
)


def peak_flops(device_name: str, dtype: str, tf32: bool = False) -> Peak | None:
    """The published dense peak for matrix products in ``dtype``: fp32, bf16, fp16 or fp8; None if there is none.

    ``tf32``: fp32 products may run as TF32 on the tensor cores, as torch does unless
    ``torch.get_float32_matmul_precision()`` is "highest".
    """
    row = _row_of(device_name)
    if row is None:
        return None
    name = "tf32" if tf32 and dtype == "fp32" and "tf32" in row.teraflops else dtype
    if name not in row.teraflops:
        return None
    note = f" ({row.note})" if row.note else ""
    return Peak(row.teraflops[name] * 1e12, f"dense {name}, {row.source}{note}")


def why_unknown(device_name: str, dtype: str) -> str:
    """Why ``peak_flops`` gives None."""
    if device_name == "cpu":
        return "a CPU has no published peak"
    if _row_of(device_name) is None:
        return f"no published peak known for {device_name!r}"
    return f"no published {dtype} peak known for {device_name!r}"


def mean_peak(device_names: Sequence[str], dtype: str, tf32: bool) -> tuple[float | None, str]:
    """Mean peak in FLOP/s of the devices of a run's ranks, and its sources; or None, and why."""
    if not device_names:
        return None, "no rank has told its device"
    peaks = []
    for name in device_names:
        peak = peak_flops(name, dtype, tf32)
        if peak is None:
            return None, why_unknown(name, dtype)
        peaks.append(peak)
    sources = dict.fromkeys(peak.source for peak in peaks)
    return sum(peak.flops_per_second for peak in peaks) / len(peaks), "; ".join(sources)


def _row_of(device_name: str) -> DevicePeaks | None:
    bare = device_name.strip().removeprefix("NVIDIA ")
    return next((row for row in TABLE if re.fullmatch(row.pattern, bare, re.IGNORECASE)), None)
