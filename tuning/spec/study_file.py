"""The study file: what a person asks a study to search, checked before anything runs."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, PrivateAttr, ValidationError, model_validator

from engine.config import presets
from engine.config import run_config as runconfig
from engine.config.errors import InputError, several
from engine.config.knobs.catalogue import facts_of, is_lossy, live_parts
from engine.config.run_config import RunConfig
from engine.config.sections import ConfigTree, Count, KnobValues, OneOf, Section
from engine.config.validation import live_changes
from engine.run.run_folder import JsonDocument
from tuning.predict.placement import automatic
from tuning.space import rounds
from tuning.space.equal_text import GLOBAL_BATCH
from tuning.space.knobs import (  # fmt: skip
    STUDY_KEYS,
    Knob,
    KnobLimits,
    default_space,
    fixed_knob_reasons,
    parse_space,
    space_note,
)
from tuning.space.space import Space
from tuning.space.yaml_loader import StrictLoader, place
from tuning.spec import sampler_choice, terms
from tuning.spec.objectives import Aim, Name, check_loss_after
from tuning.spec.terms import LossGuard, Positive, Racing
from tuning.spec.trainer_checks import check_trainer
from tuning.spec.trainers.tuned_command import TunedCommand, study_of_command

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}")
#: Configurations whose rates differ by less count as equally fast, so that the simpler one is preferred.
EQUAL_WITHIN = 0.03
#: Between the name of a live study and the number of a search that followed it.
LOOK = "-look-"
#: A study may grow: these can differ when the same study is started again.
MAY_CHANGE = (
    "trials", "seed", "confirm_repeats", "confirm_runners_up", "equal_within", "racing", "budget_seconds", "budget",
    "sampler", "prior", "phases", "inherit", "side_by_side",
)  # fmt: skip
#: What is left out of the whole file where it was not asked for: a study that began before it could be is the same.
UNASKED = (
    "quality", "target_loss", "objectives", "prefer", "price", "constraints", "budget", "simulate", "live", "trainer",
    "racing", "confirm_runners_up", "equal_within", "sampler", "prior", "phases", "inherit", "side_by_side",
)  # fmt: skip


class StudyFile(Section):
    """A study: every trial uses ``ranks`` ranks; ``base`` is fixed, ``space`` is searched.

    The ``objective`` is one of ``tuning/spec/objectives.py``, or several, of which ``prefer`` (else the first) decides.
    ``{time_to_loss: 3.2}`` are the seconds of training until the loss on held-out text, taken after every
    ``base.train.validate_every`` steps, is at most that. ``{loss_at_seconds: 60}`` is the loss on held-out text of a
    run of that many seconds, which is then ``base.train.seconds``. The ``sampler`` is one of Optuna's, or ``auto``
    (:mod:`tuning.spec.sampler_choice`); ``inherit`` names earlier studies; ``side_by_side`` trials run at once.
    In ``phases`` layout, learning, memory and overlap, and lossy knobs are turned group by group; ``auto``: where the
    ``space`` is the usual one.
    """

    name: str
    ranks: Count = 1
    trials: Count = 12
    objective: Name = "tokens_per_second"
    target_loss: Positive | None = None
    objectives: list[Name] | None = None
    prefer: Name | None = None
    price: terms.Price | None = None
    constraints: terms.Constraints | None = None
    budget: terms.Budget | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    base: ConfigTree = Field(default_factory=dict)
    space: KnobLimits | None = None
    loss_guard: LossGuard = LossGuard()
    quality: terms.Quality | None = None
    confirm_repeats: Annotated[int, Field(ge=0)] = 8
    confirm_runners_up: Annotated[int, Field(ge=0)] | None = 2
    equal_within: Annotated[float, Field(ge=0, lt=1)] = EQUAL_WITHIN
    racing: bool | Racing | None = None
    budget_seconds: Positive | None = None
    simulate: terms.SimulatedCluster | None = None
    live: terms.Live | None = None
    trainer: terms.Command | None = None
    sampler: Annotated[str, OneOf(sampler_choice.names)] = "auto"
    prior: Literal["auto", "none"] = "auto"
    phases: Literal["auto", "always", "never"] = "auto"
    inherit: list[str] = Field(default_factory=list)
    side_by_side: Count | None = None
    _text: str | None = PrivateAttr(default=None)
    _chosen_before: KnobLimits | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _expand_terms(cls, document: Any) -> Any:
        if not isinstance(document, dict):
            return document
        return terms.spread(study_of_command(document) if document.get("trainer") else document)

    @property
    def races(self) -> Racing | None:
        """How trials race; None if they do not."""
        if isinstance(self.racing, Racing):
            return self.racing
        return None if self.racing is False else Racing()

    @property
    def aim(self) -> Aim:
        """What its values are of: the objective that decides."""
        return self._aim(self.objective)

    @property
    def aims(self) -> tuple[Aim, ...]:
        """All that it aims at, in the order that was given."""
        return tuple(map(self._aim, self.objectives or (self.objective,)))

    def _aim(self, name: Name) -> Aim:
        price = (self.price.currency, self.price.per_gpu_hour) if self.price else ()
        return Aim(name, self.target_loss, *price)

    @property
    def guard(self) -> LossGuard:
        """What a lossy setting has to keep. On a live run its loss is held against the baseline's on the same steps: a
        few say as much as they are asked for.
        """
        if self.quality is None:
            usual = self.live is not None and "loss_guard" not in self.model_fields_set
            return LossGuard(min_steps=1) if usual else self.loss_guard
        return LossGuard(threshold=self.quality.max_loss_increase, min_steps=1)

    @cached_property
    def config(self) -> RunConfig:
        """The fixed part as a run's configuration."""
        try:
            return runconfig.parse(self.base)
        except InputError as error:
            raise InputError(f"base.{error.field}", error.value, error.remedy) from None

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """What is turned: the given space, or a sensible one for these ranks."""
        space = self.space if self.space is not None else self._chosen_before
        if space is None:
            space = default_space(self.config, self.ranks, self.in_time)
            hot = live_parts()
            if self.live is not None:
                space = {key: self._reachable(key, space[key]) for key in space if key in hot}
                space = {
                    key: values for key, values in space.items() if values and self._may_turn(key, values)
                }
        return parse_space(space, self.config)

    def _reachable(self, key: str, values: Any) -> Any:
        """Those that a run which goes on can be turned to from what it begins with."""
        if not isinstance(values, list):
            return values
        turned = ((value, self.config.with_values({key: value})) for value in values)
        return [value for value, after in turned if not any(live_changes.problems(self.config, after))]

    def _may_turn(self, key: str, values: Any) -> bool:
        """On a live run: what loses something needs held-out text, which a run has from its start or not at all."""
        exact = [
            value for value in (values if isinstance(values, list) else []) if not self._loses(key, value)
        ]
        return bool(self.config.train.validation_batches) or exact == values

    def _loses(self, key: str, value: Any) -> bool:
        return is_lossy(self.config.flat() | {key: value})

    def with_chosen(self, space: KnobLimits) -> StudyFile:
        """The same file, for which this space was chosen when its study began.

        Raises:
            InputError: this version refuses the space.
        """
        study_file = StudyFile.model_validate(self._dump_given())
        study_file._text, study_file._chosen_before = self._text, space
        _check(study_file)
        return study_file

    def tune_live(self) -> StudyFile:
        """The same file for one run that goes on, with the usual terms.

        Raises:
            InputError: it cannot be tuned that way.
        """
        study_file = StudyFile.model_validate(self._dump_given() | {"live": {}})
        _check(study_file)
        return study_file

    @property
    def following(self) -> str:
        """The name of the search that follows on the same run."""
        look = self.live.look if self.live else 0
        return f"{self.name.removesuffix(f'{LOOK}{look}')}{LOOK}{look + 1}"

    def looking_again(self, leader: KnobValues) -> StudyFile:
        """The search that follows on the same run once conditions changed: its baseline is what leads now, and what was
        best is measured first.
        """
        assert self.live is not None
        declared = self._dump_given()
        base = json.loads(json.dumps(declared.get("base", {})))
        for key, value in leader.items():
            section, _, name = key.partition(".")
            if key not in ("parallel.dp", "parallel.world_size"):
                base.setdefault(section, {})[name] = value
        live = self.live.model_dump(mode="json") | {"look": self.live.look + 1}
        return parse(declared | {"name": self.following, "base": base, "live": live, "inherit": [self.name]})

    def with_confirmation_of(self, confirmation: JsonDocument) -> StudyFile:
        """The same file; what it leaves open of the confirmation stays as it was when the study began."""
        before = {
            "confirm_repeats": confirmation.get("confirm_repeats", 1),
            "confirm_runners_up": confirmation.get("confirm_runners_up"),
            "equal_within": confirmation.get("equal_within", EQUAL_WITHIN),
        }
        study_file = StudyFile.model_validate(before | self._dump_given())
        study_file._text, study_file._chosen_before = self._text, self._chosen_before
        return study_file

    @property
    def search_space(self) -> Space:
        """The points of the study; anew once its workload was looked at: rules that know more of it refuse more."""
        facts, stands = presets.facts_of(self.config.model), self.live is not None or self.trainer is not None
        if facts not in self._spaces:
            turned = self.config, self.ranks, self.knobs
            space = Space(*turned, automatic.choose_values, stands, refuses=self._refused_by_trainer)
            self._spaces[facts] = space
        return self._spaces[facts]

    @cached_property
    def _spaces(self) -> dict[presets.WorkloadFacts | None, Space]:
        return {}  # no private attribute: whether the space was asked for makes no two files differ

    @cached_property
    def command(self) -> TunedCommand | None:
        """What is run for each trial in place of this project's ranks."""
        return None if self.trainer is None else TunedCommand(self.trainer.model_dump(mode="json"))

    def _refused_by_trainer(self, config: RunConfig) -> str:
        return self.command.refusal(config.trainer) if self.command else ""

    @cached_property
    def left_alone(self) -> dict[str, str]:
        """By knob, why it is not turned; nothing is said of a study that turns others than the usual ones."""
        return fixed_knob_reasons(self.config, self.ranks, self.in_time) if self.is_usual else {}

    @cached_property
    def is_usual(self) -> bool:
        """Whether it turns what a study does that names no space, as that is written out when it begins."""
        usual = parse_space(default_space(self.config, self.ranks, self.in_time), self.config)
        return {knob.key: knob for knob in self.knobs} == {knob.key: knob for knob in usual}

    @property
    def has_phases(self) -> bool:
        """Whether knobs are turned group by group."""
        return self.is_usual if self.phases == "auto" else self.phases == "always"

    @property
    def in_time(self) -> bool:
        """Whether it asks for what was learned, and how soon: the time to a loss, or the loss after a time."""
        return any(aim.objective.learns for aim in self.aims)

    @property
    def turns_work(self) -> bool:
        """Whether trials differ in their ranks or in the tokens of a step."""
        return any(knob.key in (*STUDY_KEYS, GLOBAL_BATCH) for knob in self.knobs)

    @property
    def turns_learning(self) -> bool:
        """Whether trials differ in what they learn of a token, beside what is lossy."""
        return any(facts_of(knob.key).alters_learning for knob in self.knobs)

    @property
    def turns_lossy(self) -> bool:
        """Whether a value that it turns to loses something."""
        return any(self._loses(knob.key, value) for knob in self.knobs for value in knob.grid())

    @property
    def space_note(self) -> str:
        """What the space covers, in words, when that is not in the file."""
        return "" if self.trainer is not None else space_note(self.ranks, not self.is_usual)

    @property
    def text(self) -> str:
        """The file as it was given."""
        return self._text if self._text is not None else yaml.safe_dump(self._dump_given(), sort_keys=False)

    def _dump_given(self) -> JsonDocument:
        return self.model_dump(mode="json", exclude_unset=True)

    def resolve(self) -> JsonDocument:
        """The file with every default written out. What it does not ask of a loss is left out: a study that began
        before that could be asked is still the same.
        """
        space = {knob.key: knob.document() for knob in self.knobs}
        unasked = {key for key in UNASKED if getattr(self, key) in (None, "auto", [], EQUAL_WITHIN)}
        tree = self.model_dump(mode="json", exclude=unasked) | {"space": space}
        if self.live is not None and self.live.trainer is None:
            del tree["live"]["trainer"]
        return tree

    def identity(self) -> JsonDocument:
        """What must not change inside a study, as flat keys."""
        fixed = {key: value for key, value in self.resolve().items() if key not in MAY_CHANGE}
        base = self.config.model_dump(mode="json", exclude_defaults=True)
        for derived in ("dp", "world_size"):
            base.get("parallel", {}).pop(derived, None)
        flat = runconfig.flatten(fixed | {"base": base, "space": {}})
        return flat | {f"space.{key}": value for key, value in fixed["space"].items()}

    def fingerprint(self) -> str:
        """A short text that is equal when two files mean the same study."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:16]


def load(path: Path) -> StudyFile:
    """A checked study from its YAML (or JSON) file.

    Raises:
        InputError: the file cannot be read, or does not describe a study.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not a text file"
        raise InputError("study", str(path), f"cannot be read ({reason}); give a study file") from None
    file = parse(_tree(text, path))
    if (
        file.trainer is None
    ):  # what a command says is written out: another folder or version may read it otherwise
        file._text = text
    return file


