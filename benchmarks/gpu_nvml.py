"""A full reading of every GPU by NVML, and what each function costs in wall and processor time.

``--record FILE`` writes the driver's answers in the format of tests/data, for the tests to replay. Without an NVIDIA
GPU nothing is read, and the reason is printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pynvml

from benchmarks import _table
from profilers.analysis import machine
from profilers.gpu.nvml import READ_SECONDS, Nvml
from profilers.gpu.nvml_call_recorder import NvmlCallRecorder
from profilers.records.schema import GpuSample

#: As the sampler reads.
INTERVAL_SECONDS = 0.1
HEADER = [
    "function",
    "calls",
    "wall ms, median",
    "wall ms, most",
    "processor ms, mean",
    "calls a second at 10 Hz",
    "share of a core",
]


def read(library: Nvml, seconds: float) -> list[GpuSample]:
    """Read all GPUs every 0.1 s as the sampler does; the latest value of every field, one sample for each GPU."""
    gpus = range(library.device_count)
    latest = [dict.fromkeys(GpuSample.__dataclass_fields__) for _ in gpus]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        for gpu in gpus:
            told = asdict(library.sample(gpu))
            latest[gpu] |= {name: value for name, value in told.items() if value is not None}
        time.sleep(max(0.0, began + INTERVAL_SECONDS - time.monotonic()))
    return [GpuSample(**fields) for fields in latest]  # type: ignore[arg-type]


def print_reading(library: Nvml, sample: GpuSample) -> None:
    """Every field of a sample, and the reasons of throttling in words."""
    print(f"\nGPU {sample.gpu}: {library.name(sample.gpu)}, driver {library.driver_version}")
    for name, value in asdict(sample).items():
        shown = (
            "not available"
            if value is None
            else f"{value:,.6g}"
            if isinstance(value, float)
            else f"{value:,}"
        )
        print(f"  {name:30} {shown}")
    if sample.throttle_reasons is not None:
        print(f"  {'in words':30} {', '.join(machine.words(sample.throttle_reasons)) or 'clocks are free'}")


def costs(recorder: NvmlCallRecorder, seconds: float) -> list[list[str]]:
    """A row for each function, the dearest first."""
    rows = []
    for function, spans in recorder.seconds.items():
        wall = [1e3 * span for span, _ in spans]
        processor = sum(span for _, span in spans)
        row = [
            function,
            f"{len(spans):,}",
            f"{statistics.median(wall):.3f}",
            f"{max(wall):.3f}",
            f"{1e3 * processor / len(spans):.3f}",
            f"{len(spans) / seconds:.1f}",
            f"{processor / seconds:.3%}",
        ]
        rows.append((processor, row))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    made = _table.parser(__doc__)
    made.add_argument("--seconds", type=float, default=10.0, help="how long to read")
    made.add_argument("--record", type=Path, metavar="FILE", help="write the driver's answers here")
    return made.parse_args()


def main() -> int:
    """Read, print, and record if asked to."""
    given = arguments()
    recorder = NvmlCallRecorder(pynvml)
    library = Nvml(recorder)
    if library.reason is not None or not library.device_count:
        print(f"skipped: {library.reason or 'the driver shows no GPU'}")
        return 0
    samples = read(library, given.seconds)
    for sample in samples:
        print_reading(library, sample)
    for line in library.missing:
        print(f"missing: {line}")
    title = (
        f"{len(samples)} x {library.name(0)}, driver {library.driver_version}: a reading each {INTERVAL_SECONDS:g} s, "
        f"limits, counters and processes each {READ_SECONDS:g} s, for {given.seconds:g} s"
    )
    print()
    _table.show("gpu_nvml", title, HEADER, costs(recorder, given.seconds), given.save)
    about = f"{title}. Written by benchmarks/gpu_nvml.py --record."
    library.close()
    if given.record is not None:
        recorder.save(given.record, about)
        print(f"recorded in {given.record}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
