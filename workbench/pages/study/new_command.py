"""The form of a study that tunes a command: the trainer that is recognised, what is turned of it, and what will run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from tuning.spec.objectives import KNOWN
from tuning.spec.study_file import StudyFile
from tuning.spec.terms import Budget, Constraints, StepSource
from tuning.spec.trainers import invocation
from tuning.spec.trainers.command_input import PREFIX
from tuning.spec.trainers.facts import Value
from tuning.spec.trainers.registry import TRAINERS
from tuning.spec.trainers.tuned_command import TunedCommand, name_of
from workbench.home.inputs import assignments, set_dotted
from workbench.pages.study import new_options, new_start
from workbench.pages.widgets import forms
from workbench.pages.widgets.common import grid, wrong_value
from workbench.text import command_plan, words

AUTO = "auto"
#: What can be asked of a command; the first: whichever of the others it tells enough for.
AIMS = ("", "tokens_per_second", "step_seconds")
#: Where its steps are read, by the key of ``trainer.steps``; the first: as this trainer prints them.
SOURCES = {
    "": "lines of its output, as this trainer prints them",
    "pattern": "lines of its output, by a pattern of mine",
    "file": "a file of JSON lines",
    "tensorboard": "TensorBoard's event files",
}
TRAIN = {"train.steps": None, "train.warmup": None, "train.step_timeout_seconds": None}
TERMS = {
    "sampler": None,
    "seed": None,
    "confirm_repeats": None,
    "confirm_runners_up": 1,
    "equal_within": None,
}
COLUMNS = 3


def form() -> None:
    """Every section; nothing of the command runs before the button is pressed."""
    with st.container(border=True, key="new-command-fixed"):
        st.markdown("**The command of every trial**")
        section, study = _command()
        tuned_command = _parse_command(section)
        base = _steps(tuned_command)
    space_box = st.container()
    with st.expander("Advanced", icon=":material/tune:", key="new-advanced"):
        options, steps, extra_lines = _advanced_form()
    if steps:
        section["steps"] = steps
    with space_box:
        space = _space(tuned_command) if tuned_command else {}
    tree = study | {"trainer": section, "base": base, "space": space} | options
    new_start.finish(_with_more(tree, extra_lines) if space else None, plan)


def _command() -> tuple[dict[str, Any], dict[str, Any]]:
    """The ``trainer`` section, and the study's own keys."""
    command = st.text_area(
        "Command",
        key="new-command",
        height=80,
        placeholder="torchrun --nproc-per-node 4 train.py ARGS",
        help="As you type it in a terminal: `NAME=VALUE` in front are environment variables. It runs without a shell, "
        "as you, on this machine. (`trainer.command`)",
    )
    directory, kind, name, trials = st.columns([2, 2, 2, 1])
    folder = directory.text_input(
        "Folder that it starts in",
        str(Path.cwd()),
        key="new-command-directory",
        help="Paths in the command are as seen from here. (`trainer.directory`)",
    )
    titles = {AUTO: "recognise it"} | {trainer.name: trainer.title for trainer in TRAINERS}
    kind_name = kind.selectbox(
        "Trainer",
        list(titles),
        key="new-command-kind",
        format_func=titles.__getitem__,
        help="What its options are called and how its steps are read follows from it. (`trainer.kind`)",
    )
    section = {"command": command.strip(), "directory": folder.strip() or str(Path.cwd())}
    section |= {} if kind_name == AUTO else {"kind": kind_name}
    study_name = name.text_input(
        "Name",
        key="new-command-name",
        placeholder="follows from the command",
        help="The same command in the same folder has the same name, and continues its study. (`name`)",
    )
    count = forms.widget(forms.field(StudyFile, "trials"), "new-command-trials", None, trials)
    return section, {"name": study_name.strip() or _name(section), "trials": count}


def _name(section: dict[str, Any]) -> str:
    try:
        return name_of(section)
    except InputError:
        return new_start.free_name()


def _parse_command(section: dict[str, Any]) -> TunedCommand | None:
    """The command taken apart, with a line that says what it is; None while there is none."""
    if not section["command"]:
        st.caption(
            ":material/terminal: Type the command that starts your trainer. Nothing runs before Start."
        )
        return None
    try:
        if not Path(section["directory"]).expanduser().is_dir():
            raise InputError(
                "trainer.directory", section["directory"], "is no folder; give the one it starts in"
            )
        tuned_command = TunedCommand(section)
    except InputError as error:
        wrong_value(str(error))
        return None
    origin = "Asked for" if "kind" in section else "Recognised"
    ranks = words.several(tuned_command.today.ranks, "ranks")
    st.markdown(
        f":small[:green[:material/check:] {origin}: **{words.escape(tuned_command.kind.title)}**, {ranks}]"
    )
    return tuned_command


