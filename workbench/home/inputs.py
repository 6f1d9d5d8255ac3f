"""A run that continues another one, with what was changed while that one went. No torch.

What people type, made into checked values: files, --set, and the rules that hold before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from engine.config import run_config as runconfig
from engine.config.errors import InputError
from engine.config.run_config import RunConfig, load, parse
from engine.config.sections import Lab
from engine.config.validation import live_changes, rules
from engine.dry_run.inspection import inspect_workload
from engine.footprint.budget import check_budget
from engine.run import run_folder
from tuning.space.yaml_loader import StrictLoader, place
from workbench.text.output import say

if TYPE_CHECKING:
    from engine.run.devices.selection import Devices
    from tuning.spec.study_file import StudyFile


def inherit_changes(config: RunConfig, run: Path, given_keys: Collection[str]) -> RunConfig:
    """A configuration that continues ``run``, with what was changed while that one went, and says so.

    A key keeps its own value if it is one of ``given_keys``, or differs from what the run began with.

    Raises:
        InputError: such a value is not legal in this layout.
    """
    last = run_folder.last_config(run)
    if last is None:
        return config
    first = load(run / run_folder.STARTED)
    changed = {
        change.key: change.new
        for change in live_changes.changes(first, last)
        if change.key not in given_keys and live_changes.value_of(config, change.key) == change.old
    }
    after = config.with_values(changed)
    try:
        rules.check(after)
    except InputError as problem:
        origin = f"{run.name} was changed to {_point(changed)}; set other values to start with"
        raise InputError(problem.field, problem.value, f"{problem.remedy} ({origin})") from None
    if changed:
        say(f"note: {_point(changed)}, as {run.name} was changed to while it went")
    return after


def _point(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


#: Sections whose keys are dotted names themselves, so that ``--set space.parallel.tp=[1,2]`` is one key.
_DOTTED_SECTIONS = ("space",)


def read_tree(path: Path, field: str) -> dict[str, Any]:
    """The sections of a YAML or JSON file.

    Raises:
        InputError: the file is missing, unreadable, malformed, or holds no sections.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            field, str(path), f"cannot be read ({error.strerror}); give a YAML or JSON file"
        ) from None
    return tree_of(data, str(path), field)


