"""Predicted against measured steps of real ranks: random layouts on four hosts of the lab, at two link rates.

    python -m benchmarks.prediction_lab [--measure] [--minutes 15] [--kept FILE] [--save]

Random layouts are run at both rates, and constants are fitted to 28 of them; thirty others, drawn by another seed, are
predicted and only then compared with what they took. Thirty more were looked at while the constants were thought of:
they are in the file, and neither fitted to nor scored. Every trial is kept in a file as it ends, and ``--measure`` runs
those that are missing, or that ran beside something else: so it can be done in parts. Without it, what the file has is
scored. Beside our prediction by events on shared cores stand the closed form, calibrated on the same trials, and
FLOPs at one rate + bytes on the wire / the link's rate, whose one rate is the median of the same trials. Needs what
``workbench lab`` needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import _lab_trials as lab
from benchmarks import _table as table
from benchmarks._scores import spearman
from benchmarks.published import lab_steps
from benchmarks.published.core_work import CoreWork
from benchmarks.published.gloo import CORE, CoreConstants, load_of, rate_of
from benchmarks.published.run_trials import measured
from engine.config.run_config import RunConfig
from engine.footprint.flops import hardware_flops_per_step, workload_of
from engine.run import netns
from tuning.predict.fit import calibrate
from tuning.predict.fit.finished_runs import Trial
from tuning.predict.model import step_time
from tuning.predict.model.cases import Array
from tuning.predict.model.compute import Device
from tuning.predict.model.network import Links
from tuning.predict.model.step_time import Machine
from tuning.predict.traffic.rank import traffic_of

NAME = "prediction_lab"
KEPT = table.RESULTS / f"{NAME}.json"
#: The issue's bars.
WITHIN, SPEARMAN = 0.15, 0.9
RESAMPLES, INTERVAL = 2000, (2.5, 97.5)
HEADER = ("Mbit/s", "predictor", "trials", "median error", "within 15 %", "Spearman (95 %)", "bars")
OF_TRIALS = ("Mbit/s", "layout", "measured, s", "predicted, s", "predicted / measured")
Predictor = Callable[[Sequence[Trial]], Array]


def predictors(known: Sequence[Trial], constants: CoreConstants) -> dict[str, Predictor]:
    """By name; all of them know the same trials."""
    return {
        "events on shared cores": lambda trials: by_events(trials, constants),
        "closed form": closed_form(known, constants),
        "FLOPs + bytes / rate": naive(known),
    }


def cores() -> int:
    """Those that ranks share."""
    return len(os.sched_getaffinity(0))


def by_events(trials: Sequence[Trial], constants: CoreConstants) -> Array:
    """Ours."""
    return np.array([lab_steps.simulate(trial.config, cores(), constants).seconds for trial in trials])


def closed_form(known: Sequence[Trial], constants: CoreConstants) -> Predictor:
    """Ranks that have an even share of the cores all the time; what it does not know is fitted to whole steps."""
    fitted = calibrate.fit_constants(measured(known, machine, 1), constants, {})

    def predict(trials: Sequence[Trial]) -> Array:
        found = measured(trials, machine, 1)
        return step_time.step(found.cases, found.machine, fitted).seconds

    return predict


def machine(config: RunConfig) -> Machine:
    """A rank's part of the cores, and its link."""
    share, rate = min(1.0, cores() / lab.RANKS), rate_of(config)
    return Machine(Device(CORE.peak * share, CORE.bandwidth * share), Links(rate, rate))


def naive(known: Sequence[Trial]) -> Predictor:
    """What one writes on an envelope."""
    work, wire = arithmetic(known)
    seconds = np.array([trial.seconds for trial in known])
    rate = np.median(work / np.maximum(seconds - wire, 0.1 * seconds))

    def predict(trials: Sequence[Trial]) -> Array:
        work, wire = arithmetic(trials)
        found: Array = work / rate + wire
        return found

    return predict


def arithmetic(trials: Sequence[Trial]) -> tuple[Array, Array]:
    """FLOPs of a rank, and the seconds that the busiest rank's bytes need."""
    flops = [hardware_flops_per_step(workload_of(trial.config)) / lab.RANKS for trial in trials]
    wire = [most_sent(trial.config) / rate_of(trial.config) for trial in trials]
    return np.array(flops), np.array(wire)


def most_sent(config: RunConfig) -> float:
    """Bytes of the rank that sends most."""
    pipeline = CoreWork.of(config).pipeline
    ranks = (traffic_of(pipeline, rank).calls for rank in range(lab.RANKS))
    return max(sum(load_of(call).sent for call in calls) for calls in ranks)


