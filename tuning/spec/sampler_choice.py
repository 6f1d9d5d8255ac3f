"""Which of Optuna's samplers proposes: by rule, from the kind of space and the budget, with the reason in words."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from engine.config.errors import InputError, several
from tuning.space.encoding import EXPONENT, Encoding
from tuning.space.space import Space


@dataclass(frozen=True, slots=True)
class Sampler:
    """One of the samplers that a study can ask for.

    ``build`` names what makes it, as ``module:function`` of a seed, the trials that explore first and the budget:
    Optuna is loaded only then. ``package`` is what Optuna imports beside itself for it. What it cannot do is said, too:
    a study that asks for that is refused before it starts. Not all draw categories, or from fewer than two parameters
    (``only_ordered_numbers``), take ``several_objectives``, or learn from broken ``constraints``.
    """

    name: str
    build: str
    package: str | None = None
    only_ordered_numbers: bool = False
    several_objectives: bool = True
    constraints: bool = True


_HERE = "tuning.sampling.samplers"
SAMPLERS: tuple[Sampler, ...] = (
    Sampler("tpe", f"{_HERE}:tpe"),
    Sampler("gp", f"{_HERE}:gaussian_process"),
    Sampler(
        "cmaes",
        f"{_HERE}:cmaes",
        package="cmaes",
        only_ordered_numbers=True,
        several_objectives=False,
        constraints=False,
    ),
    Sampler("random", f"{_HERE}:uniform"),
    Sampler("nsga2", f"{_HERE}:nsga2"),
)
#: A Gaussian process is fitted to all trials at each proposal: from here on that takes longer than a second.
GP_TRIALS = 150
#: Up to this many trials ``auto`` gives a space of ordered numbers to a Gaussian process.
AUTO_GP_TRIALS = 60
#: From this budget on ``auto`` lets NSGA-II go on with several objectives, once TPE had so many trials.
AUTO_NSGA2_TRIALS, AUTO_NSGA2_AFTER = 500, 200


def names() -> tuple[str, ...]:
    """What a study may ask for."""
    return ("auto", *(sampler.name for sampler in SAMPLERS))


def find_sampler(name: str) -> Sampler | None:
    """None for ``auto``."""
    return next((sampler for sampler in SAMPLERS if sampler.name == name), None)


@dataclass(frozen=True, slots=True)
class Choice:
    """A sampler, and why it was taken."""

    name: str
    reason: str


def choose(requested: str, space: Space, trials: int, finished: int, objectives: int = 1) -> Choice:
    """The sampler of a study of so many ``trials``, of which it has ``finished`` so far, and so many ``objectives``.

    ``auto`` is decided by the table of ``benchmarks/samplers.py``: a Gaussian process where every parameter is an
    ordered number, no layout is searched and the budget is up to 60 trials; TPE for the rest. Several objectives are
    decided by ``benchmarks/samplers_several.py``: TPE, and with 500 trials or more NSGA-II after 200 of them. CMA-ES
    and random draws are taken only when asked for. A Gaussian process hands over to TPE after 150 trials.
    """
    if requested == "auto":
        return _automatic(space, trials) if objectives == 1 else _of_several(objectives, trials, finished)
    if requested == "gp" and finished >= GP_TRIALS:
        return Choice("tpe", f"a Gaussian process is too slow beyond {GP_TRIALS} trials; TPE goes on")
    return Choice(requested, "asked for")


def population(trials: int) -> int:
    """How many trials are a generation of NSGA-II: a sixteenth of the budget, by ``benchmarks/samplers_several.py``."""
    return max(4, min(100, trials // 16))


def _of_several(objectives: int, trials: int, finished: int) -> Choice:
    text = f"{objectives} objectives and a budget of {several(trials, 'trials')}"
    if trials < AUTO_NSGA2_TRIALS:
        return Choice("tpe", f"{text}, in which TPE finds as much of their front as NSGA-II or more")
    if finished < AUTO_NSGA2_AFTER:
        return Choice(
            "tpe", f"{text}: TPE finds the front sooner, and after {AUTO_NSGA2_AFTER} NSGA-II goes on"
        )
    words = f"after {AUTO_NSGA2_AFTER} NSGA-II finds as much of the front as TPE, and takes far less time to propose"
    return Choice("nsga2", f"{text}: {words}")


def _automatic(space: Space, trials: int) -> Choice:
    parameters = Encoding(space).parameters
    categories = sum(parameter.kind == "category" for parameter in parameters)
    if categories:
        return Choice(
            "tpe", f"{categories} of {len(parameters)} parameters are categories, which TPE can weigh"
        )
    if any(parameter.name.startswith(EXPONENT) for parameter in parameters):
        return Choice(
            "tpe", "layouts are searched, where the best draws of a Gaussian process are often illegal"
        )
    if trials > AUTO_GP_TRIALS:
        return Choice(
            "tpe", f"a budget of {trials} trials, too many to fit a Gaussian process to at each proposal"
        )
    if not parameters:
        return Choice("tpe", "there is nothing to draw")
    numbers = f"{len(parameters)} ordered numbers and a budget of {several(trials, 'trials')}"
    return Choice("gp", f"{numbers}, which a Gaussian process uses best")


def check(name: str, space: Space, objectives: int = 1, constrained: bool = False) -> None:
    """Raise where the sampler that was asked for cannot draw from the space for so many ``objectives``, of a study that
    names constraints where it is ``constrained``.

    Raises:
        InputError: a sampler of ordered numbers with categories in the space, one that takes no several objectives or
            no constraints with those, or a sampler without its package.
    """
    sampler = find_sampler(name)
    if sampler is not None and sampler.only_ordered_numbers:
        _check_numbers(name, space)
    if sampler is not None and objectives > 1 and not sampler.several_objectives:
        raise InputError(
            "sampler", name, f"takes one objective, and there are {objectives}; take tpe or nsga2"
        )
    if sampler is not None and constrained and not sampler.constraints:
        raise InputError("sampler", name, "would not keep away from what breaks constraints; take tpe")
    if lack := lacks(name):
        raise InputError("sampler", name, lack)


def _check_numbers(sampler: str, space: Space) -> None:
    kinds = {parameter.name: parameter.kind for parameter in Encoding(space).parameters}
    categories = [name for name, kind in kinds.items() if kind == "category"]
    if categories or len(kinds) < 2:
        reason = f"{categories[0]} is a category" if categories else "there are fewer than two parameters"
        raise InputError(
            "sampler", sampler, f"draws two or more ordered numbers only, and {reason}; take tpe"
        )


def lacks(name: str) -> str:
    """What a sampler of Optuna's needs beside it and how to get that; empty where nothing is missing."""
    sampler = find_sampler(name)
    package = None if sampler is None else sampler.package
    if package is None or importlib.util.find_spec(package) is not None:
        return ""
    return f"needs {package}, which is not installed: pip install 'training-workbench[samplers]'"
