"""What a study file may say beside its question: what a rank costs, what a winner must keep, and what may be used.

Environment variables are refused where they cannot act on any trial; a trial on which one did not act does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from engine.config import environment
from engine.config.environment import SECTION
from engine.config.errors import InputError
from engine.config.knobs.conditions import may_use_gpus
from engine.config.layout import group_document_tokens
from engine.config.run_config import RunConfig
from engine.config.sections import Count, OneOf, Section
from engine.run.devices import selection
from engine.run.outcome import Ending, RunOutcome
from profilers.model.environment import ineffective_settings
from profilers.model.run_summary import RunSummary
from tuning.space.knobs import STUDY_KEYS, Knob
from tuning.space.space import Space
from tuning.spec.trainers import registry

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MONEY = "money_per_billion_tokens"


class Price(Section):
    """What an hour of one rank costs: of its GPU, or of its share of a machine where ranks run on CPUs."""

    per_gpu_hour: Positive
    currency: Annotated[str, Field(min_length=1)] = "USD"


class Constraints(Section):
    """What the winner must keep, measured in each trial. ``memory_headroom`` is the part of a rank's memory that stays
    free at its peak; the others are bounds in the units of their names.
    """

    memory_headroom: Annotated[float, Field(ge=0, lt=1)] | None = None
    peak_memory_bytes: Positive | None = None
    joules_per_token: Positive | None = None
    money_per_billion_tokens: Positive | None = None
    max_step_seconds: Positive | None = None
    min_tokens_per_second: Positive | None = None

    def bounds(self) -> dict[str, float]:
        """Those that were asked for."""
        return {name: value for name, value in self if value is not None}


class Budget(Section):
    """The search ends when any of it is used up, with what the confirmation needs left. ``wall_seconds`` are those that
    trials take, ``gpu_hours`` those of all ranks (of CPUs, too), ``money`` is at the study's price.
    """

    trials: Count | None = None
    wall_seconds: Positive | None = None
    gpu_hours: Positive | None = None
    money: Positive | None = None


class LossGuard(Section):
    """A lossy setting may win if its validation loss is within ``threshold``, after ``min_steps`` or more."""

    threshold: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.02
    min_steps: Count = 100


class Quality(Section):
    """A lossy setting may win if its validation loss is at most so much above the baseline's, after the same tokens:
    0.02 is 2 %. As ``loss_guard``, however few the steps are.
    """

    max_loss_increase: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Racing(Section):
    """Trials that cannot reach the leader any more, or whose steps have settled to within ``settle`` (0.01 is 1 % to
    each side), end early; not before ``least_steps`` measured steps. ``spread`` is the noise from run to run that is
    assumed as long as the study has seen little of its own: a standard deviation, 0.03 is 3 %.
    """

    settle: Positive = 0.01
    least_steps: Annotated[int, Field(ge=3)] = 5
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.03


class Trainer(Section):
    """A trainer that is not this project's (``docs/foreign.md``): the ``command`` that starts it, and the ``folder``
    through which it is tuned, by default one in the run's. Without a command somebody else starts it there. One that
    tells nothing for ``silent_seconds`` counts as dead.
    """

    command: str | None = None
    folder: str | None = None
    silent_seconds: Positive = 120.0


class StepSource(Section):
    """Where the steps of a trainer are read, one of: lines of what it prints with a ``pattern`` of Python, whose group
    ``step`` is the number and, if they are there, ``seconds`` or ``ms`` its time and ``loss`` its loss; a ``file`` of
    JSON lines (a glob) with ``step`` and ``seconds`` as their keys; the event files in a ``tensorboard`` folder.
    Paths are as the command sees them. Without a time of its own a step lasts from the one before.
    """

    pattern: str | None = None
    file: str | None = None
    tensorboard: str | None = None
    step: str = "step"
    seconds: str = "seconds"


class Command(Section):
    """A trainer that is started anew for each trial (``docs/command.md``): the ``command``, the ``kind`` of trainer
    that it starts, by default what its arguments tell, and the ``directory`` it starts in, by default the one that the
    study is started in. ``arguments`` are options by the NAME of ``trainer.NAME``, where they are not called so.
    ``steps`` says where its steps are read, if not as the kind has it. ``documents`` are the JSON files of settings
    that the command names, as they were when the study began.
    """

    command: str
    kind: Annotated[str, OneOf(registry.names)] = "auto"
    directory: str | None = None
    arguments: dict[str, str] = Field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = Field(default_factory=dict)
    steps: StepSource | None = None


class Live(Section):
    """Trials are windows of one run that goes on, of ``steps`` steps in all; it saves after every ``checkpoint_every``
    where its own configuration does not say how often. The last ``over_steps`` may take so much longer than the
    baseline's would have: 0.25 is 25 %. A window that would make it more ends early. Where steps take another time by
    more than ``look_again`` after the search though nobody turned anything, another search follows; null: never. What
    ends up lossy is judged again while the run goes on, by ``loss_checks`` of the time that is left at the most; 0:
    never.
    """

    steps: Count = 1000
    checkpoint_every: Count = 100
    max_slowdown: Positive = 0.25
    over_steps: Count = 200
    look_again: Positive | None = 0.3
    loss_checks: Annotated[float, Field(ge=0, le=0.5)] = 0.08
    look: Annotated[int, Field(ge=0)] = 0
    trainer: Trainer | None = None


class SimulatedCluster(Section):
    """Trials are played on a model of a cluster: a known one or a TOML file. Steps stray by ``noise``, a share."""

    cluster: str
    noise: Annotated[float, Field(ge=0, le=0.5)] = 0.01


_BUDGET = "loss_at_seconds"


def spread(document: dict[str, Any]) -> dict[str, Any]:
    """A file with its objectives and budgets in their own keys, however they were written."""
    budget = document.get("budget")
    for old, new in (("trials", "trials"), ("budget_seconds", "wall_seconds")):
        if isinstance(budget, dict) and budget.get(new) is not None and document.get(old) is None:
            document = document | {old: budget[new]}
    objective = document.get("objective")
    if (budget := _seconds(objective)) is not None:
        document, objective = _with_seconds(document, _above_zero(_BUDGET, budget)), _strip_seconds(objective)
        document = document | {"objective": objective}
    if isinstance(objective, list) and objective:
        return _several(document, objective)
    if (target := _target(objective)) is not None:
        return document | {"objective": "time_to_loss", "target_loss": _above_zero("time_to_loss", target)}
    return document


def _above_zero(name: str, value: Any) -> Any:
    """The number that an objective is given, under the name it was written by."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InputError(
            f"objective.{name}", value, f"must be a number above 0; write objective: {{{name}: 2.5}}"
        )
    return value


