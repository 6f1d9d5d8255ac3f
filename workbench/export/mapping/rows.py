"""What a setting is called elsewhere: rows that write it, read it, and say whether it arrives.

One table for each format serves export, import, the list of losses and the matrix in the documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from engine.config.errors import InputError
from engine.config.formulas.learning import SOMETIMES, acts_with, rate_plan
from engine.config.knobs.catalogue import acts
from engine.config.presets import ModelShape, resolve
from engine.config.run_config import RunConfig
from workbench.export.mapping.launch import Launch

#: Settings under their dotted keys, those alone that act; see ``ActiveSettings``.
Values = Mapping[str, Any]
#: A format's keys, dotted, with their values.
Document = dict[str, Any]

_SIZES = tuple(ModelShape.__dataclass_fields__)
_OF_EXPERTS = ("experts_per_token", "expert_ffn_hidden", "capacity_factor", "balance_weight")
_OF_CHECKPOINTS = ("asynchronous", "keep")
#: What ranks are split by, beside dp.
DEGREES = ("tp", "pp", "cp", "ep")
USUAL = RunConfig().flat()


class ActiveSettings(dict[str, Any]):
    """Settings that act. A trainer that is told all the same of one that does not is told its usual value: ``[]`` gives
    that, while ``in``, ``get`` and iteration know nothing of it.
    """

    def __missing__(self, setting: str) -> Any:
        return USUAL[setting]


class Level(StrEnum):
    """How a setting fares in a format."""

    EXPRESSED = "expressed"
    EQUIVALENT = "equivalent"
    NOT = "not expressible"


def _nothing(values: Values) -> Document:
    return {}


def _unread(document: Document, ranks: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Row:
    """A setting, or all that a glob names, in one format.

    ``keys`` are what the format calls it. ``why`` says what differs, or why there is no such key, ``instead`` what to
    do about it. ``write`` makes the keys of a run's values, ``read`` the settings of a document and so many ranks.
    ``accepts`` says whether a run's value arrives; without it an expressed or equivalent one does, and of one that is
    not expressible the value in ``rest`` alone: that without which the trainer does the same. ``always`` is lost
    whatever it is, since the file says nothing of it.
    """

    setting: str
    level: Level
    keys: tuple[str, ...] = ()
    why: str = ""
    instead: str = ""
    write: Callable[[Values], Document] = _nothing
    read: Callable[[Document, int], dict[str, Any]] = _unread
    accepts: Callable[[Values], bool] | None = None
    always: bool = False
    hook: str = ""

    def covers(self, setting: str) -> bool:
        """Whether it is about that setting."""
        return fnmatchcase(setting, self.setting)

    def arrives(self, setting: str, values: Values) -> bool:
        """Whether that setting of a run is the same after export and import."""
        if self.always:
            return False
        if self.accepts is not None:
            return self.accepts(values)
        return self.level is not Level.NOT or values[setting] == USUAL.get(setting)


def same(setting: str, key: str, why: str = "", can: Callable[[Values], bool] | None = None) -> Row:
    """A row whose key takes the setting's value as it is."""
    return convert_row(setting, key, lambda value: value, lambda value: value, why=why, can=can)


def same_read(setting: str, key: str) -> Row:
    """As ``same``, of a key that another row writes, and that tells nothing where a file leaves it out."""

    def read(document: Document, ranks: int) -> dict[str, Any]:
        return {setting: document[key]} if document.get(key) is not None else {}

    return Row(setting, Level.EXPRESSED, (key,), read=read)


def convert_row(
    setting: str,
    key: str,
    to_theirs: Callable[[Any], Any],
    back: Callable[[Any], Any],
    *,
    why: str = "",
    can: Callable[[Values], bool] | None = None,
) -> Row:
    """A row whose key takes the setting's value in another form; with a ``why`` it is an equivalent."""

    def write(values: Values) -> Document:
        return {key: to_theirs(values[setting])} if setting in values else {}

    def read(document: Document, ranks: int) -> dict[str, Any]:
        return {setting: back(document[key])} if key in document else {}

    level = Level.EQUIVALENT if why else Level.EXPRESSED
    return Row(setting, level, (key,), why, write=write, read=read, accepts=can)


def drop(setting: str, why: str, instead: str = "", *, always: bool = False, hook: str = "") -> Row:
    """A row of what a format has no key for."""
    return Row(setting, Level.NOT, why=why, instead=instead, always=always, hook=hook)