def tree_of(data: bytes, name: str, field: str) -> dict[str, Any]:
    """The sections of a YAML or JSON file that was read already; ``name`` is how a refusal calls it.

    Raises:
        InputError: it is malformed, or holds no sections.
    """
    try:
        tree = yaml.load(data.decode("utf-8"), StrictLoader)
    except UnicodeDecodeError:
        raise InputError(field, name, "is not a text file; give a YAML or JSON file") from None
    except yaml.YAMLError as error:
        raise InputError(field, name, f"is not valid YAML: {place(error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        remedy = "holds no sections; write for example  parallel: {tp: 2}"
        raise InputError(field, name, remedy)
    return tree


def parse_config(path: Path, sets: list[str]) -> RunConfig:
    """A configuration with what is set beside it; its rules, and whether its data is there, are not looked at.

    Raises:
        InputError: the file cannot be read, or a key or a value is wrong.
    """
    tree = read_tree(path, "config")
    for key, value in assignments(sets).items():
        set_dotted(tree, key, value)
    return runconfig.parse(tree)


def load_plan_input(path: Path, sets: list[str]) -> tuple[RunConfig, int | None]:
    """The configuration of a run's file, or the base and the ranks of a study's.

    Raises:
        InputError: the file cannot be read, or a key or a value is wrong.
    """
    tree = read_tree(path, "config")
    if not {"base", "space", "ranks"} & set(tree):
        return parse_config(path, sets), None
    from tuning.spec import study_file

    for key, value in assignments(sets).items():
        set_dotted(tree, key, value)
    file = study_file.parse(tree)
    return file.config, file.ranks


def run_config(
    path: Path, sets: list[str], data: str | None, device: str | None, resume: Path | None = None
) -> RunConfig:
    """The configuration a person asks ``train`` for, with every rule checked that can be checked without ranks.

    Raises:
        InputError: the first thing that is wrong.
    """
    tree = read_tree(path, "config")
    values = assignments(sets)
    values |= {} if data is None else {"data.path": data}
    values |= {} if device is None else {"device": device}
    values |= {} if resume is None else {"train.resume": str(resume)}
    for key, value in values.items():
        set_dotted(tree, key, value)
    return _with_checkpoint(check_tree(tree), values)


def lab_of(path: Path, field: str) -> Lab:
    """The lab that a configuration, or the base of a study, asks for.

    Raises:
        InputError: it asks for none, or cannot be read.
    """
    tree = read_tree(path, field)
    lab = parse({"lab": (tree.get("base") or tree).get("lab") or {}}).lab
    if not lab.is_wanted:
        raise InputError(field, str(path), "asks for no lab; set lab.hosts or lab.islands there")
    return lab


def check_tree(tree: dict[str, Any], *, import_workload: bool = True) -> RunConfig:
    """The configuration of these sections, with every rule checked that can be checked without ranks.

    To look at a workload runs its code: without ``import_workload`` none runs, and what is wrong with it is said by
    whoever starts the run.

    Raises:
        InputError: the first thing that is wrong.
    """
    config = _with_absolute_data(runconfig.parse(tree))
    rules.check(config)
    if import_workload and inspect_workload(config, tell=say) is not None:
        rules.check(config)  # which know more of it now
    check_budget(config)
    _check_texts(config)
    return config


def study_file(path: Path, sets: list[str], trials: int | None, data: str | None) -> StudyFile:
    """The study a person asks ``tune`` for. Its text is kept as given where nothing was set beside it.

    Raises:
        InputError: the first thing that is wrong.
    """
    from tuning.spec import study_file
    from tuning.spec.trainers.sweep import is_sweep

    if is_sweep(read_tree(path, "study")):
        return study_of_command(None, path, sets, trials)
    file = study_file.load(path)
    values = assignments(sets)
    values |= {} if trials is None else {"trials": trials}
    text = data if data is not None else values.get("base.data.path", file.config.data.path)
    if isinstance(text, str) and (data is not None or _absolute(text) != text):
        values["base.data.path"] = _absolute(text)
    if values:
        tree = read_tree(path, "study")
        for key, value in values.items():
            set_dotted(tree, key, value)
        if trials is not None and isinstance(tree.get("budget"), dict) and "trials" in tree["budget"]:
            set_dotted(tree, "budget.trials", trials)
        file = study_file.parse(tree)
    _check_startable(file)
    return file


def study_of_command(
    command: str | None, sweep: Path | None, sets: list[str], trials: int | None
) -> StudyFile:
    """The study of a command as it was typed, or of a sweep file; its name follows from it unless it is set.

    Raises:
        InputError: the first thing that is wrong.
    """
    from tuning.spec import study_file
    from tuning.spec.trainers.sweep import study_of_sweep
    from tuning.spec.trainers.tuned_command import name_of

    tree: dict[str, Any] = {"trainer": {"command": command}}
    if sweep is not None:
        tree = study_of_sweep(read_tree(sweep, "study"), sweep.stem)
    for key, value in assignments(sets).items():
        set_dotted(tree, key, value)
    if trials is not None:
        tree["trials"] = trials
    tree.setdefault("name", name_of(tree["trainer"]))
    file = study_file.parse(tree)
    _check_startable(file)
    return file


def assignments(texts: list[str], asked_as: str = "--set") -> dict[str, Any]:
    """``["parallel.tp=2"]`` as dotted keys and values; a value is read as YAML. ``asked_as`` is what they are called
    where somebody wrote them.

    Raises:
        InputError: a text has no ``=``, or its value is not valid YAML.
    """
    return dict(_assignment(text, asked_as) for text in texts)


def set_dotted(tree: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key, making sections on the way.

    Raises:
        InputError: something on the way is a value and not a section.
    """
    section, _, name = key.partition(".")
    if not name:
        tree[section] = value
        return
    inner = tree.get(section)
    inner = tree[section] = {} if inner is None else inner
    if not isinstance(inner, dict):
        raise InputError(key, value, f"{section} is {inner!r} and has no keys of its own")
    if section in _DOTTED_SECTIONS:
        inner[name] = value
    else:
        set_dotted(inner, name, value)


def _assignment(text: str, asked_as: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(asked_as, text, "write it as key=value, for example parallel.tp=2")
    try:
        return key.strip(), yaml.load(value, StrictLoader)
    except yaml.YAMLError as error:
        raise InputError(key.strip(), value, f"is not a YAML value: {place(error)}") from None


def _with_absolute_data(config: RunConfig) -> RunConfig:
    """And, if it is a file, the workload's."""
    file, colon, factory = config.model.workload.rpartition(":")
    if file.endswith(".py"):
        config = config.with_values({"model.workload": f"{_absolute(file)}{colon}{factory}"})
    tasks = [task.model_dump() | {"path": task.path and _absolute(task.path)} for task in config.data.tasks]
    path = config.data.path and _absolute(config.data.path)
    return config.with_values({"data.path": path, "data.tasks": tasks})


def _with_checkpoint(config: RunConfig, given_keys: Collection[str]) -> RunConfig:
    """A run to continue as its last checkpoint: what is run stays the same when that run saves another one.

    Values that were changed while that run went stay changed, unless the file or what is set beside it says otherwise.
    """
    from engine.checkpoint.resume import find

    checkpoint = find(config)
    if checkpoint is None:
        return config
    config = config.with_values({"train.resume": str(checkpoint.folder)})
    return inherit_changes(config, checkpoint.folder.parent.parent, given_keys)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def check_texts(config: RunConfig) -> None:
    """Refuse texts that cannot be trained on; a path is as seen from here.

    Raises:
        InputError: one is missing, empty, unreadable, not UTF-8 text, or too short.
    """
    _check_texts(_with_absolute_data(config))


def _check_texts(config: RunConfig) -> None:
    from engine.model.workloads.task_texts import check_texts

    check_texts(config)


def _check_cluster(file: StudyFile, cluster: str) -> None:
    from tuning.predict import target

    for aim in file.aims:
        if aim.name == "joules_per_token" or aim.objective.learns:
            kind = "losses" if aim.objective.learns else "joules"
            raise InputError(
                "objective", aim.name, f"a model of a cluster does not predict {kind}; ask for mfu"
            )
    if file.constraints is not None and (free := file.constraints.memory_headroom) is not None:
        remedy = "a model of a cluster predicts the peak of a rank, not its free memory; constrain peak_memory_bytes"
        raise InputError("constraints.memory_headroom", free, remedy)
    if file.constraints is not None and (joules := file.constraints.joules_per_token) is not None:
        remedy = "a model of a cluster does not predict joules; leave it out"
        raise InputError("constraints.joules_per_token", joules, remedy)
    for ranks in file.search_space.choices("ranks") if file.search_space.turns_ranks else (file.ranks,):
        try:
            target.parse_target(cluster, None, ranks)
        except InputError as error:
            raise InputError(f"simulate.cluster: {error.field}", error.value, error.remedy) from None


def _check_comparable(file: StudyFile) -> None:
    """Steps of different numbers of tokens cannot be compared by their seconds: the smallest would win."""
    in_seconds = any(aim.name == "step_seconds" for aim in file.aims)
    if in_seconds and any(knob.key == "batch.accumulation" and len(knob.choices) > 1 for knob in file.knobs):
        remedy = (
            "batch.accumulation is turned, and a smaller step is no faster; ask for tokens_per_second or mfu"
        )
        raise InputError("objective", "step_seconds", remedy)


def _check_startable(file: StudyFile) -> None:
    """What would stop every trial is told before the study's folder exists, so that its name stays free."""
    from engine.launch.lab import lab
    from engine.run.devices import interfaces, selection
    from tuning.execution import preflight
    from tuning.spec import sampler_choice, terms

    terms.check_idle(file.search_space)
    sampler_choice.check(file.sampler, file.search_space, len(file.aims), file.constraints is not None)
    _check_comparable(file)
    if file.simulate is not None:
        _check_cluster(file, file.simulate.cluster)
        return
    try:
        inspect_workload(file.config, tell=say)
        if file.trainer is None:
            _check_texts(file.config)
        lab.require(file.config.lab)
        devices = selection.choose(file.config, file.ranks)
        interfaces.require(file.config, devices)
    except InputError as error:
        raise InputError(f"base.{error.field}", error.value, error.remedy) from None
    _check_networks(file, devices)
    preflight.check(file)


def _check_networks(file: StudyFile, devices: Devices) -> None:
    """Of a study that turns them: one that hosts lack would stop it at the trial that asks for it."""
    from engine.config.validation.communication import network_problems
    from engine.run.devices import interfaces

    key = "network.inside"
    for name in next((knob.choices for knob in file.knobs if knob.key == key), ()):
        config = file.config.with_values({key: name})
        try:
            for problem in network_problems(config):
                if problem.field == key:
                    raise problem
            interfaces.require(config, devices)
        except InputError as error:
            raise InputError(f"space.{key}", name, error.remedy) from None
