"""What a person asks for: the frozen, checked configuration of one run."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, StringConstraints, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from engine.config.environment import Environment
from engine.config.errors import InputError, remedy_of
from engine.config.sections import (
    Automatic,
    Batch,
    Checkpoint,
    Compression,
    ConfigTree,
    Data,
    KnobValues,
    Lab,
    Memory,
    Model,
    Network,
    Outer,
    Overlap,
    Parallel,
    Profile,
    Schedule,
    Section,
    Train,
)

#: Values of a trainer that is not this project's, by the names that it gives them.
TrainerValues = dict[
    Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], bool | int | float | str
]
#: Of so many keys all are named where one is unknown.
_MOST_LISTED = 30
#: How pydantic's kinds of errors end that are about a value's type.
_WRONG_TYPE = ("_type", "_parsing", "_from_float")


class RunConfig(Section):
    """Everything that decides a run; the same file trains the same layout again.

    The details of a method (its ratio, rank, rate or period) have defaults, and stand unused where it is off; what asks
    for something by itself is refused where it can do nothing.
    """

    model: Model = Model()
    data: Data = Data()
    parallel: Parallel = Parallel()
    batch: Batch = Batch()
    schedule: Schedule = Schedule()
    compression: Compression = Compression()
    outer: Outer = Outer()
    overlap: Overlap = Overlap()
    memory: Memory = Memory()
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    train: Train = Train()
    checkpoint: Checkpoint = Checkpoint()
    lab: Lab = Lab()
    network: Network = Network()
    environment: Environment = Environment()
    profile: Profile = Profile()
    trainer: TrainerValues = Field(default_factory=dict)
    #: False of another trainer whose steps have nobody knows how many tokens. Only written here: who wants to know asks
    #: for ``tokens_per_step``.
    tokens_told: bool = True

    @property
    def tokens_per_step(self) -> int | None:
        """Of all ranks; None where nobody told, and where documents have lengths of their own."""
        if self.data.documents == "whole":
            return None
        return self.batch.global_batch * self.data.sequence_length if self.tokens_told else None

    def with_values(self, values: KnobValues) -> RunConfig:
        """A copy with dotted keys replaced, checked again: ``{"parallel.tp": 2}``.

        Raises:
            InputError: a key is unknown or a value is of the wrong type or out of range.
        """
        tree = self.model_dump(mode="json")
        for key, value in values.items():
            _set_dotted(tree, key, value)
        return parse(tree)

    def flat(self) -> KnobValues:
        """Dotted keys to values, as ``--set`` takes them."""
        return flatten(self.model_dump(mode="json"))

    def value_of(self, key: str) -> Any:
        """The value under a dotted key; quicker than all of them."""
        section, _, name = key.rpartition(".")
        return getattr(getattr(self, section) if section else self, name)

    def dumps(self) -> str:
        """The exact configuration as indented JSON; of environment variables those that are set."""
        tree = self.model_dump(mode="json")
        tree["environment"] = {
            name: value for name, value in tree["environment"].items() if value is not None
        }
        if not self.trainer:
            del tree["trainer"]
        if self.tokens_told:
            del tree["tokens_told"]
        return json.dumps(tree, indent=2) + "\n"


def _keys_of(holds: Callable[[FieldInfo], bool]) -> tuple[str, ...]:
    """Dotted keys of the fields of sections for which something holds."""
    sections = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    return tuple(
        f"{section}.{name}"
        for section, kind in sections.items()
        if isinstance(kind, type) and issubclass(kind, Section)
        for name, field in kind.model_fields.items()
        if holds(field)
    )


#: Lists that a study can work out: ``auto`` stands for them in its space.
AUTOMATIC = _keys_of(lambda field: any(isinstance(one, Automatic) for one in field.metadata))
#: Values that are dictionaries of their own, not sections.
_MAPPINGS = _keys_of(lambda field: get_origin(field.annotation) is dict)


def tokens_per_step_of(tree: Mapping[str, Any], batch: int | None = None) -> int | None:
    """As :attr:`RunConfig.tokens_per_step`, of plain values that may be old or damaged; None there, too. Of a step with
    so many sequences, or without them of the first step, where the batch grows.
    """
    if not tree.get("tokens_told", True):
        return None
    try:
        if tree["data"].get("documents") == "whole":
            return None
        sequences = batch or tree["batch"].get("ramp_from") or tree["batch"]["global_batch"]
        return int(sequences) * int(tree["data"]["sequence_length"])
    except (KeyError, TypeError, ValueError):
        return None


def parse(tree: object) -> RunConfig:
    """A checked configuration from nested plain values.

    Raises:
        InputError: with field, value and remedy of the first thing that is wrong.
    """
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise input_error(error, RunConfig) from None


def load(path: Path) -> RunConfig:
    """A configuration from its JSON file.

    Raises:
        InputError: the file cannot be read, is not JSON, or does not describe a run.
    """
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(
            "config", str(path), f"cannot be read as JSON ({error}); give a run's config.json"
        ) from None


def flatten(tree: ConfigTree, prefix: str = "") -> KnobValues:
    """Nested dictionaries to dotted keys."""
    flat: KnobValues = {}
    for key, value in tree.items():
        is_section = isinstance(value, dict) and prefix + key not in _MAPPINGS
        flat |= flatten(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": value}
    return flat


def _set_dotted(tree: ConfigTree, key: str, value: Any) -> None:
    *sections, name = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise InputError(key, value, f"{section} has no keys of its own")
    tree[name] = value


#: What pydantic calls one kind of value of several that a key may have.
_ALTERNATIVE = re.compile(r"function-|constrained-|list\[")


def input_error(error: ValidationError, root: type[BaseModel]) -> InputError:
    """The first problem of a pydantic error as one line with field, value and remedy."""
    errors = error.errors()
    same = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    # Of a key that may be a section or a list, too: what is wrong in that.
    first = max(
        same, key=lambda error: (len(error["loc"]), _is_of_list(error), error["type"] == "finite_number")
    )
    path = _path(first["loc"], root)
    if first["type"] == "missing":
        return InputError(".".join(path), None, "is missing")
    return InputError(".".join(path) or "config", first["input"], _remedy(first, path, root))


def _remedy(problem: ErrorDetails, path: list[str], root: type[BaseModel]) -> str:
    if problem["type"] == "extra_forbidden":
        if len(path) == 1 and "base" in root.model_fields and path[0] in RunConfig.model_fields:
            return f"belongs under base, as in base: {{{path[0]}: ..}}"
        return f"unknown key; known here: {_list_keys(path[-1], sorted(_fields_at(root, path[:-1])))}"
    remedy, keys = remedy_of(problem), _fields_at(root, path)
    if keys and problem["type"].startswith(("model", "dict")):
        return f"{remedy}: {_list_keys('', keys)}"
    if problem["input"] == "auto" and ".".join(path[-2:]) in AUTOMATIC:
        return f"{remedy}; auto is a value in a study's space: {'.'.join(path[-2:])}: [null, auto]"
    field = _field_at(root, path)
    usual = field.get_default() if field and not field.is_required() else None
    is_plain = isinstance(usual, bool | int | float | str) and problem["type"].endswith(_WRONG_TYPE)
    return f"{remedy} (usual: {json.dumps(usual)})" if is_plain else remedy


def _is_of_list(problem: ErrorDetails) -> bool:
    place = problem["loc"]  # nothing where the whole file is wrong
    return isinstance(problem["input"], list) and bool(place) and str(place[-1]).startswith("list[")


def _path(place: tuple[int | str, ...], root: type[BaseModel]) -> list[str]:
    """The keys that a person typed, without the kinds of what may be a section or something plain."""
    kinds = {"bool", "float", *(kind.__name__ for kind in _sections(root, str(place[0])))} if place else set()
    path = [str(part) for part in place]
    return [part for part in path if part not in kinds and not _ALTERNATIVE.match(part)]


def _list_keys(key: str, keys: list[str]) -> str:
    """All keys; of very many those most like the wrong one."""
    if len(keys) <= _MOST_LISTED:
        return ", ".join(keys)
    near = difflib.get_close_matches(key, keys, n=3, cutoff=0.0)
    return f"{', '.join(near)} and {len(keys) - len(near)} others (docs/reference/configuration.md)"


def _fields_at(root: type[BaseModel], path: list[str]) -> list[str]:
    sections = [root]
    for part in path:
        if not part.isdigit():  # one of a list is what the list is of
            sections = [section for outer in sections for section in _sections(outer, part)]
    return [name for section in sections for name in section.model_fields]


def _field_at(root: type[BaseModel], path: list[str]) -> FieldInfo | None:
    sections = [root]
    for part in path[:-1]:
        sections = [section for outer in sections for section in _sections(outer, part)]
    return next(
        (section.model_fields[path[-1]] for section in sections if path[-1] in section.model_fields), None
    )


def _sections(owner: type[BaseModel], key: str) -> list[type[BaseModel]]:
    """What a key's value may be of, as far as those are sections."""
    field = owner.model_fields.get(key)
    kinds = (field.annotation, *get_args(field.annotation)) if field else ()
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
