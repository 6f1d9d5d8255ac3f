"""Checks of what measures: a quick calibration, and a trace of all ranks that was ordered while they trained.

Check of what recording costs: short runs in turn, recorded as usual and as little as can be.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from engine.config.errors import several
from engine.config.run_config import RunConfig
from engine.run import progress, run_folder
from engine.run.calibration.table import Calibration, Kind
from engine.session import Session
from workbench.selftest.check_context import CheckContext
from workbench.selftest.results import (
    Number,
    Outcome,
    Verdict,
    make_failure,
    make_pass,
    not_possible,
    verdict_of,
)

_ORDER = "selftest-trace"
_STEP = 3
_LOOK_SECONDS = 0.05
_TRACE_SECONDS = 90.0
#: A trace has a line for every operator.
_SMALLEST = {"model.layers": 1, "model.hidden": 32, "model.ffn_hidden": 64, "batch.global_batch": 2}


def calibration(bench: CheckContext) -> Verdict:
    """Every curve of ``workbench calibrate --quick``; nothing of it is stored in the user's home."""
    from engine.launch.measure.calibrate import CalibrationRequest, calibrate

    ranks = bench.ranks
    device = "cpu" if bench.why_not_cuda(ranks) else "cuda"
    result = calibrate(
        bench.home, CalibrationRequest(ranks, True, device), lambda: False, lambda progress: None
    )
    bench.keep("calibration.json", result.as_dict())
    problems = [] if result.complete else ["it is not complete"]
    for curve in result.curves:
        points = [point.seconds for point in curve.points]
        if not points or not all(math.isfinite(seconds) and seconds > 0 for seconds in points):
            problems.append(f"{curve.name} on {several(curve.ranks, 'ranks')} has implausible times")
    wanted: tuple[Kind, ...] = ("gemm", "memory", "collective", *(("transfer",) if device == "cuda" else ()))
    problems += [f"no curve of kind {kind}" for kind in wanted if not result.select_curves(kind)]
    device_text = "GPUs" if device == "cuda" else "CPU ranks"
    success = f"{len(result.curves)} curves on {ranks} {device_text} in {result.seconds:.0f} s"
    return verdict_of(problems, success, _best(result))


def _best(calibration_: Calibration) -> dict[str, Number]:
    """The best rates, and the errors of the fits."""
    measured: dict[str, Number] = {}
    for curve in calibration_.curves:
        unit = "flops_per_second" if curve.kind == "gemm" else "bytes_per_second"
        measured[f"{curve.name}_{curve.ranks}_ranks_{unit}"] = curve.peak
        if curve.fit is not None:
            measured[f"{curve.name}_{curve.ranks}_ranks_fit_error_fraction"] = curve.fit.median_error
    return measured


def trace(bench: CheckContext) -> Verdict:
    """torch.profiler over one step of all ranks, ordered as ``workbench control ID trace`` does."""
    is_written = threading.Event()
    config = bench.config({"parallel.dp": 2, "train.steps": 100_000} | _SMALLEST)
    written: list[Path] = []

    def follow(folder: Path) -> None:
        written.append(folder)
        threading.Thread(target=_order, args=(folder, is_written), daemon=True).start()

    with bench.session() as session:
        outcome, _ = bench.run(session, config, "trace", is_written.is_set, follow)
    files = sorted(written[0].glob(f"{run_folder.TRACES}/*/rank-*.json.gz"))
    problems = []
    if outcome.ending.value != "stopped":
        problems.append(f"ended {outcome.ending.value} instead of stopped: {outcome.reason}")
    if len(files) != 2:
        problems.append(f"{len(files)} of 2 ranks wrote a trace within {_TRACE_SECONDS:.0f} s")
    size = sum(path.stat().st_size for path in files)
    return verdict_of(
        problems, f"both ranks recorded a step ({bench.describe_backend(config)})", {"packed_bytes": size}
    )