@dataclass(frozen=True, slots=True)
class UnexpressedSetting:
    """A setting of a run that its export does not carry: why, and what to do about it; ``hook`` names a file of the
    export that does it in Python.
    """

    setting: str
    value: Any
    why: str
    instead: str
    hook: str | None = None

    @property
    def line(self) -> str:
        """For people: the setting, its value, why, and what to do."""
        text = f"{self.setting}={self.value}: {self.why}"
        return f"{text}; {self.instead}" if self.instead else text

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeepspeedFile:
    """How a trainer's file names DeepSpeed's: under ``key`` stands its name, or what it holds.

    ``says`` is what the trainer puts in place of "auto", by DeepSpeed's keys; where it ``insists``, it refuses a file
    that says otherwise. ``problems`` are what it refuses beside one. With a ``batch`` of its own it keeps that.
    """

    key: str
    says: Callable[[Document, int], Document]
    insists: bool
    problems: Callable[[Document], Iterator[InputError]]
    batch: bool


@dataclass(frozen=True, slots=True)
class Format:
    """A trainer's file.

    ``file`` is its name in an export. ``rows`` have every setting once; ``constants`` are what every file says.
    ``degrees`` are those of ``DEGREES`` that it knows with such values; ranks split by others become data parallel.
    ``text`` writes a document, ``document`` reads one. ``problems`` are what is wrong with one, whether its own parser
    refuses it or lets it through; the number of ranks is 0 where it is not known. ``ranks`` reads it from a document
    that says it. ``partly`` are keys of which some values have no setting here, ``exceeding`` values that make one and
    say more than it does. ``launch`` is how it is started, ``test_evidence`` what tests tried with it, by level:
    *parsed* and *trained*. A file with one of the ``own_suffixes`` is this trainer's, whatever stands in it.
    ``deepspeed`` is how it names a file of DeepSpeed's, if it can.
    """

    name: str
    title: str
    file: str
    rows: tuple[Row, ...]
    degrees: Callable[[Values], frozenset[str]]
    text: Callable[[Document], str]
    document: Callable[[str], Document]
    problems: Callable[[Document, int], Iterator[InputError]]
    launch: Launch
    test_evidence: Mapping[str, str]
    constants: Document = field(default_factory=dict)
    partly: tuple[str, ...] = ()
    exceeding: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    ranks: Callable[[Document], int | None] = lambda document: None
    own_suffixes: tuple[str, ...] = ()
    deepspeed: DeepspeedFile | None = None

    def row(self, setting: str) -> Row:
        """The row about a setting."""
        return next(row for row in self.rows if row.covers(setting))

    def make_document(self, config: RunConfig) -> Document:
        """The document of a configuration."""
        values = settings_of(config)
        values = fold_degrees(values, self.degrees(values))
        document = dict(self.constants)
        for row in self.rows:
            document |= row.write(values)
        return document

    def unexpressed(self, config: RunConfig) -> list[UnexpressedSetting]:
        """What of a configuration its document does not say, in the configuration's order."""
        values = settings_of(config)
        degrees = self.degrees(values)
        unknown = {
            f"parallel.{name}"
            for name in DEGREES
            if name not in degrees and values.get(f"parallel.{name}", 1) > 1
        }
        unexpressed = [_unexpressed_setting(setting, values[setting], self.row(setting)) for setting in values
                 if setting in unknown or not self.row(setting).arrives(setting, values)]  # fmt: skip
        return unexpressed + list(_folding(values, degrees, {row.setting for row in unexpressed}))

    def settings(self, document: Document, ranks: int) -> dict[str, Any]:
        """The settings that a document of so many ranks names.

        Raises:
            InputError: the first thing that is wrong with it.
        """
        for problem in self.problems(document, ranks):
            raise problem
        values: dict[str, Any] = {}
        for row in self.rows:
            values |= row.read(document, ranks)
        return values

    def unread(self, document: Document, usual: Document, ranks: int, config: RunConfig) -> Document:
        """What of a document is lost in the configuration made of it: keys that no setting is made of, those that would
        make one only beside others, and those of ``partly`` that an export of it would not say again. ``usual`` is what
        holds where a document says nothing.
        """
        read, rewritten = {key for row in self.rows for key in row.keys}, self.make_document(config)

        def arrives(key: str, value: Any) -> bool:
            if not value and not isinstance(value, str) and key in read:
                return True  # what is off is off here, too
            if value in self.exceeding.get(key, ()):
                return False
            if key in self.partly or key not in read:
                return bool(key in self.partly and rewritten.get(key) == value)
            return value in (rewritten.get(key), usual.get(key)) or self._matters(key, document, usual, ranks)

        return {
            key: value
            for key, value in document.items()
            if value is not None and self.constants.get(key) != value and not arrives(key, value)
        }

    def _matters(self, key: str, document: Document, usual: Document, ranks: int) -> bool:
        """Whether a document without that key makes other settings, or another number of ranks."""
        remainder = {other: value for other, value in document.items() if other != key}
        if self.ranks(usual | remainder) != self.ranks(usual | document):
            return True
        try:
            return self.settings(usual | remainder, ranks) != self.settings(usual | document, ranks)
        except (InputError, LookupError):
            return True


