"""Which sampler finds the front of several objectives soonest: TPE or NSGA-II, by the budget.

    python -m benchmarks.samplers_several [--seeds 8] [--minutes 9] [--method NAME] [--problem NAME] [--save]

The score is the hypervolume of what was measured over that of every point of the space (``_several.py``): recorded
cells of the playbook, the model of Frontier that simulated trials play, and a made-up one. Speeds that a sampler is
told stray by 1 %; scores are of the true values. Points that fail are told as a study tells them. All samplers begin
with the baseline and the first tries of a study and draw through its redraws (``tuning.sampling.optuna_study``), which
end after 0.4 s of the processor (0.25 s of the clock when the table was made). Searches are kept: the command stops
after ``--minutes`` and goes on when it is given again. ``tuning.spec.sampler_choice.choose`` decides by this table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from optuna.samplers import NSGAIISampler

from benchmarks import _several, _table
from benchmarks._several import Problem
from benchmarks._several_scores import AHEAD, SCORES, Kept, ahead, key, scores
from tuning.sampling.optuna_study import OptunaStudy
from tuning.sampling.samplers import Evolution
from tuning.search import policy
from tuning.space.encoding import Encoding
from tuning.space.points import Point, point_key
from tuning.spec.objectives import MeasuredValue, Measures
from tuning.storage.state import Trial

NAME = "samplers_several"
TITLE = "Samplers of several objectives: hypervolume over the best possible"
KEPT = _table.RESULTS / f"{NAME}.json"
BUDGETS = (20, 50, 100, 200, 500, 1000)
#: A recorded cell has 109 points or more that may be measured.
RECORDED_BUDGETS = (20, 50, 100)
NOISE = 0.01
#: How large a generation of NSGA-II is, as a part of the budget.
PARTS = {"nsga2, a quarter": 4, "nsga2, an eighth": 8, "nsga2, a 16th": 16, "nsga2, a 32nd": 32}
TPE, RANDOM = "tpe", "random"
#: After so many trials TPE hands over to NSGA-II, with generations of a 16th.
HANDED = {f"tpe, from {at} on nsga2": at for at in (100, 200)}
#: Without what ``tuning.evolution`` changes: parents are only what this sampler drew itself.
OPTUNA = "nsga2 as Optuna has it, a 16th"
METHODS = (TPE, *PARTS, OPTUNA, *HANDED, RANDOM)
LEAST, MOST = 4, 100
#: What TPE is compared with.
CHOSEN = "nsga2, a 16th"


def problems() -> dict[str, tuple[Callable[[], Problem], tuple[int, ...]]]:
    """Each with the budgets that it is large enough for; made when it is needed."""
    found: dict[str, tuple[Callable[[], Problem], tuple[int, ...]]] = {
        f"recorded {model} on {nodes}": (
            lambda cell=(model, nodes): _several.recorded(*cell),
            RECORDED_BUDGETS,
        )
        for model, nodes in _several.CELLS
    }
    two, three = ["tokens_per_second", "peak_memory_bytes"], ["tokens_per_second", "mfu", "peak_memory_bytes"]
    found["simulated, 2 objectives"] = (lambda: _several.simulated(two, "simulated, 2"), BUDGETS)
    found["simulated, 3 objectives"] = (lambda: _several.simulated(three, "simulated, 3"), BUDGETS)
    found["made up, 2 objectives"] = (_several.made_up, BUDGETS)
    return found


def generation(part: int, budget: int) -> int:
    """Trials of a generation."""
    return max(LEAST, min(MOST, budget // part))


class Search:
    """One search, up to a budget: what was measured in its order, and the processor seconds of each proposal."""

    def __init__(self, problem: Problem, method: str, seed: int, budget: int) -> None:
        self._problem, self._method, self._seed, self._budget = problem, method, seed, budget
        start = policy.startup_trials(budget)
        name: Any = RANDOM if method == RANDOM else TPE
        self._index = OptunaStudy(Encoding(problem.space), seed, start, budget, name, problem.aims)
        if method in PARTS:
            self._evolve(PARTS[method])
        elif method == OPTUNA:
            self._index._sampler.inner = NSGAIISampler(seed=seed, population_size=generation(16, budget))
        self._random = np.random.default_rng(seed)
        self.keys, self.seconds = list[str](), list[float]()

    def _evolve(self, part: int) -> None:
        self._index._sampler.inner = Evolution(self._seed, generation(part, self._budget))

    def run(self) -> Search:
        """Measure as many as the budget has."""
        space, known = self._problem.space, set(self._problem.unknown)
        tries = [space.baseline[0], *(point for point, _ in policy.first_tries(space, self._budget))]
        first = [point for point in tries if point_key(point) not in known]
        for number in range(self._budget):
            if number == HANDED.get(self._method):
                self._evolve(16)
            point, params = (first[number], {}) if number < len(first) else self._drawn(known)
            if point is None:
                break
            known.add(point_key(point))
            self.keys.append(point_key(point))
            self._index.tell(self._trial(number, point, params))
        return self

    def _drawn(self, known: set[str]) -> tuple[Point | None, dict[str, Any]]:
        began = time.process_time()
        draw = self._index.ask(known)
        self.seconds.append(time.process_time() - began)
        return (draw.point, draw.params) if draw else (None, {})

    def _trial(self, number: int, point: Point, params: dict[str, Any]) -> Trial:
        found = self._problem.values[point_key(point)]
        if found is None:
            return Trial(number, point, "sampler", params, outcome="oom", constraints={"oom": 1.0})
        noise = 1 + NOISE * self._random.standard_normal()
        measures: Measures = {
            aim.name: MeasuredValue(value * (noise if aim.objective.by_time else 1.0))
            for aim, value in zip(self._problem.aims, found, strict=True)
        }
        return Trial(number, point, "sampler", params, outcome="completed", value=1.0, measures=measures)

    def scores(self, budgets: list[int]) -> dict[int, dict[str, float]]:
        """After so many trials each: the score, the share that failed, the median seconds of the last 20 proposals."""
        values = self._problem.values
        return {
            at: {
                "score": round(self._problem.score(self.keys[:at]), 5),
                "failed": round(sum(values[key] is None for key in self.keys[:at]) / len(self.keys[:at]), 5),
                "seconds": round(float(np.median(self.seconds[: at - len(self.keys) or None][-20:])), 5),
            }
            for at in budgets
        }


def wanted(method: str, budgets: tuple[int, ...]) -> list[list[int]]:
    """Budgets that one search answers: random draws and TPE do not depend on theirs, but for the smallest: it has fewer
    first tries.
    """
    if method in (TPE, RANDOM):
        groups = ([20], [at for at in budgets if 20 < at <= 200], [at for at in budgets if at > 200])
        return [group for group in groups if group]
    return [[at] for at in budgets if at > HANDED.get(method, 0)]


def fill(kept: Kept, given: argparse.Namespace) -> bool:
    """Search what is missing; whether all of it is there before the time is over."""
    until = time.monotonic() + 60 * given.minutes
    for name, (make, budgets) in problems().items():
        if given.problem and name not in given.problem:
            continue
        problem: Problem | None = None
        for seed in range(given.first_seed, given.first_seed + given.seeds):
            for method in given.method or METHODS:
                for group in wanted(method, tuple(at for at in budgets if at <= given.most)):
                    if all(key(name, method, seed, at) in kept for at in group):
                        continue
                    if time.monotonic() > until:
                        return False
                    problem = problem or make()
                    found = Search(problem, method, seed, group[-1]).run().scores(group)
                    kept |= {key(name, method, seed, at): row for at, row in found.items()}
    return True


def main() -> None:
    """The tables."""
    parser = _table.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=BUDGETS[-1], help="the largest budget")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--problem", action="append", choices=problems())
    given = parser.parse_args()
    kept: Kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    done = fill(kept, given)
    KEPT.write_text(json.dumps(kept, indent=0, sort_keys=True), encoding="utf-8")
    text = _table.show(NAME, TITLE, SCORES, scores(kept, METHODS), given.save)
    lines = [
        "| " + " | ".join(row) + " |" for row in (AHEAD, ["---"] * len(AHEAD), *ahead(kept, CHOSEN, TPE))
    ]
    text = "\n".join(
        [text, f"The score of {CHOSEN} less that of {TPE}, of the same problem and seed:", "", *lines, ""]
    )
    print(text.removeprefix(text[: text.index("The score of")]))
    if given.save:
        (_table.RESULTS / f"{NAME}.md").write_text(text, encoding="utf-8")
    if not done:
        print("the time is over; given again, it goes on")


if __name__ == "__main__":
    main()
