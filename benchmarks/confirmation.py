"""How often a study's claim is wrong, and what racing saves: whole studies on a made-up machine, no ranks.

The decisions are the program's own (``tuning/analysis/early_stop.py``, ``tuning/analysis/confirmation.py``); only steps
are drawn, with noise from step to step and from run to run, neighbours alike, hiccups, runs that something slows down,
warm-up, and a machine that drifts. "Equal" studies hold one speed twelve times; "close" ones differ by 5 % (a standard
deviation); "lab" ones are twelve layouts out of those that were measured in the lab. Measured seconds are those of the
search's measured steps; "of the study" counts warm-up and confirmation, too. "Ahead again": the confirmed winner beside
the baseline, measured in as many new rounds as the study's.

``--real N`` runs small studies on two real ranks instead, until N of them claim a gain of 5 % or more, and measures
each winner and the baseline once more. ``--demo N`` runs the demo study N times.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._noise import Array, Machine, Noise, recorded
from engine.run.outcome import EarlyEnd
from tuning.analysis import confirmation, early_stop, recommendation
from tuning.analysis.comparison import log_rates
from tuning.analysis.early_stop import Steps
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.state import StudyState, Trial

TRIALS, WARM_UP, TOKENS = 12, 4, 2048
#: Steps that a run does between a decision and its end: until it is seen, and two more.
LATE = 3
RUN_NOISE = (0.01, 0.02, 0.03, 0.04)
#: Within this of the fastest counts as an equal result.
EQUAL = 0.02
KINDS = ("equal", "close", "lab")


@dataclass(frozen=True, slots=True)
class Told:
    """What one study came to. Gains are ratios to the baseline; ``seconds`` of the search, and of all of it."""

    verdict: str
    gain: float
    true_gain: float
    ahead_once: bool
    ahead_again: bool
    loss: float
    lost_best: bool
    measured_seconds: float
    search_seconds: float
    all_seconds: float


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    options = _arguments(arguments)
    if options.real:
        from benchmarks import _confirmation_real

        _confirmation_real.main(options.real, options.save)
        return
    if options.demo:
        from benchmarks import _confirmation_demo

        _confirmation_demo.main(options.demo, options.save)
        return
    claims(options)
    options.studies = max(1, options.studies // 4)  # what is spared varies little
    costs(options)


def claims(options: argparse.Namespace) -> None:
    """How often a claim is wrong or does not hold."""
    header = ["studies", "noise from run to run", "better claimed", "equal", "undecided", "ahead again",
              "ahead, one run each", "gain claimed", "true gain"]  # fmt: skip
    lines = []
    for repeats in (options.repeats // 2, options.repeats, 2 * options.repeats):
        file = _file(options, True, options.steps, repeats)
        for kind in KINDS:
            for noise in RUN_NOISE if repeats == options.repeats else RUN_NOISE[1:2]:
                found = [_study(kind, Noise(noise), file, seed) for seed in range(options.studies)]
                lines.append([f"{kind}, confirm_repeats {repeats}", f"{noise:.0%}", *_claimed(found)])
    title = f"Claims of {options.studies} made-up studies a row, {options.steps} steps a trial"
    table.show("confirmation", title, header, lines, options.save)


def _claimed(found: list[Told]) -> list[str]:
    claimed = [told for told in found if told.verdict == "better"]
    gains = [f"{np.median([getattr(told, name) for told in claimed]) - 1:.1%}" if claimed else ""
             for name in ("gain", "true_gain")]  # fmt: skip
    verdicts = [_share([told.verdict == name for told in found]) for name in ("better", "equal", "undecided")]
    return [*verdicts, _share([told.ahead_again for told in claimed]),
            _share([told.ahead_once for told in claimed]), *gains]  # fmt: skip


def costs(options: argparse.Namespace) -> None:
    """What racing spares, and what it loses."""
    header = ["studies", "noise from run to run", "steps a trial", "measured seconds spared", "of the study",
              "result within 2 % of the fastest", "without racing", "the fastest raced out"]  # fmt: skip
    lines = [
        _cost(kind, noise, steps, options)
        for kind in KINDS
        for steps in (options.steps, 4 * options.steps)
        for noise in RUN_NOISE[1::2]
    ]
    title = f"Racing in {options.studies} made-up studies a row"
    table.show("confirmation_racing", title, header, lines, options.save)


def _cost(kind: str, run_noise: float, steps: int, options: argparse.Namespace) -> list[str]:
    files = [_file(options, racing, steps, options.repeats) for racing in (True, False)]
    raced, whole = (
        [_study(kind, Noise(run_noise), file, seed) for seed in range(options.studies)] for file in files
    )
    spared = [1 - _sum(raced, name) / _sum(whole, name) for name in ("measured_seconds", "all_seconds")]
    return [
        kind, f"{run_noise:.0%}", str(steps), *(f"{part:.0%}" for part in spared),
        _share([told.loss <= EQUAL for told in raced]), _share([told.loss <= EQUAL for told in whole]),
        _share([told.lost_best for told in raced]),
    ]  # fmt: skip


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = table.parser(__doc__)
    parser.add_argument(
        "--real", type=int, default=0, metavar="N", help="real studies instead, until N claim 5 %"
    )
    parser.add_argument(
        "--demo", type=int, default=0, metavar="N", help="the demo study N more times instead"
    )
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--runners-up", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    return parser.parse_args(arguments)


def _share(found: Sequence[bool]) -> str:
    return f"{sum(found)} of {len(found)} ({sum(found) / len(found):.1%})" if found else "none"


def _sum(found: Sequence[Told], name: str) -> float:
    return float(sum(getattr(told, name) for told in found))


def _file(options: argparse.Namespace, racing: bool, steps: int, repeats: int) -> StudyFile:
    tree: dict[str, Any] = {
        "name": "made-up", "ranks": 4, "trials": TRIALS, "racing": racing, "confirm_repeats": repeats,
        "confirm_runners_up": options.runners_up,
        "base": {"batch": {"global_batch": 16, "micro_batch": 2}, "train": {"steps": steps, "warmup": WARM_UP}},
        "space": {"parallel.tp": [1, 2, 4], "batch.micro_batch": [1, 2, 4], "memory.recompute": ["none", "full"]},
    }  # fmt: skip
    return parse(tree)


def speeds(kind: str, random: np.random.Generator) -> Array:
    """True seconds of a step of each trial, the baseline's first."""
    if kind == "lab":
        groups = recorded()
        return np.asarray(random.choice(groups[random.integers(len(groups))], TRIALS, replace=False))
    return np.asarray(0.5 * np.exp(random.normal(0, 0.05 if kind == "close" else 0.0, TRIALS)))