def row(name: str, rate: str, predicted: Array, taken: Array) -> list[str]:
    """Scores of one predictor at one rate, or at all."""
    error = np.abs(predicted / taken - 1)
    order, (low, high) = spearman(predicted, taken), interval(predicted, taken)
    middle, passes = float(np.median(error)), []
    passes += ["error " + ("pass" if middle <= WITHIN else "missed")]
    passes += ["order " + ("pass" if order >= SPEARMAN else "missed")]
    within = f"{np.mean(error <= WITHIN):.0%}"
    spread = f"{order:.3f} ({low:.3f} to {high:.3f})"
    return [rate, name, f"{len(taken)}", f"{middle:.1%}", within, spread, ", ".join(passes)]


def interval(predicted: Array, taken: Array) -> tuple[float, float]:
    """Of Spearman's correlation, by trials drawn again (B. Efron's bootstrap, 1979)."""
    draws = np.random.default_rng(0).integers(0, len(taken), (RESAMPLES, len(taken)))
    found = [spearman(predicted[draw], taken[draw]) for draw in draws if len(set(draw.tolist())) > 2]
    low, high = np.percentile(found, INTERVAL)
    return float(low), float(high)


def scores(trials: Sequence[Trial], found: Mapping[str, Array]) -> list[list[str]]:
    """A row for each rate and predictor, those of all trials last."""
    taken = np.array([trial.seconds for trial in trials])
    rates = np.array([trial.config.lab.rate_mbit for trial in trials])
    chosen = {f"{rate:,.0f}": rates == rate for rate in np.unique(rates)}
    chosen["both"] = np.ones(len(rates), bool)
    return [
        row(name, rate, predicted[rows], taken[rows])
        for rate, rows in chosen.items()
        for name, predicted in found.items()
    ]


def one(trial: Trial, seconds: float) -> list[str]:
    """A trial as a line."""
    numbers = [f"{trial.seconds:.3f}", f"{seconds:.3f}", f"{seconds / trial.seconds:.2f}"]
    return [f"{trial.config.lab.rate_mbit:,.0f}", layout(trial.config), *numbers]


def layout(config: RunConfig) -> str:
    """A layout in short."""
    degrees = [f"{name} {getattr(config.parallel, name)}" for name in ("dp", "tp", "pp", "cp")]
    shown = [text for text in degrees if not text.endswith(" 1")]
    schedule = f"{config.schedule.kind} x {config.schedule.chunks}" if config.parallel.pp > 1 else ""
    rest = f"zero {config.parallel.zero_stage}, micro-batch {config.batch.micro_batch}"
    recompute = "" if config.memory.recompute == "none" else f"{config.memory.recompute} recomputation"
    bucket = f"buckets of {config.overlap.bucket_mb:g} MiB"
    return ", ".join(part for part in (" ".join(shown), schedule, rest, recompute, bucket) if part)


def show(kept: Path, save: bool) -> None:
    """Fit, predict, compare."""
    known, scored = (lab.trials_of(kept, part) for part in ("fit", "score"))
    constants = lab_steps.calibrate(known, cores())
    found = {name: predict(scored) for name, predict in predictors(known, constants).items()}
    title = f"Predicted and measured steps: {lab.RANKS} gloo ranks on {cores()} cores, a host of the lab each"
    text = table.show(NAME, title, HEADER, scores(scored, found), save)
    said = f"Constants were fitted to {len(known)} trials of other layouts; none is scored.\n"
    ours = found["events on shared cores"].tolist()
    lines = [OF_TRIALS, ["---"] * len(OF_TRIALS), *map(one, scored, ours)]
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    print(said, rows, sep="\n")
    if save:
        (table.RESULTS / f"{NAME}.md").write_text(f"{text}\n{said}\n{rows}\n", encoding="utf-8")


def main() -> None:
    """Measure what is missing if asked to, and score all that there is."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--measure", action="store_true", help="run the trials that the file lacks")
    arguments.add_argument("--minutes", type=float, default=15.0, help="after which no trial begins")
    arguments.add_argument("--kept", type=Path, default=KEPT, help="file of the trials measured so far")
    given = arguments.parse_args()
    if given.measure:
        if reason := netns.unavailability():
            raise SystemExit(f"no network namespaces: {reason}")
        lab.measure(given.kept, given.minutes)
    show(given.kept, given.save)


if __name__ == "__main__":
    main()