def _order(folder: Path, is_written: threading.Event) -> None:
    deadline = time.monotonic() + _TRACE_SECONDS
    has_asked = False
    while time.monotonic() < deadline:
        ranks = progress.read(folder)
        if not has_asked and len(ranks) > 1 and min(rank.step for rank in ranks) >= _STEP:
            path = folder / run_folder.COMMANDS / f"{_ORDER}.json"
            command = {"id": _ORDER, "command": "trace", "arguments": {"steps": 1}}
            run_folder.write_json(path, command)
            has_asked = True
        if len(list(folder.glob(f"{run_folder.TRACES}/*/rank-*.json.gz"))) == 2:
            break
        time.sleep(_LOOK_SECONDS)
    is_written.set()


#: The lowest and the highest of so many pairs hold their median with 99.2 %, whatever the noise looks like.
_PAIRS = 8
_CONFIDENCE_PERCENT = 99.2
#: What recording may add to a step.
_BAR = 0.01
_USUAL: dict[str, Any] = {
    "parallel.dp": 2,
    "batch.global_batch": 8,
    "batch.micro_batch": 2,
    "data.sequence_length": 128,
    "train.steps": 24,
    "train.warmup": 8,
}
_LITTLE: dict[str, Any] = {
    "profile.collectives": False,
    "profile.memory": False,
    "profile.host_interval_seconds": 3600.0,
}


class _UnusableError(Exception):
    """A run that gave no step time, with the reason."""


def recording_cost(bench: CheckContext) -> Verdict:
    """The ratio of step times, pair by pair, the order turned each time; what exceeds the bar is measured again."""
    usual, short_records = bench.config(_USUAL), bench.config(_USUAL | _LITTLE)
    try:
        with bench.session() as session:
            _step(bench, session, usual, "warm-up")
            verdict = judge(_ratios(bench, session, usual, short_records, "first"))
            if verdict.outcome is Outcome.FAIL:
                verdict = judge(_ratios(bench, session, usual, short_records, "again"))
    except _UnusableError as problem:
        return make_failure(str(problem))
    return verdict


def judge(ratios: list[float]) -> Verdict:
    """Of step times, recorded over not: within the bar, beyond it, or too noisy to tell."""
    low, middle, high = (value - 1 for value in (min(ratios), statistics.median(ratios), max(ratios)))
    measured: dict[str, Number] = {
        "added_fraction": middle,
        "added_low_fraction": low,
        "added_high_fraction": high,
        "pairs_count": len(ratios),
        "confidence_percent": _CONFIDENCE_PERCENT,
    }
    text = f"recording adds {middle:+.1%} to a step ({low:+.1%} to {high:+.1%})"
    if high <= _BAR:
        return make_pass(f"{text}, at most {_BAR:.0%}", measured)
    if low > _BAR:
        return make_failure(f"{text}, more than {_BAR:.0%}", measured)
    return not_possible(
        f"cannot decide: {text}, and the bar is {_BAR:.0%}; the machine is too noisy", measured
    )


def _ratios(
    bench: CheckContext, session: Session, usual: RunConfig, short_records: RunConfig, turn: str
) -> list[float]:
    ratios = []
    for pair in range(1, _PAIRS + 1):
        ratio_by_name: dict[str, float] = {}
        order = ("usual", "little") if pair % 2 else ("little", "usual")
        for kind in order:
            config = usual if kind == "usual" else short_records
            ratio_by_name[kind] = _step(bench, session, config, f"{turn}-{pair}-{kind}")
        ratios.append(ratio_by_name["usual"] / ratio_by_name["little"])
    return ratios


def _step(bench: CheckContext, session: Session, config: RunConfig, label: str) -> float:
    """Median seconds of a measured step."""
    outcome, summary = bench.run(session, config, label)
    if not outcome.good or summary.step_seconds is None:
        raise _UnusableError(
            f"{label} ended {outcome.ending.value}: {outcome.reason or 'without a step time'}"
        )
    return summary.step_seconds.median