def _steps(tuned_command: TunedCommand | None) -> dict[str, Any]:
    """The ``base``: how long a trial is, and the tokens of a step where the command does not say."""
    values = forms.changed_values(RunConfig, forms.section(RunConfig, TRAIN, "new-command", COLUMNS))
    sequences, length = tuned_command.kind.tokens(tuned_command.today) if tuned_command else (None, None)
    places = st.columns(2)
    for place, key, label, default in (
        (places[0], "batch.global_batch", "Sequences of a step, on all ranks", sequences),
        (places[1], "data.sequence_length", "Tokens of a sequence", length),
    ):
        number = place.number_input(
            label,
            1,
            value=None,
            key=f"new-command-{words.identifier(key)}",
            placeholder=f"{default}, as the command says" if default else "not told: no rate in tokens",
            help=f"With both of them known, trials are compared by tokens per second. (`base.{key}`)",
        )
        values |= {} if number is None else {key: number}
    return new_start.nest_values(values, {})


def _space(tuned_command: TunedCommand) -> dict[str, Any]:
    """What the trainer is known to turn, and any other option of its command."""
    with st.container(border=True, key="new-command-space"):
        st.markdown("**What is searched**")
        default_values = tuned_command.default_values
        argument_names = _arguments(list(default_values)) if default_values else []
        own_names = st.multiselect(
            "Other options of the command",
            [name for name in _options(tuned_command) if name not in default_values],
            key="new-command-others",
            accept_new_options=True,
            placeholder="none",
            help="Whoever turns such an option answers for it that steps stay comparable. (`space.trainer.NAME`)",
        )
        names = [name for name in default_values if name in argument_names] + [
            name for name in own_names if name not in default_values
        ]
        if not names:
            wrong_value("nothing is turned yet: choose an argument above, or name an option of the command")
        places = grid(len(names), COLUMNS)
        return {
            PREFIX + name: _values(place, tuned_command, name, default_values.get(name))
            for place, name in zip(places, names, strict=False)
        }


def _arguments(names: list[str]) -> list[str]:
    """Those that are turned: all of them at first, as on the command line."""
    return st.pills(
        "Arguments",
        names,
        selection_mode="multi",
        default=names,
        key=f"new-command-knobs-{'-'.join(names)}",
        label_visibility="collapsed",
    )


def _options(tuned_command: TunedCommand) -> list[str]:
    """Names of the options behind its script: those of a launcher are no affair of the training."""
    command_words = tuned_command.today.words
    script = next((place for place, word in enumerate(command_words) if word.endswith(".py")), 0)
    names = (
        word.partition("=")[0].lstrip("-") for word in command_words[script + 1 :] if word.startswith("-")
    )
    return list(dict.fromkeys(name for name in names if name and not name[0].isdigit()))


def _values(
    place: Any, tuned_command: TunedCommand, name: str, default_values: Sequence[Value] | None
) -> list[Any]:
    """The values to try of one name: what the trainer is known to take, else today's and what is typed."""
    today = tuned_command.has(name)
    values = [*default_values] if default_values else [] if today is None else [today]
    argument = tuned_command.kind.argument(name)
    trade = f"{words.escape(argument.trade)}. " if argument else ""
    with place.container(gap="xsmall"):
        selected = st.multiselect(
            f"{name}, today {today}" if today is not None else f"{name}, not in the command today",
            _near(values),
            default=values,
            key=f"new-command-values-{words.identifier(name)}",
            accept_new_options=True,
            format_func=str,
            help=f"{trade}(`space.{PREFIX}{name}`)",
            wrap=True,
        )
        if len(selected) < 2:
            wrong_value(
                "type at least two values to compare" if not selected else "type another value to compare"
            )
    return [invocation.read(item) if isinstance(item, str) else item for item in selected]


def _near(values: Sequence[Value]) -> list[Value]:
    """Beside a lone number of today its half and its double are in the list, and not chosen."""
    if len(values) != 1 or isinstance(values[0], bool | str) or not values[0]:
        return [*values, not values[0]] if len(values) == 1 and isinstance(values[0], bool) else [*values]
    value = values[0]
    half = value / 2 if isinstance(value, float) or value % 2 else value // 2
    return [*([half] if isinstance(value, float) or not value % 2 else []), value, value * 2]


