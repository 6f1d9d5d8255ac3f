"""From the name of a workload to the blueprint that stages are built from."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from engine.config.errors import InputError
from engine.config.presets import DECODER, FIELD, SHIPPED
from engine.config.run_config import RunConfig
from engine.model.axes import Axes
from engine.model.stage import Blueprint
from engine.model.workload import Workload
from engine.model.workloads.sequential import ListedBlueprint, exception_line
from engine.model.workloads.text import DecoderBlueprint


def open_blueprint(config: RunConfig, alone: Axes) -> Blueprint:
    """The decoder, or what the factory of ``model.workload`` returns for ``model.options``. ``alone`` are the axes of
    a rank that is split over none.

    Raises:
        InputError: the factory cannot be found, raises, or returns something else.
    """
    if config.model.workload == DECODER:
        return DecoderBlueprint(config)
    return ListedBlueprint(_check_workload(config, _call_factory(config)), config, alone)


def _call_factory(config: RunConfig) -> object:
    factory, options, name = _factory(config.model.workload), config.model.options, config.model.workload
    try:
        return factory(**options)
    except InputError:
        raise
    except Exception as error:
        arguments = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise InputError(
            FIELD, name, f"its factory raises {exception_line(error)}; called with ({arguments})"
        ) from error
    except SystemExit as error:
        raise InputError(FIELD, name, f"its factory ends the program ({error})") from error


def _check_workload(config: RunConfig, result: object) -> Workload:
    spec = config.model.workload
    if not isinstance(result, Workload):
        kind = type(result).__name__
        remedy = f"its factory returns {kind}; it has to return an engine.model.workload.Workload"
        raise InputError(FIELD, spec, remedy)
    if result.weights is not None and not isinstance(result.weights, Mapping):
        kind = type(result.weights).__name__
        raise InputError(FIELD, spec, f"its weights are {kind}; they have to be tensors by parameter name")
    if not result.blocks:
        raise InputError(FIELD, spec, "lists no blocks; give at least one")
    if config.model.tied_embeddings and result.tied is None:
        remedy = f"{spec} does not name them (tied=(..., ...) of its Workload); set it to false"
        raise InputError("model.tied_embeddings", True, remedy)
    for axis in result.splits:
        if axis not in ("tp", "cp"):
            raise InputError(FIELD, spec, f"splits over {axis!r}; it can name tp and cp")
    functions = {"loss": result.loss, "first": result.first, "last": result.last, "metric": result.metric}
    functions |= {f"blocks[{place}]": block for place, block in enumerate(result.blocks)}
    for role, function in functions.items():
        if not callable(function) and (function is not None or role == "loss"):
            raise InputError(FIELD, spec, f"its {role} is {type(function).__name__}, not a function")
    return result


def _factory(spec: str) -> Any:
    """The function that ``MODULE:NAME`` or ``FILE.py:NAME`` names."""
    place = f"{SHIPPED[spec].module}:workload" if spec in SHIPPED else spec
    origin, _, name = place.rpartition(":")
    try:
        module = _from_file(Path(origin)) if origin.endswith(".py") else _import_module(origin)
    except InputError:
        raise
    except Exception as error:
        raise InputError(FIELD, spec, f"{origin} cannot be imported: {exception_line(error)}") from error
    factory = getattr(module, name, None)
    if factory is None:
        factories = [
            key for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]  # fmt: skip
        remedy = f"{origin} has no {name}; functions and classes of its own: {', '.join(factories) or 'none'}"
        raise InputError(FIELD, spec, remedy)
    if not callable(factory):
        raise InputError(FIELD, spec, f"{name} is {type(factory).__name__}, not a function")
    return factory


def _import_module(name: str) -> ModuleType:
    """A module of what is installed, or of the folder that the command was started in."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    """A file as a module; what lies beside it can be imported from it."""
    if not path.is_file():
        raise InputError(FIELD, str(path), "no such file")
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = f"workload_{abs(hash(str(path.absolute()))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        with contextlib.suppress(KeyError):
            del sys.modules[name]
        raise
    return module