def _several(document: dict[str, Any], objective: list[Any]) -> dict[str, Any]:
    names = ["time_to_loss" if _target(term) is not None else term for term in objective]
    targets = [target for term in objective if (target := _target(term)) is not None]
    prefer = document.get("prefer")
    spread_out = document | {"objective": names[0]} | ({"target_loss": targets[0]} if targets else {})
    if len(names) > 1:
        spread_out["objectives"] = names
    if prefer in names:
        spread_out["objective"] = prefer
        del spread_out["prefer"]
    return spread_out


def _seconds(objective: Any) -> Any:
    """Of ``{loss_at_seconds: 60}``, by itself or one of several."""
    objectives = objective if isinstance(objective, list) else [objective]
    budgets = (term[_BUDGET] for term in objectives if isinstance(term, dict) and set(term) == {_BUDGET})
    return next(budgets, None)


def _strip_seconds(objective: Any) -> Any:
    """The same without its seconds."""
    if isinstance(objective, list):
        return [_strip_seconds(term) for term in objective]
    return _BUDGET if isinstance(objective, dict) and set(objective) == {_BUDGET} else objective


def _with_seconds(document: dict[str, Any], seconds: Any) -> dict[str, Any]:
    base = document.get("base") or {}
    train = base.get("train") if isinstance(base, dict) else None
    if not isinstance(base, dict) or not isinstance(train or {}, dict):
        return document  # what is wrong with it is said where it is read
    declared = (train or {}).get("seconds")
    if declared is not None and declared != seconds:
        remedy = f"the objective is the loss after {seconds} seconds; leave one of them out"
        raise InputError("base.train.seconds", declared, remedy)
    return document | {"base": base | {"train": (train or {}) | {"seconds": seconds}}}


def _target(objective: Any) -> Any:
    return (
        objective["time_to_loss"]
        if isinstance(objective, dict) and set(objective) == {"time_to_loss"}
        else None
    )


def as_written(identity: dict[str, Any]) -> dict[str, Any]:
    """What a study is about by keys that somebody writes: its objective, with the loss or the seconds that it is given,
    in place of the keys that follow from it.
    """
    names = identity.get("objectives") or [identity["objective"]]
    declared = {
        name: key
        for name, key in (("time_to_loss", "target_loss"), (_BUDGET, "base.train.seconds"))
        if name in names and key in identity
    }
    numbers = {name: str(identity[key]).removesuffix(".0") for name, key in declared.items()}
    texts = [f"{{{name}: {numbers[name]}}}" if name in declared else name for name in names]
    decides = "" if identity["objective"] == names[0] else f", prefer {identity['objective']}"
    objective = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]{decides}"
    others = {key: value for key, value in identity.items() if key not in ("objectives", *declared.values())}
    return {"objective": objective} | {key: value for key, value in others.items() if key != "objective"}


def check_objectives(objective: str, objectives: Sequence[str] | None, prefer: str | None) -> None:
    """Refuse an objective that is named twice, and a preference for none of them."""
    repeated = next((name for name in objectives or () if list(objectives or ()).count(name) > 1), None)
    if repeated:
        raise InputError("objective", repeated, "is named twice; once is enough")
    if prefer is not None:
        choices = f"is none of the objectives; choose from {', '.join(objectives or ())}"
        raise InputError(
            "prefer", prefer, choices if objectives else "needs several objectives; leave it out"
        )
    if objectives and objective not in objectives:
        raise InputError("objective", objective, f"is none of objectives: {', '.join(objectives)}")