def _tree(text: str, path: Path) -> Any:
    try:
        tree = yaml.load(text, StrictLoader)
    except yaml.YAMLError as error:
        raise InputError("study", str(path), f"is not valid YAML: {place(error)}") from None
    if not isinstance(tree, dict):
        remedy = "does not describe a study; it needs at least a name, e.g. name: first"
        raise InputError("study", str(path), remedy)
    return tree


def parse(tree: object) -> StudyFile:
    """A checked study from plain values, e.g. from a form.

    Raises:
        InputError: with field, value and remedy of the first thing that is wrong.
    """
    try:
        file = StudyFile.model_validate(tree)
    except ValidationError as error:
        if error.errors()[0]["loc"] == ("name",) and error.errors()[0]["type"] == "missing":
            raise InputError("name", None, "is missing; every study needs a name") from None
        raise runconfig.input_error(error, StudyFile) from None
    _check(file)
    return file


def _check(file: StudyFile) -> None:
    if not NAME.fullmatch(file.name):
        remedy = (
            "must begin with a letter; then letters, digits and _ . - only, at most 200 (it names a folder)"
        )
        raise InputError("name", file.name, remedy)
    base = file.config.flat()
    others = base["parallel.tp"] * base["parallel.pp"] * base["parallel.cp"]
    wanted = {"parallel.dp": file.ranks // others, "parallel.world_size": file.ranks}
    for key, follows in wanted.items():
        value = file.base.get("parallel", {}).get(key.rpartition(".")[2])
        if value not in (None, follows):
            raise InputError(
                f"base.{key}", value, f"follows from ranks={file.ranks} and tp * pp * cp; leave it out"
            )
    train = file.config.train
    if train.seconds is None and train.steps <= train.warmup:
        remedy = f"must be above warmup={train.warmup}, or nothing is measured"
        raise InputError("base.train.steps", train.steps, remedy)
    terms.check_objectives(file.objective, file.objectives, file.prefer)
    terms.check_budget(file.budget, file.trials, file.budget_seconds)
    terms.check_environment(file.config, file.knobs, file.ranks)
    terms.check_documents(file.config, file.knobs, file.ranks)
    terms.check_price(file.price, file.budget, [aim.name for aim in file.aims], file.constraints)
    _check_learning(file)
    _check_quality(file)
    _check_rounds(file)
    _check_live(file)
    _ = file.search_space.baseline
    if file.search_space.is_listed and file.search_space.random_point(Random(0), ()) is None:
        remedy = (
            f"holds no legal combination for ranks={file.ranks}; give degrees (tp, pp, cp) that divide it"
        )
        raise InputError("space", None, remedy)


def _check_rounds(file: StudyFile) -> None:
    """Every period that is asked for can be measured with some method that is."""
    space, outer = file.search_space, file.config.outer
    methods, periods = (
        list(space.by_key[key].grid()) if key in space.by_key else [value]
        for key, value in (("outer.method", outer.method), ("outer.period", outer.period))
    )
    for period in periods:
        problems = [
            rounds.problem(file.config.with_values({"outer.method": method, "outer.period": period}))
            for method in methods
            if method != "none"
        ]
        if problems and all(problems):
            section = "space" if "outer.period" in space.by_key else "base"
            raise InputError(f"{section}.outer.period", period, str(problems[0]))


def _check_live(file: StudyFile) -> None:
    """A run that goes on can be turned to every value that is searched."""
    check_trainer(file)
    if file.live is None:
        return
    hot = live_changes.live_keys(file.config)
    for knob in file.knobs if file.space is not None else ():
        if knob.key not in hot:
            remedy = (
                f"is decided when a run starts; while one goes these can be turned: {', '.join(sorted(hot))}"
            )
            raise InputError(f"space.{knob.key}", str(knob), remedy)
    if not any(len(tuple(knob.grid())) > 1 for knob in file.knobs):
        remedy = f"has nothing that can be turned while a run goes; give some of {', '.join(sorted(hot))}"
        raise InputError("space", None, remedy)
    file.search_space.baseline  # noqa: B018  # a run that cannot begin is refused here
    window = file.config.train.steps
    if file.live.trainer is None and file.live.steps <= window:
        remedy = f"the run is over before a second window of base.train.steps={window}; "
        remedy += f"give more, for {several(file.trials, 'trials')} {2 * file.trials * window:,} or so"
        raise InputError("live.steps", file.live.steps, remedy)
    if file.turns_lossy and not file.config.train.validation_batches:
        remedy = "what loses something is judged by its loss on held-out text; give some, or leave out what is lossy"
        raise InputError("base.train.validation_batches", 0, remedy)
    others: dict[str, Any] = {"side_by_side": file.side_by_side, "target_loss": file.target_loss}
    others["simulate"] = file.simulate and file.simulate.cluster
    others["base.train.seconds"] = file.config.train.seconds
    for key, value in others.items():
        if value is not None:
            remedy = "a live study has one run of live.steps in windows; leave it out"
            raise InputError(key, str(value), remedy)


def _check_learning(file: StudyFile) -> None:
    """What changes what is learned of a token is turned only where times to a loss are compared."""
    keys = {knob.key: knob for knob in file.knobs}
    if GLOBAL_BATCH in keys and "batch.accumulation" in keys:
        remedy = "batch.accumulation is turned, too, and makes the global batch; keep one of them"
        raise InputError(f"space.{GLOBAL_BATCH}", str(keys[GLOBAL_BATCH]), remedy)
    altering = next((knob for key, knob in keys.items() if facts_of(key).alters_learning), None)
    if altering is not None and not file.in_time:
        remedy = "changes what is learned of a token, so only studies of a time to a loss "
        remedy += "(objective: {time_to_loss: ..}) or of {loss_at_seconds: ..} turn it; set it in base"
        raise InputError(f"space.{altering.key}", str(altering), remedy)


def _check_quality(file: StudyFile) -> None:
    train = file.config.train
    if file.quality is not None and file.loss_guard != LossGuard():
        limit = file.quality.max_loss_increase
        raise InputError("quality", limit, "loss_guard is given, too; keep one of them")
    is_own_engine = file.live is None and file.trainer is None and file.simulate is None
    check_loss_after(file.aims, train, is_own_engine)
    if not any(aim.in_time for aim in file.aims):
        if file.target_loss is not None:
            raise InputError(
                "target_loss", file.target_loss, "needs objective: {time_to_loss: ..}; or leave it out"
            )
        return
    if file.target_loss is None:
        raise InputError(
            "objective", file.objective, "has no loss to reach; write objective: {time_to_loss: 3.2}"
        )
    if train.validate_every is None or not train.validation_batches:
        remedy = f"must be given to see when a loss is reached; {max(1, train.steps // 20)} would do"
        raise InputError("base.train.validate_every", train.validate_every, remedy)