def _advanced_form() -> tuple[dict[str, Any], dict[str, Any], str]:
    """Keys of the study file, its ``trainer.steps``, and whatever else is typed as KEY=VALUE."""
    options = _aim() | forms.changed_values(
        StudyFile, forms.section(StudyFile, TERMS, "new-command", COLUMNS)
    )
    if options.get("confirm_runners_up") == TERMS["confirm_runners_up"]:
        del options["confirm_runners_up"]  # what a study of a command has where its file does not say
    options |= new_options.racing() | new_options.inherit()
    limits = forms.section(Budget, {"wall_seconds": None}, "new-command-budget", 2)
    constraints = forms.section(Constraints, {"max_step_seconds": None}, "new-command-constraints", 2)
    for name, values in (("budget", limits), ("constraints", constraints)):
        if filled := {key: value for key, value in values.items() if value is not None}:
            options[name] = filled
    steps = _source()
    extra_lines = st.text_area(
        "Anything else of the study file, one KEY=VALUE a line",
        key="new-command-more",
        height=80,
        placeholder="base.train.timeout_seconds=1200",
        help="As --set on the command line; such a line counts more than what is above.",
    )
    return options, steps, extra_lines


def _aim() -> dict[str, Any]:
    names = {"": "tokens per second where the command tells of tokens, else seconds per step"}
    objective = st.selectbox(
        "Objective",
        AIMS,
        key="new-command-objective",
        format_func=lambda name: names.get(name) or KNOWN[name].title,
        help="(`objective`)",
    )
    return {"objective": objective} if objective else {}


def _source() -> dict[str, Any]:
    """Where steps are read, and by which keys."""
    option = st.selectbox(
        "Where its steps are read",
        list(SOURCES),
        key="new-command-source",
        format_func=SOURCES.__getitem__,
        help="(`trainer.steps`)",
    )
    if not option:
        return {}
    keys = {option: None} | ({"step": None, "seconds": None} if option == "file" else {})
    values = forms.section(StepSource, keys, "new-command-steps", len(keys))
    return {option: values.pop(option) or ""} | forms.changed_values(StepSource, values)


def _with_more(tree: dict[str, Any], extra_lines: str) -> dict[str, Any] | None:
    """With what was typed beside it."""
    try:
        lines = [line for line in extra_lines.splitlines() if line.strip()]
        for key, value in assignments(lines, "anything else").items():
            set_dotted(tree, key, value)
    except InputError as error:
        st.error(words.escape(str(error)), icon=":material/error:")
        return None
    return tree


def plan(file: StudyFile) -> None:
    """What the command line prints before a study of a command: what trial 0 is, and which trials follow it. Nothing of
    another study.
    """
    if file.trainer is None:
        return
    settings = command_plan.plan(file)
    with st.container(border=True, key="new-command-plan"):
        st.markdown("**What will run**")
        directory = words.escape(settings["directory"])
        st.caption(
            f"Trial 0, in {directory}: {words.escape(command_plan.baseline(file))}, so that its steps can be read."
        )
        st.code(command_plan.readable_command(settings["first_trial"]), language="bash", wrap_lines=True)
        other_trials = words.several(file.trials - 1, "others")
        aim = KNOWN[settings["objective"]].title.lower()
        st.caption(
            f"Then at most {other_trials}, {settings['steps']} steps each, {settings['warmup']} of them warm-up; "
            f"compared by {aim}. Each is ended, with all that it started, once its steps are measured."
        )
        if refusal := _refusal_text(file):
            st.caption(f":material/block: {refusal}")


def _refusal_text(file: StudyFile) -> str:
    """How many combinations the trainer would refuse, and the reason of one."""
    combinations = file.search_space.combinations
    if file.command is None or combinations > new_start.COUNTED_COMBINATIONS:
        return ""
    keys, grids = [knob.key.removeprefix(PREFIX) for knob in file.knobs], [knob.grid() for knob in file.knobs]
    points = (dict(zip(keys, values, strict=True)) for values in itertools.product(*grids))
    reasons = [why for point in points if (why := file.command.refusal(file.config.trainer | point))]
    if not reasons:
        return ""
    broken_text = (
        f"{words.several(len(reasons), 'combinations')} of {combinations:,} break a rule of the trainer"
    )
    return f"{broken_text} and are never tried, such as {words.escape(reasons[0])}"