def check_budget(budget: Budget | None, trials: int, seconds: float | None) -> None:
    """Refuse two answers to one question."""
    pairs = (("trials", "trials", trials), ("wall_seconds", "budget_seconds", seconds))
    for name, other, value in pairs if budget else ():
        limit = getattr(budget, name)
        if limit is not None and limit != value:
            raise InputError(f"budget.{name}", limit, f"{other} is {value:g}; keep one of them")


def check_price(
    price: Price | None, budget: Budget | None, objectives: Sequence[str], limits: Constraints | None
) -> None:
    """Refuse to count money without a price."""
    remedy = "needs a price; give for example  price: {per_gpu_hour: 2.5, currency: USD}"
    if price is not None:
        return
    if MONEY in objectives:
        raise InputError("objective", MONEY, remedy)
    if budget is not None and budget.money is not None:
        raise InputError("budget.money", budget.money, remedy)
    if limits is not None and limits.money_per_billion_tokens is not None:
        raise InputError(f"constraints.{MONEY}", limits.money_per_billion_tokens, remedy)


def check_environment(config: RunConfig, knobs: Sequence[Knob], ranks: int) -> None:
    """That no variable of a study is without effect on all its trials, as far as its file tells.

    Raises:
        InputError: one is.
    """
    kind = "cuda" if may_use_gpus(config.flat()) else "cpu"
    _refuse(environment_settings(config, knobs), kind, most_ranks(knobs, ranks), "")


def check_environment_here(config: RunConfig, knobs: Sequence[Knob], ranks: int, simulated: bool) -> None:
    """The same of this machine's devices.

    Raises:
        InputError: it has none on which a variable acts, or the study is simulated, and so has no processes at all.
    """
    settings = environment_settings(config, knobs)
    for name, value in settings.items() if simulated else ():
        raise InputError(name, value, "a simulated study has no processes to set it in; leave it out")
    if settings:
        chosen = selection.choose(config, ranks)
        _refuse(settings, chosen.kind, most_ranks(knobs, ranks), f" ({chosen.reason})")


def check_documents(config: RunConfig, knobs: Sequence[Knob], ranks: int) -> None:
    """Trials over whole documents train on the same text.

    Raises:
        InputError: what is turned decides where documents are cut, and nothing else does.
    """
    if config.data.documents != "whole" or config.data.longest_document is not None:
        return
    turned = {knob.key: knob for knob in knobs if len(tuple(knob.grid())) > 1}
    for key in ("ranks", "batch.micro_batch", "parallel.sequence_groups"):
        if key in turned:
            group_tokens = group_document_tokens(config.with_values({"parallel.dp": ranks}))
            remedy = (
                f"must be given where {key} is turned, or each trial would cut documents elsewhere; give as many "
                f"tokens as a trial has to hold, at most the {group_tokens:,} of base"
            )
            raise InputError("base.data.longest_document", None, remedy)


def check_idle(space: Space) -> None:
    """Details of an outer loop are turned only where there can be one.

    Raises:
        InputError: no point of the space has an outer method that would ask for them.
    """
    for key in space.idle:
        if key.startswith("outer."):
            remedy = "acts nowhere in this space; give an outer.method that has it, in space or base, or leave it out"
            raise InputError(f"space.{key}", str(space.by_key[key]), remedy)


def environment_settings(config: RunConfig, knobs: Sequence[Knob]) -> dict[str, object]:
    """What a study asks of the environment, fixed or turned, by where its file says so."""
    fixed = environment.requested_settings(config.environment)
    turned = {knob.key: knob.document() for knob in knobs if knob.key.startswith(f"{SECTION}.")}
    return {f"base.{SECTION}.{name}": value for name, value in fixed.items()} | {
        f"space.{key}": value for key, value in turned.items()
    }


def environment_outcome(outcome: RunOutcome, summary: RunSummary) -> RunOutcome:
    """How a trial ended as far as its point is concerned: with a variable that did not act it was another point."""
    why = ineffective_settings(summary.environment) if outcome.good else None
    return outcome if why is None else RunOutcome(Ending.ILLEGAL, why)


def _refuse(settings: dict[str, object], kind: str, ranks: int, reason: str) -> None:
    for name, value in settings.items():
        why = environment.ineffective_reason(name.rpartition(".")[2], kind, ranks)
        if why is not None:
            raise InputError(name, value, f"{why}{reason}; leave it out")


def most_ranks(knobs: Sequence[Knob], ranks: int) -> int:
    """Of any trial."""
    counts: list[int] = [count for knob in knobs if knob.key == STUDY_KEYS[0] for count in knob.choices]
    return max([ranks, *counts])
