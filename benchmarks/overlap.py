"""Step time with and without each way to overlap or shrink messages, over links of a known rate.

    python -m benchmarks.overlap [--steps 8] [--repeats 4] [--rates 100 1000] [--only prefetch ...] [--save]

Four ranks, one host of the lab each. Runs without and with it take turns, and each pair gives a ratio of the medians
of their measured steps; the first row compares a setting with itself. Needs what ``workbench lab`` needs.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _table
from engine.config.run_config import RunConfig, parse
from engine.run import netns, run_folder
from engine.session import Session
from profilers.records.reader import RunRecords

RANKS = 4
_WARM_UP = 2
_BASE: dict[str, Any] = {
    "model": {"layers": 6, "hidden": 256, "heads": 8, "kv_heads": 8, "ffn_hidden": 704},
    "data": {"sequence_length": 128},
    "batch": {"global_batch": 8, "micro_batch": 1},
    "train": {"validation_batches": 0, "step_timeout_seconds": 120.0},
    "device": "cpu",
    "compression.start_step": 0,
}
_ZERO_1 = {"parallel.dp": RANKS, "parallel.zero_stage": 1, "overlap.bucket_mb": 2.0}
_ZERO_3 = {"parallel.dp": RANKS, "parallel.zero_stage": 3}
_TP = {"parallel.tp": RANKS, "batch.micro_batch": 2}
_EXPERTS = {"model.experts": 4, "parallel.dp": RANKS, "parallel.ep": RANKS}
_DP = {"parallel.dp": RANKS, "overlap.bucket_mb": 2.0}
#: Name -> what both runs have, and what one of them has.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing (ZeRO 3 beside itself)": (_ZERO_3, {}),
    "prefetch 1": (_ZERO_3, {"overlap.prefetch": 1}),
    "prefetch 2": (_ZERO_3, {"overlap.prefetch": 2}),
    "gather_with_optimizer": (_ZERO_1, {"overlap.gather_with_optimizer": True}),
    "tp_chunks 2": (_TP, {"overlap.tp_chunks": 2}),
    "tp_chunks 4": (_TP, {"overlap.tp_chunks": 4}),
    "delay 1": (_DP, {"overlap.delay": 1}),
    "weights int8": (_ZERO_3, {"compression.weights": "int8"}),
    "method int8, ZeRO 3": (_ZERO_3, {"compression.method": "int8"}),
    "method int4, ZeRO 1": (_ZERO_1, {"compression.method": "int4"}),
    "experts int8": (_EXPERTS, {"compression.experts": "int8"}),
}


def config(values: dict[str, Any], rate: float, steps: int) -> RunConfig:
    """One run on as many hosts as ranks."""
    sections = {key: value for key, value in _BASE.items() if "." not in key}
    single = {key: value for key, value in _BASE.items() if "." in key}
    length = {"train.steps": _WARM_UP + steps, "train.warmup": _WARM_UP}
    return parse(sections).with_values(single | values | length | {"lab.hosts": RANKS, "lab.rate_mbit": rate})


def taken(session: Session, chosen: RunConfig) -> tuple[float, float]:
    """Median seconds of a measured step, and of its exposed communication, over ranks."""
    outcome, summary = session.execute(chosen, {}, lambda: False)
    if not outcome.good:
        raise SystemExit(str(outcome))
    records = RunRecords(session.home / summary.id / run_folder.RECORDS)
    steps: list[Any] = [step for rank in records.ranks() for step in records.table(rank, "step").rows()]
    kept = [step for step in steps if step.measured]
    return (
        statistics.median(step.step_seconds for step in kept),
        statistics.median(step.communication_exposed_seconds for step in kept),
    )


def row(session: Session, name: str, rate: float, steps: int, repeats: int) -> list[str]:
    """Without and with it in turn."""
    both, one = CASES[name]
    pairs = []
    for number in range(repeats):
        order = [both, both | one][:: 1 if number % 2 == 0 else -1]
        found = [taken(session, config(values, rate, steps)) for values in order]
        pairs.append(found if number % 2 == 0 else found[::-1])
    ratios = sorted(after[0] / before[0] for before, after in pairs)
    means = [statistics.median(pair[way][which] for pair in pairs) for which in (0, 1) for way in (0, 1)]
    return [
        name,
        f"{rate:,.0f}",
        *(f"{seconds:.3f}" for seconds in means[:2]),
        f"{statistics.median(ratios):.2f}",
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        *(f"{seconds:.3f}" for seconds in means[2:]),
    ]


def main() -> None:
    """One table."""
    parser = _table.parser(__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--rates", type=float, nargs="+", default=[100.0, 1000.0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    given = parser.parse_args()
    if reason := netns.unavailability():
        raise SystemExit(f"no network namespaces: {reason}")
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        found = [
            row(session, name, rate, given.steps, given.repeats)
            for rate in given.rates
            for name in given.only
        ]
    header = ["what", "Mbit/s", "step without, s", "with, s", "ratio", "of pairs"]
    title = f"Overlap: {RANKS} ranks on {RANKS} hosts, {given.repeats} pairs of runs of {given.steps} steps"
    _table.show("overlap", title, [*header, "exposed without, s", "with, s"], found, given.save)


if __name__ == "__main__":
    main()