def settings_of(config: RunConfig) -> ActiveSettings:
    """The settings of a run that act, under their dotted keys; the model by its sizes."""
    flat = config.flat()
    shape = resolve(config.model)
    values = {key: value for key, value in flat.items() if acts(key, flat)} | {
        f"model.{name}": getattr(shape, name) for name in _SIZES
    }
    values |= rate_plan(config).settings
    idle = {"model.preset", "parallel.world_size"}
    if config.model.experts is None:
        idle |= {"model.experts", *(f"model.{name}" for name in _OF_EXPERTS)}
    else:
        values["model.expert_ffn_hidden"] = config.model.expert_ffn_hidden or shape.ffn_hidden
    if config.checkpoint.every_steps is None:
        idle |= {f"checkpoint.{name}" for name in _OF_CHECKPOINTS}
    idle |= _idle_of_training(config)
    if config.parallel.placement == sorted(config.parallel.placement or ()):
        idle.add("parallel.placement")
    parallel = config.parallel
    if values.get("parallel.shard_ranks") == parallel.dp * parallel.cp and config.outer.method == "none":
        values["parallel.shard_ranks"] = None  # all of them
    if not config.lab.is_wanted:
        idle |= {key for key in values if key.startswith("lab.")}
    idle |= {key for key in values if key.startswith("environment.") and values[key] is None}
    return ActiveSettings((key, value) for key, value in values.items() if key not in idle)


def _idle_of_training(config: RunConfig) -> set[str]:
    """What the optimizer and the schedule do not ask for."""
    idle = {f"train.{name}" for name in SOMETIMES if name not in acts_with(config.train)}
    idle |= {"train.learning_rate_scaling", "train.learning_rate_batch"}
    return idle | (
        {"train.learning_rate_floor"} if config.train.learning_rate_schedule == "constant" else set()
    )


def ranks_of(values: Values) -> int:
    """The number of ranks."""
    return math.prod(int(values[f"parallel.{name}"]) for name in ("dp", "tp", "pp", "cp"))


def accumulation_of(values: Values) -> int:
    """Micro-batches of a step on each data rank."""
    return int(values["batch.global_batch"] // (values["parallel.dp"] * values["batch.micro_batch"]))


def only(*degrees: str) -> Callable[[Values], frozenset[str]]:
    """Of a format that knows these degrees, whatever else is asked for."""
    known_degrees = frozenset(degrees)
    return lambda values: known_degrees


def fold_degrees(values: Values, degrees: frozenset[str]) -> ActiveSettings:
    """The same ranks without the degrees that a format does not know: they are data parallel, and a step has as many
    sequences as before, to the nearest whole micro-batch of each rank.
    """
    others = [name for name in ("tp", "pp", "cp") if name not in degrees]
    spare = math.prod(int(values[f"parallel.{name}"]) for name in others)
    new = ActiveSettings(values)
    new |= {f"parallel.{name}": 1 for name in others}
    if "ep" not in degrees:
        new.pop("parallel.ep", None)
    if spare > 1:
        dp = int(values["parallel.dp"]) * spare
        samples_per_pass = dp * int(values["batch.micro_batch"])
        new |= {
            "parallel.dp": dp,
            "batch.global_batch": samples_per_pass
            * max(1, round(values["batch.global_batch"] / samples_per_pass)),
        }
        new.setdefault("parallel.zero_stage", 0)
    return new


def _folding(values: Values, degrees: frozenset[str], named: set[str]) -> Iterator[UnexpressedSetting]:
    after = fold_degrees(values, degrees)
    for setting in ("parallel.dp", "batch.global_batch"):
        if after[setting] != values[setting] and setting not in named:
            why = (
                f"is {after[setting]} there: ranks that this trainer cannot split otherwise are data parallel"
            )
            yield UnexpressedSetting(
                setting, values[setting], why, "start fewer ranks, or choose a target that knows the degree"
            )


def _unexpressed_setting(setting: str, value: Any, row: Row) -> UnexpressedSetting:
    return UnexpressedSetting(setting, value, row.why, row.instead, row.hook or None)