def _study(kind: str, noise: Noise, file: StudyFile, seed: int) -> Told:
    random = np.random.default_rng([seed, KINDS.index(kind)])
    truth = speeds(kind, random)
    study = MadeUp(file, truth, Machine(noise, random))
    study.search()
    measured, searched = study.measured, study.seconds
    study.confirm()
    return study.told(measured, searched)


class MadeUp:
    """One study. What the program would be told by ranks is drawn; what it does with it is its own."""

    def __init__(self, file: StudyFile, truth: Array, machine: Machine) -> None:
        self.file, self.truth, self.machine = file, truth, machine
        self.points = _points(file)
        self.state, self.seconds, self.measured = StudyState(), 0.0, 0.0

    def search(self) -> None:
        """The baseline, then the others, racing as the file says."""
        for number in range(TRIALS):
            trial = Trial(number, self.points[number], "sampler" if number else "baseline")
            self._measure(trial, number)

    def confirm(self) -> None:
        """Rounds, until the program has enough."""
        while (window := confirmation.next_window(self.state, self.file)) is not None:
            number, config = window.trial.number, window.trial.config
            again = Trial(len(self.state.trials), config, "confirm", confirms=number,
                          round=window.round, window=window.steps)  # fmt: skip
            self._measure(again, number)

    def _measure(self, trial: Trial, which: int) -> None:
        place = len(self.state.trials) / (TRIALS + 4)
        asked = trial.window or self.file.config.train.steps
        seconds = self.machine.run(self.truth[which], asked, place)
        done, early = self._raced(trial, seconds)
        samples = tuple(float(value) for value in TOKENS / seconds[WARM_UP:done])
        outcome = early.ending.value if early else "completed"
        value = float(np.exp(log_rates([samples])[0]))
        told = replace(trial, outcome=outcome, value=value, samples=samples, steps=done)
        self.state = replace(self.state, trials=(*self.state.trials, told))
        self.seconds += float(seconds[:done].sum())
        self.measured += float(seconds[WARM_UP:done].sum())

    def _raced(self, trial: Trial, seconds: Array) -> tuple[int, EarlyEnd | None]:
        runs = trial.confirms is None and trial.source != "baseline"
        rules = early_stop.rules_of(self.state, self.file) if runs else None
        leader = early_stop.leader_of(self.state, self.file) if rules else None
        for look in rules.look_steps if rules else ():
            steps = Steps(tuple(map(float, seconds[: WARM_UP + look])), WARM_UP)
            early = early_stop.decide(steps, TOKENS, rules, leader) if rules else None
            if early and WARM_UP + look + LATE < len(seconds):
                return WARM_UP + look + LATE, early
        return len(seconds), None

    def told(self, measured: float, searched: float) -> Told:
        """What it claims, beside the truth and another measurement."""
        found = confirmation.confirmation_of(self.state, self.file)
        chosen = recommendation.decide(found, self.file).arm.trial.number if found else 0
        best = found.fastest.trial.number if found else 0
        ratio = found.compare_fastest(found.baseline).ratio if found else None
        verdict = found.compare_fastest(found.baseline).verdict if found else "equal"
        fastest = int(self.truth.argmin())
        pruned = self.state.trials[fastest].outcome == "pruned"
        missed = pruned and self.truth[chosen] > self.truth[fastest] * (1 + EQUAL)
        once, again = (self._ahead(best, repeats) for repeats in (1, self.file.confirm_repeats))
        gain, truly = (ratio.value if ratio else 1.0), float(self.truth[0] / self.truth[best])
        return Told(verdict, gain, truly, once, again,
                    float(self.truth[chosen] / self.truth[fastest] - 1), bool(missed), measured, searched,
                    self.seconds)  # fmt: skip

    def _ahead(self, best: int, repeats: int) -> bool:
        """Whether the winner is ahead of the baseline in so many new pairs of runs."""
        steps = self.file.config.train.steps
        logs = [[float(np.log(np.mean(self.machine.run(self.truth[which], steps, 1.0)[WARM_UP:])))
                 for which in (0, best)] for _ in range(max(1, repeats))]  # fmt: skip
        return sum(base - other for base, other in logs) > 0


def _points(file: StudyFile) -> list[dict[str, Any]]:
    space = file.search_space
    return list(_distinct(space.baseline[0], space.legal_points))


def _distinct(first: dict[str, Any], others: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    yield from (point for point in others if point != first)


if __name__ == "__main__":
    main()
