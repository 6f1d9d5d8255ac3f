"""Sweep files of W&B and of trackio as studies: parameters, metric, method, command with its macros.

What this project does not do is refused by name; nothing in such a file is run, and values are plain ones.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from math import isfinite, prod
from typing import Any

from engine.config.errors import InputError
from engine.run.run_folder import JsonDocument
from tuning.spec.trainers.invocation import MACROS

#: What a sweep has; a study file has none of them.
_MARK = "parameters"
_KNOWN = ("program", "method", "metric", "parameters", "command", "early_terminate", "run_cap", "name")
#: What only tells about a sweep.
_ABOUT = ("description", "project", "entity", "controller")
#: Of a grid whose file does not say how many.
_MOST_TRIALS = 10_000
_METHODS = {"grid": "random", "random": "random", "bayes": "auto"}
#: The metrics that trials of a command have, by the names that people give them, and the direction that is better.
_METRICS = {
    **dict.fromkeys(
        ("step_seconds", "step_time", "time_per_step", "iteration_time"), ("step_seconds", "minimize")
    ),
    **dict.fromkeys(("tokens_per_second", "tps", "throughput"), ("tokens_per_second", "maximize")),
}
_USUAL_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
#: The keys of a parameter of each kind, and the distributions that it may name.
_KINDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("value",): ("constant",),
    ("values",): ("categorical",),
    ("min", "max"): ("uniform", "int_uniform", "log_uniform_values"),
}
_PARAMETER = (*(key for keys in _KINDS for key in keys), "distribution")
_DISTRIBUTIONS = tuple(name for names in _KINDS.values() for name in names)
_MACRO = re.compile(r"\$\{([^}]*)\}")
#: What a shell would run: ``$(command)`` and backticks.
_CODE = re.compile(r"\$\(|`")
_NAME = re.compile(r"[^A-Za-z0-9_]")


def is_sweep(tree: Mapping[str, Any]) -> bool:
    """Whether a file is a sweep, and no study."""
    return _MARK in tree and not {"base", "space", "trainer"} & set(tree)


def study_of_sweep(tree: Mapping[str, Any], name: str) -> JsonDocument:
    """The study that a sweep asks for; ``name`` is what it is called if the file does not say.

    Raises:
        InputError: something in it is not supported, by its name.
    """
    for key in tree:
        if key not in (*_KNOWN, *_ABOUT):
            raise InputError(str(key), tree[key], f"is not supported in a sweep; known: {', '.join(_KNOWN)}")
    parameters = tree.get(_MARK)
    if not isinstance(parameters, dict) or not parameters:
        raise InputError(_MARK, parameters, "is empty; give the parameters to try")
    turned, options, fixed = {}, dict[str, str](), {}
    for key, parameter in parameters.items():
        short = _NAME.sub("_", str(key))
        values = _values(str(key), parameter)
        if tree.get("method") == "grid":
            values = _grid_values(str(key), values)
        if short in options:
            raise InputError(
                f"{_MARK}.{key}", parameter, f"is the same name as {options[short]} here; rename one of them"
            )
        options[short] = str(key)
        if isinstance(values, dict) or len(values) > 1:
            turned[f"trainer.{short}"] = values
        else:
            fixed[short] = values[0]
    command = _command(tree)
    document = {
        "name": _study_name(tree, name),
        **_metric(tree),
        **_method(tree, turned),
        **_racing_keys(tree),
    }
    if not turned:
        raise InputError(
            _MARK, ", ".join(options), "has one value each; give values, or min and max, to turn some"
        )
    trainer = {"command": command, "arguments": options}
    return {**document, "trainer": trainer, "base": {"trainer": fixed}, "space": turned}


def _values(key: str, parameter: Any) -> Any:
    """A list of choices or a range, as a study has them."""
    field = f"{_MARK}.{key}"
    if not isinstance(parameter, dict):
        raise InputError(field, parameter, "give value, values, or min and max")
    for name in parameter:
        if name not in _PARAMETER:
            names = ", ".join(_PARAMETER)
            raise InputError(
                f"{field}.{name}", parameter[name], f"is not supported in a sweep; known: {names}"
            )
    kind = parameter.get("distribution")
    if kind is not None and not (isinstance(kind, str) and kind in _DISTRIBUTIONS):
        raise InputError(
            f"{field}.distribution", kind, f"is not supported; known: {', '.join(_DISTRIBUTIONS)}"
        )
    keys = tuple(key for key in _PARAMETER[:-1] if key in parameter)
    if keys not in _KINDS:
        raise InputError(field, parameter, "give value, values, or min and max")
    if kind is not None and kind not in _KINDS[keys]:
        names = ", ".join(_KINDS[keys])
        raise InputError(f"{field}.distribution", kind, f"is none of {' and '.join(keys)}; give {names}")
    if keys == ("value",):
        return [_plain(field, parameter["value"])]
    if keys == ("values",):
        if not isinstance(parameter["values"], list) or not parameter["values"]:
            raise InputError(f"{field}.values", parameter["values"], "is no list of values")
        return [_plain(field, value) for value in parameter["values"]]
    return _range(field, parameter, kind)


def _range(field: str, parameter: Mapping[str, Any], kind: str | None) -> dict[str, Any]:
    low, high = (_number(f"{field}.{end}", parameter[end]) for end in ("min", "max"))
    if low >= high:
        raise InputError(f"{field}.min", low, f"is not below max ({high}); give a smaller one")
    if kind == "int_uniform" and not (isinstance(low, int) and isinstance(high, int)):
        raise InputError(
            field, parameter, "has int_uniform, and ends that are no whole numbers; give whole ones"
        )
    if kind in ("uniform", "log_uniform_values") or isinstance(low, float) or isinstance(high, float):
        low, high = float(low), float(high)  # a whole end of a range says nothing of what lies within
    return {"low": low, "high": high} | ({"log": True} if kind == "log_uniform_values" else {})


def _grid_values(key: str, values: Any) -> list[Any]:
    """Of a grid: a range of whole numbers is each of them."""
    if isinstance(values, list):
        return values
    low, high = values["low"], values["high"]
    if not (isinstance(low, int) and isinstance(high, int)) or "log" in values:
        remedy = "has a range, of which a grid has no end; give values, or another method"
        raise InputError("method", f"grid with {key}", remedy)
    if high - low >= _MOST_TRIALS:
        remedy = f"has {high - low + 1:,} values, and a grid has at most {_MOST_TRIALS:,}; give fewer"
        raise InputError("method", f"grid with {key}", remedy)
    return list(range(low, high + 1))


def _plain(field: str, value: Any) -> Any:
    if isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    raise InputError(field, value, "is no plain value; a study turns numbers, words, true and false")


def _number(field: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(field, value, "is no number")
    return value


def _command(tree: Mapping[str, Any]) -> str:
    command = tree.get("command", list(_USUAL_COMMAND))
    if not isinstance(command, list) or not all(isinstance(word, str | int | float) for word in command):
        raise InputError("command", command, "is no list of words")
    words = []
    for word in map(str, command):
        if _CODE.search(word):
            remedy = "has code for a shell in it, and no shell runs a sweep; write what it comes to"
            raise InputError("command", word, remedy)
        words += [word] if word in MACROS else [_MACRO.sub(lambda match: _macro_value(match[1], tree), word)]
    return " ".join(word if word in MACROS else shlex.quote(word) for word in words if word)


def _macro_value(macro: str, tree: Mapping[str, Any]) -> str:
    """What a macro stands for that has nothing to do with values."""
    if macro == "program":
        program = tree.get("program")
        if not isinstance(program, str) or not program:
            raise InputError("program", program, "is missing; give the script that ${program} stands for")
        return program
    if macro == "env":
        return "/usr/bin/env"
    if macro == "interpreter":
        return "python"
    if macro.startswith("envvar:"):
        name = macro.partition(":")[2]
        if name not in os.environ:
            raise InputError(
                "command", f"${{{macro}}}", f"{name} is not set here; set it, or write its value"
            )
        return os.environ[name]
    if f"${{{macro}}}" in MACROS:
        remedy = "stands inside another word, where values cannot be told apart; make it a word of its own"
        raise InputError("command", f"${{{macro}}}", remedy)
    names = ", ".join(("${program}", "${env}", "${interpreter}", "${envvar:NAME}", *MACROS))
    raise InputError("command", f"${{{macro}}}", f"is no macro that is known; known: {names}")


def _metric(tree: Mapping[str, Any]) -> dict[str, str]:
    """What is aimed at; without one, what a study of a command aims at anyway."""
    metric = tree.get("metric")
    if metric is None:
        return {}
    if not isinstance(metric, dict) or not set(metric) <= {"name", "goal"}:
        raise InputError("metric", metric, "give its name and its goal (minimize, maximize)")
    name = str(metric.get("name"))
    objective, direction = _METRICS.get(name.rpartition("/")[2], (None, None))
    if objective is None or direction is None:
        names = ", ".join(_METRICS)
        remedy = f"is not measured here: the speed of training is; name one of {names}, or leave metric out"
        raise InputError("metric.name", name, remedy)
    goal = metric.get("goal", "minimize")
    if goal != direction:
        raise InputError("metric.goal", goal, f"is not what makes {name} better; give {direction}")
    return {"objective": objective}


def _method(tree: Mapping[str, Any], turned: Mapping[str, Any]) -> dict[str, Any]:
    method, cap = tree.get("method", "bayes"), tree.get("run_cap")
    if not isinstance(method, str) or method not in _METHODS:
        raise InputError("method", method, f"is not supported; known: {', '.join(_METHODS)}")
    if cap is not None and (isinstance(cap, bool) or not isinstance(cap, int) or cap < 1):
        raise InputError("run_cap", cap, "is no whole number above 0")
    document: dict[str, Any] = {"sampler": _METHODS[method]}
    if method == "grid":
        document["trials"] = min(prod(len(values) for values in turned.values()) + 1, cap or _MOST_TRIALS)
    elif cap is not None:
        document["trials"] = cap
    return document


def _racing_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Trials end early by this project's own races, whatever a sweep calls it."""
    terminate = tree.get("early_terminate")
    if terminate is None:
        return {"racing": False}
    if not isinstance(terminate, dict) or terminate.get("type") not in ("hyperband", "envelope"):
        raise InputError("early_terminate", terminate, "is not supported; known: type: hyperband")
    return {}


def _study_name(tree: Mapping[str, Any], usual: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(tree.get("name") or usual)).strip("-._")
    return name if name[:1].isalpha() else f"sweep-{name}"
